"""A server whose answers take known times: ``python delay_server.py COUNT MEDIAN_S SIGMA`` prints its port and serves.

The times are a lognormal distribution's quantiles in a fixed random order, begun anew after the last one. So whoever asks a
whole number of rounds has waited for exactly the same times, in whatever order his requests came, and the percentiles that he
tells are right or wrong. ``GET /count`` says how many were answered.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
from typing import Final

import httptools
import uvloop

ANSWER: Final = json.dumps(
    {"choices": [{"message": {"content": "Paris"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
).encode()


def delays(count: int, median_s: float, sigma: float) -> list[float]:
    """Return the times of one round, in seconds."""
    normal = statistics.NormalDist(0.0, sigma)
    factors = [2.718281828459045 ** normal.inv_cdf((number + 0.5) / count) for number in range(count)]
    random.Random(1).shuffle(factors)
    return [median_s * factor for factor in factors]


class _Served:
    def __init__(self, round_: list[float]) -> None:
        self.round = round_
        self.began = self.ended = 0

    def next(self) -> float:
        self.began += 1
        return self.round[(self.began - 1) % len(self.round)]


class _Connection(asyncio.Protocol):
    def __init__(self, served: _Served) -> None:
        self._served = served
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment] # a stream

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._path = b""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_message_complete(self) -> None:
        if self._path.endswith(b"/chat/completions"):
            asyncio.get_running_loop().call_later(self._served.next(), self._answer)
        elif self._path.endswith(b"/models"):
            self._write(b'{"data": [{"id": "known"}]}')
        else:
            self._write(b'{"count": %d}' % self._served.ended)

    def _answer(self) -> None:
        self._served.ended += 1
        self._write(ANSWER)

    def _write(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)


async def _serve(served: _Served) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(served), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(_Served(delays(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))))
