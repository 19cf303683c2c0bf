"""An engine stand-in for benchmarks: a 600-byte JSON answer, or 186-byte events at a steady rate, on a unix socket and TCP.

Run as a program: ``python bench_engine.py SOCKET``; prints its TCP port and serves until terminated. A body with
``"stream": true`` gets ``max_tokens`` events, ``bench_rate`` of them per second (0: without pause).
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Final

import httptools
import uvloop

ANSWER_BYTES: Final = 600
EVENT_BYTES: Final = 186


def _padded(prefix: bytes, suffix: bytes, size: int) -> bytes:
    return prefix + b"x" * (size - len(prefix) - len(suffix)) + suffix


ANSWER: Final = _padded(
    b'{"id":"c-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"',
    b'"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}',
    ANSWER_BYTES,
)
EVENT: Final = _padded(
    b'data: {"id":"c-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"',
    b'"},"finish_reason":null}]}\n\n',
    EVENT_BYTES,
)
JSON_REPLY: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM_CHUNK: Final = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
STREAM_END: Final = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class _Engine(asyncio.Protocol):
    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment] # a stream

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        if b'"stream": true' not in body and b'"stream":true' not in body:
            self.transport.write(JSON_REPLY)
            return
        asked = json.loads(body)
        self.left = int(asked["max_tokens"])
        rate = float(asked.get("bench_rate", 0))
        self.pause = 1 / rate if rate else 0.0
        self.transport.write(STREAM_HEAD + STREAM_CHUNK)
        self.left -= 1
        self.due = self.loop.time()
        self._next()

    def _next(self) -> None:
        if self.transport.is_closing():
            return
        if not self.left:
            self.transport.write(STREAM_END)
        elif self.pause:
            self.due += self.pause
            self.loop.call_at(self.due, self._event)
        else:
            self.transport.write(STREAM_CHUNK * self.left + STREAM_END)

    def _event(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(STREAM_CHUNK)
            self.left -= 1
            self._next()


async def _serve(socket: str) -> None:
    loop = asyncio.get_running_loop()
    unix = await loop.create_unix_server(_Engine, socket, backlog=1024)
    tcp = await loop.create_server(_Engine, "127.0.0.1", 0, backlog=1024)
    print(tcp.sockets[0].getsockname()[1], flush=True)
    await asyncio.gather(unix.serve_forever(), tcp.serve_forever())


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
