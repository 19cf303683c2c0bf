"""How one request of the soak ended, judged from the bytes that its client got."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import httptools
from botocore.eventstream import EventStreamBuffer


class Kind(StrEnum):
    """What is asked, over which API."""

    OPENAI = "openai"
    OPENAI_STREAM = "openai-stream"
    INVOKE = "invoke"
    INVOKE_SSE = "invoke-sse"
    INVOKE_STREAM = "invoke-stream"

    @property
    def streams(self) -> bool:
        """Whether tokens come one by one."""
        return self in {Kind.OPENAI_STREAM, Kind.INVOKE_SSE, Kind.INVOKE_STREAM}

    def path(self, endpoint: str) -> str:
        """The route."""
        if self in {Kind.OPENAI, Kind.OPENAI_STREAM}:
            return "/v1/chat/completions"
        return f"/endpoints/{endpoint}/invocations{'-response-stream' if self is Kind.INVOKE_STREAM else ''}"


class Verdict(StrEnum):
    """What a client may see. CUT has to be explained by a killed gateway, the last three by nothing."""

    OK = "ok"
    EXPLICIT = "explicit error"
    CUT = "cut"
    SPLICED = "spliced"
    DOUBLE = "double"
    ODD = "odd"


@dataclass
class Seen:
    """The answer to one request, as bytes; ``endings`` counts the messages that ended, of which there must be one."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    endings: int = 0
    surplus: bytes = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.endings += 1


_LOST: Final = "the connection ended first"


def judge(kind: Kind, nonce: str, count: int, seen: Seen) -> tuple[Verdict, str]:
    """Return how the request for ``count`` tokens of ``nonce`` ended, and what is wrong with that."""
    if seen.endings > 1 or seen.surplus:
        return Verdict.DOUBLE, f"{seen.endings} endings, {seen.surplus[:80]!r} behind them"
    if seen.status >= 400:
        return _of_error(kind, seen)
    if not seen.endings and (not kind.streams or not seen.status):
        return Verdict.CUT, _LOST
    return _of_answer(kind, nonce, count, seen)


def _of_answer(kind: Kind, nonce: str, count: int, seen: Seen) -> tuple[Verdict, str]:
    if seen.status != 200:
        return Verdict.ODD, f"status {seen.status}"
    text, errors, done = _streamed(kind, seen.body) if kind.streams else _whole(seen.body)
    tokens = text.split(" ") if text else []
    expected = [f"{nonce}:{number}" for number in range(len(tokens))]
    if tokens != expected:
        return Verdict.SPLICED, f"{tokens[:30]} are not {expected[:3]} …"
    told = f"{len(tokens)} of {count} tokens, {errors} errors, done: {done}: {seen.body[-300:]!r}"
    if errors:
        return (Verdict.EXPLICIT, "") if errors == 1 and not done else (Verdict.ODD, told)
    if not seen.endings:
        return Verdict.CUT, _LOST
    return (Verdict.OK, "") if len(tokens) == count and done else (Verdict.ODD, told)


def _of_error(kind: Kind, seen: Seen) -> tuple[Verdict, str]:
    if not seen.endings:
        return Verdict.CUT, "the connection ended in the middle of an error"
    try:
        told = json.loads(seen.body)
    except ValueError:
        return Verdict.ODD, f"status {seen.status} without an envelope: {seen.body[:200]!r}"
    openai = kind in {Kind.OPENAI, Kind.OPENAI_STREAM}
    known = bool(told.get("error", {}).get("message")) if openai else bool(told.get("__type"))
    return (Verdict.EXPLICIT, "") if known else (Verdict.ODD, f"status {seen.status}: {told}")


def _whole(body: bytes) -> tuple[str, int, bool]:
    try:
        return str(json.loads(body)["choices"][0]["message"]["content"]), 0, True
    except (ValueError, KeyError, IndexError):
        return body.decode("latin-1"), 0, True


def _streamed(kind: Kind, body: bytes) -> tuple[str, int, bool]:
    """Return the text, the number of error events, and whether it says that it is done."""
    errors = 0
    if kind is Kind.INVOKE_STREAM:
        body, errors = _unframed(body)
    text, done = "", False
    for event in _events(body):
        if event is None:
            done = True
        elif "error" in event:
            errors += 1
        elif event.get("choices"):
            text += event["choices"][0].get("delta", {}).get("content") or ""
    return text, errors, done


def _unframed(body: bytes) -> tuple[bytes, int]:
    buffer = EventStreamBuffer()
    buffer.add_data(body)
    payload, errors = b"", 0
    for message in buffer:
        if ":exception-type" in message.headers:
            errors += 1
        else:
            payload += message.payload
    return payload, errors


def _events(body: bytes) -> Iterator[dict[str, Any] | None]:
    """Each event as JSON, None for ``[DONE]``; what a cut left unfinished is no event."""
    *events, _unfinished = body.replace(b"\r\n", b"\n").split(b"\n\n")
    for event in events:
        for line in event.split(b"\n"):
            if line.startswith(b"data:"):
                data = line[5:].strip()
                yield None if data == b"[DONE]" else json.loads(data)


def feed(parser: httptools.HttpResponseParser, seen: Seen, data: bytes) -> None:
    """Take bytes in; whatever comes behind the end of the answer is kept as it is."""
    if seen.endings:
        seen.surplus += data
        return
    parser.feed_data(data)
    seen.status = parser.get_status_code()
