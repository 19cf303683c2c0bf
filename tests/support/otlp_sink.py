"""A collector of spans as a process: ``python otlp_sink.py`` prints its port; ``GET /`` says how many spans have come.

What it is sent is read as OTLP only when it is asked, so that it takes no processor time from what is being measured.
"""

from __future__ import annotations

import gzip
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

BODIES: list[bytes] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        BODIES.append(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
        self._answer("application/x-protobuf", b"")

    def do_GET(self) -> None:
        self._answer("text/plain", str(spans()).encode())

    def _answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


def spans() -> int:
    """Count what came."""
    messages = map(ExportTraceServiceRequest.FromString, BODIES)
    return sum(len(scope.spans) for message in messages for found in message.resource_spans for scope in found.scope_spans)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()
