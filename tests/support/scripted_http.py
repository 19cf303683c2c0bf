"""An HTTP server that answers what it is told to: for stores that refuse, redirect or are overloaded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Answer:
    """One answer; the body is not sent to a HEAD."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    authorization: str


@dataclass
class ScriptedServer:
    """``url``, what was ``asked`` so far, and who answers."""

    url: str
    answer: Callable[[Asked], Answer]
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def scripted_server(answer: Callable[[Asked], Answer]) -> Iterator[ScriptedServer]:
    """Run a server on 127.0.0.1 whose every answer is ``answer(request)``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Small answers must not wait for the client's acknowledgement of the headers.
        disable_nagle_algorithm = True
        wbufsize = -1

        def log_message(self, *_args: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            asked = Asked(self.command, self.path, self.headers.get("authorization", ""))
            script.asked.append(asked)
            found = script.answer(asked)
            self.send_response(found.status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(found.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(found.body)
            self.wfile.flush()

        do_HEAD = do_GET  # noqa: N815 # as above

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    script = ScriptedServer(f"http://127.0.0.1:{server.server_port}", answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def refusal(status: int, code: str, extra: str = "", **headers: str) -> Answer:
    """An answer with S3's XML for an error."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>m</Message>{extra}</Error>'
    return Answer(status, body.encode(), {name.replace("_", "-"): value for name, value in headers.items()})
