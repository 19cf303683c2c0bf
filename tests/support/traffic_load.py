"""An open loop of short and long requests: each is sent when it is due, whatever has become of those before it.

Every answer is a stream; what counts of it is the time from when its request was due to its first piece of text.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httptools

LIMIT_S: Final = 30.0
_PATH: Final = "/v1/chat/completions"
# Each is one token of most vocabularies, with the space before it.
_WORDS: Final = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state", "family"),
    *("student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system", "program"),
    *("question", "work", "government", "number", "night", "point", "home", "water", "room", "mother", "area", "money"),
    *("story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind"),
)


@dataclass(frozen=True)
class Class:
    """Requests of one kind: ``words`` in a prompt, about as many tokens; at most ``output`` tokens in an answer."""

    name: str
    words: int
    output: int


@dataclass(frozen=True)
class Due:
    """When a request is sent, in seconds after the beginning, and which one."""

    at: float
    kind: Class
    prompt: str


@dataclass(frozen=True)
class Answer:
    """``first_s`` and ``lasted_s``: seconds from when it was due; ``first_s`` None: no text came. ``ended``: it is whole.

    ``route``: why it went where it went, as the answer says. ``error``: what it ends with instead.
    """

    kind: Class
    due_at: float
    status: int
    first_s: float | None
    lasted_s: float
    ended: bool
    route: str
    error: str = ""

    @property
    def first_at(self) -> float | None:
        """When its text began, in seconds of the monotonic clock."""
        return None if self.first_s is None else self.due_at + self.first_s

    def within(self, targets: Mapping[str, float]) -> bool:
        """Whether it is whole and its text began in time."""
        return self.ended and self.first_s is not None and self.first_s <= targets[self.kind.name]


def prompt_of(kind: Class, chosen: random.Random) -> str:
    """Return a prompt that begins like no other, so that no engine has read any of it before."""
    return " ".join(["Continue:", *chosen.choices(_WORDS, k=kind.words)])


def arrivals(shares: Mapping[Class, float], rate: float, seconds: float, seed: int) -> tuple[Due, ...]:
    """Return Poisson arrivals of ``rate`` requests per second, of each class its share of them."""
    chosen = random.Random(seed)
    kinds, weights = list(shares), list(shares.values())
    found, at = [], chosen.expovariate(rate)
    while at < seconds:
        kind = chosen.choices(kinds, weights)[0]
        found.append(Due(at, kind, prompt_of(kind, chosen)))
        at += chosen.expovariate(rate)
    return tuple(found)


@dataclass(frozen=True)
class Caller:
    """Asks one endpoint by its served name; a request that is not answered within ``limit_s`` is given up."""

    url: str
    key: str
    served_name: str
    limit_s: float = LIMIT_S

    async def offer(self, dues: Sequence[Due]) -> list[Answer]:
        """Send each when it is due; return all answers, in the order in which they were due."""
        began = time.monotonic()
        return await asyncio.gather(*(self._at(began + due.at, due) for due in dues))

    async def ask(self, kind: Class, chosen: random.Random) -> Answer:
        """Ask once, now."""
        return await self._at(time.monotonic(), Due(0.0, kind, prompt_of(kind, chosen)))

    async def _at(self, due_at: float, due: Due) -> Answer:
        await asyncio.sleep(max(0.0, due_at - time.monotonic()))
        reading = _Reading()
        error = ""
        try:
            async with asyncio.timeout(self.limit_s):
                await self._exchange(due, reading)
        except (OSError, TimeoutError, httptools.HttpParserError) as failure:
            error = repr(failure)
        return Answer(
            due.kind,
            due_at,
            reading.status,
            None if reading.first_at is None else reading.first_at - due_at,
            time.monotonic() - due_at,
            reading.whole,
            reading.headers.get("x-standby-route", ""),
            error or reading.error,
        )

    async def _exchange(self, due: Due, reading: _Reading) -> None:
        address = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            writer.write(self._request(due))
            while not reading.complete and (data := await reader.read(2**16)):
                reading.feed(data)
        finally:
            writer.transport.abort()

    def _request(self, due: Due) -> bytes:
        body = json.dumps(
            {
                "model": self.served_name,
                "messages": [{"role": "user", "content": due.prompt}],
                "max_tokens": due.kind.output,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        head = (
            f"POST {_PATH} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {self.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + body


class _Reading:
    """One answer as it comes."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.first_at: float | None = None
        self.complete = self.whole = False
        self.error = ""
        self._rest = b""
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self.status != 200:
            self.error = (self.error + data.decode(errors="replace"))[:300]
            return
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            self._event(event)

    def on_message_complete(self) -> None:
        self.complete = True

    def _event(self, event: bytes) -> None:
        for payload in _payloads(event):
            if payload == b"[DONE]":
                self.whole = not self.error
                continue
            said = json.loads(payload)
            if "error" in said:
                self.error = json.dumps(said["error"])[:300]
            if self.first_at is None and any(one.get("delta", {}).get("content") for one in said.get("choices", ())):
                self.first_at = time.monotonic()


def _payloads(event: bytes) -> Iterator[bytes]:
    yield from (line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
