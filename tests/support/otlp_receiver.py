"""A collector of spans: a real HTTP server that reads OTLP, or behaves as a broken one does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from support.waiting import until

PATH = "/v1/traces"
LIMIT_S = 60.0
KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}


class Behaviour(Enum):
    """What the collector does with what it is sent."""

    TAKES = "takes"
    HANGS = "hangs"
    REFUSES = "refuses"
    RUBBISH = "rubbish"


@dataclass(frozen=True)
class Received:
    """One span, ids in hex."""

    service: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    failed: bool
    events: dict[str, int]
    links: list[tuple[str, str]]

    def holds(self, other: Received, slack_ns: int = 0) -> bool:
        """Whether the other one lies within this one."""
        return self.began_ns - slack_ns <= other.began_ns <= other.ended_ns <= self.ended_ns + slack_ns


@dataclass
class Receiver:
    """``raw`` are the bodies as they came."""

    url: str
    behaviour: Behaviour
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    spans: list[Received] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def asked(self) -> int:
        """How many requests came."""
        return len(self.raw)

    def of(self, trace: str, *names: str) -> list[Received]:
        """The spans of a trace, in the order of their beginnings; only those of these names where any are given."""
        found = [span for span in self.spans if span.trace == trace and (not names or span.name in names)]
        return sorted(found, key=lambda span: span.began_ns)

    async def until_told(self, trace: str, *names: str) -> list[Received]:
        """Wait until a trace has spans of all these names, and return all of its spans."""
        await until(lambda: set(names) <= {span.name for span in self.of(trace)}, f"{trace} has {names}", LIMIT_S)
        return self.of(trace)

    def take(self, body: bytes) -> None:
        message = ExportTraceServiceRequest.FromString(body)
        for resource in message.resource_spans:
            service = _values(resource.resource.attributes)["service.name"]
            self.spans += [_received(service, span) for scope in resource.scope_spans for span in scope.spans]


@contextlib.contextmanager
def otlp_receiver(behaviour: Behaviour = Behaviour.TAKES) -> Iterator[Receiver]:
    """Run a collector on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.raw.append(body)
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            match behaviour:
                case Behaviour.HANGS:
                    receiver.released.wait(30)
                    self.close_connection = True
                case Behaviour.RUBBISH:
                    self.wfile.write(b"\x00\xffno answer at all\r\n\r\n" * 100)
                    self.close_connection = True
                case Behaviour.REFUSES:
                    self._answer(400)
                case Behaviour.TAKES:
                    assert self.path == PATH, self.path
                    receiver.take(body)
                    self._answer(200)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}", behaviour)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        server.server_close()
        serving.join()


def _received(service: str, span: Any) -> Received:
    return Received(
        service=service,
        name=span.name,
        kind=KINDS[span.kind],
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        failed=span.status.code == 2,
        events={event.name: event.time_unix_nano for event in span.events},
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
    )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs if isinstance(pair, KeyValue)}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)
