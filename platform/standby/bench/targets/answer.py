"""Reading an answer while it comes: tokens and their moments, and whether its end is one."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, Protocol

import pydantic_core
from botocore.eventstream import EventStreamBuffer, ParserError

from standby.bench.targets.words import class_of, original_status, plain, said, said_in, text_of_bytes
from standby.bench.values import ErrorClass
from standby.wire.sse import EVENT_STREAM

MOST_HELD: Final = 64 * 1024 * 1024
# What is held of a line is copied with each piece that comes: a longer one would keep the generator from its other answers.
MOST_LINE: Final = 4 * 1024 * 1024
MOST_TOKENS: Final = 10_000_000
"""A usage beyond it is no count: one absurd answer must not be the run's tokens per second."""

_FRAMES: Final = b"application/vnd.amazon.eventstream"
_DONE: Final = b"[DONE]"
_TEXTS: Final = ("content", "reasoning_content", "reasoning", "tool_calls")


class Facts:
    """What is known of one answer's content so far; moments in seconds from the run's start."""

    __slots__ = ("completion", "error", "events", "finished", "first_token_s", "gaps", "last_token_s", "message", "prompt")

    def __init__(self) -> None:
        self.prompt: int | None = None
        self.completion: int | None = None
        self.first_token_s: float | None = None
        self.last_token_s = 0.0
        self.gaps: list[float] = []
        self.events = 0
        self.finished = False
        self.error = ""
        self.message = ""

    def token(self, now: float) -> None:
        """One event with text has come."""
        if self.first_token_s is None:
            self.first_token_s = now
        else:
            self.gaps.append(now - self.last_token_s)
        self.last_token_s = now
        self.events += 1

    def failed(self, error: ErrorClass, message: str) -> None:
        """The answer is none; the first reason stands."""
        if not self.error:
            self.error, self.message = error.value, plain(message)

    def used(self, content: dict[str, Any]) -> None:
        """Take the usage that a piece tells."""
        usage = content.get("usage")
        if isinstance(usage, dict):
            self.prompt = _count(usage.get("prompt_tokens"), self.prompt)
            self.completion = _count(usage.get("completion_tokens"), self.completion)


class Reader(Protocol):
    """Takes the body's bytes; never raises."""

    def feed(self, data: bytes, now: float, /) -> None:
        """Take bytes that have come at ``now``."""

    def end(self, now: float, /) -> None:
        """The body has come to its orderly end."""


def reader_of(status: int, headers: Mapping[bytes, bytes], facts: Facts) -> Reader:
    """Return the reader for an answer with this head."""
    if status // 100 != 2:
        return _Refusal(status, facts, headers.get(b"location", b""))
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        coding = headers[b"content-encoding"].decode("latin-1")
        facts.failed(ErrorClass.RUBBISH, f"the answer is compressed ({coding}), which was not asked for")
    media = headers.get(b"content-type", b"").lower()
    if media.startswith(_FRAMES):
        return _Frames(facts)
    if media.startswith((EVENT_STREAM, b"application/jsonlines", b"application/x-ndjson")):
        return Lines(facts)
    return _Whole(facts)


class Lines:
    """Server-sent events of OpenAI's kind, and lines of JSON as model servers on SageMaker write them.

    Read by lines: every server writes one ``data:`` line to an event. Comments, which keep a connection alive, are no tokens.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._held = b""
        self._openai = False
        self._failing = False  # the next data is an error's

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes that have come at ``now``."""
        lines = (self._held + data).split(b"\n")
        self._held = lines.pop()
        if len(self._held) > MOST_LINE:
            self._facts.failed(ErrorClass.RUBBISH, f"a line of the stream is longer than {MOST_LINE} bytes")
            self._held = b""
        for line in lines:
            if line[:5] == b"data:":
                self._data(line[5:].strip(), now)
            elif line[:1] == b"{":
                self._data(line.strip(), now)
            elif line[:6] == b"event:":
                self._failing = line[6:].strip() == b"error"
            elif line[:6] == b"error:":
                # llama.cpp's server has such lines, which no specification knows.
                self._facts.failed(ErrorClass.STREAM_ERROR, said_in(line[6:].strip()))

    def end(self, now: float) -> None:
        """The body has come to its orderly end."""
        if self._held:
            self.feed(b"\n", now)
        facts = self._facts
        if facts.error:
            return
        if not facts.events and not facts.finished:
            facts.failed(ErrorClass.EMPTY, "the stream ended without a token")
        elif self._openai and not facts.finished:
            facts.failed(ErrorClass.BROKEN_STREAM, "the stream ended without a finish reason and without [DONE]")
        elif not facts.events and not facts.completion:
            facts.failed(ErrorClass.EMPTY, "the stream came to its end without a token")

    def _data(self, data: bytes, now: float) -> None:
        facts = self._facts
        if self._failing:
            facts.failed(ErrorClass.STREAM_ERROR, said_in(data))
            return
        if data == _DONE:
            facts.finished = True
            return
        content = _object(data, "an event of the stream", facts)
        if content is None:
            return
        choices = content.get("choices")
        if isinstance(choices, list):
            self._openai = True
            for choice in choices:
                if isinstance(choice, dict):
                    self._choice(choice, now)
        else:
            self._servers_own(content, now)

    def _choice(self, choice: dict[str, Any], now: float) -> None:
        delta = choice.get("delta")
        if choice.get("text") or (isinstance(delta, dict) and any(delta.get(name) for name in _TEXTS)):
            self._facts.token(now)
        if choice.get("finish_reason"):
            self._facts.finished = True

    def _servers_own(self, content: dict[str, Any], now: float) -> None:
        """Take a piece as TGI and LMI containers stream it: ``{"token": {"text": …}}``, the last with the whole text."""
        facts = self._facts
        if isinstance(content.get("token"), dict):
            facts.token(now)
        if content.get("generated_text") is not None:
            facts.finished = True
        details = content.get("details")
        if isinstance(details, dict):
            facts.completion = _count(details.get("generated_tokens"), facts.completion)


class _Frames:
    """AWS's event stream: frames whose payloads together are the lines of the model server."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._lines = Lines(facts)
        self._buffer = EventStreamBuffer()
        self._held = 0

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes that have come at ``now``."""
        if self._facts.error:
            return
        self._held += len(data)
        try:
            self._buffer.add_data(data)
            for event in self._buffer:
                self._held -= event.prelude.total_length
                self._take(event, now)
        except (ParserError, struct.error, ValueError, KeyError, IndexError) as error:
            # botocore raises its own errors for wrong checksums and lengths, plain ones for headers that make no sense.
            self._facts.failed(ErrorClass.RUBBISH, f"a frame of the event stream cannot be read: {error}")

    def _take(self, event: Any, now: float) -> None:
        if event.headers.get(":message-type") == "event":
            self._lines.feed(event.payload, now)
            return
        name = event.headers.get(":exception-type") or event.headers.get(":error-code") or "error"
        self._facts.failed(ErrorClass.STREAM_ERROR, f"{name}: {said_in(event.payload)}")

    def end(self, now: float) -> None:
        """The body has come to its orderly end."""
        if self._held:
            self._facts.failed(ErrorClass.BROKEN_STREAM, "the event stream ended inside a frame")
        self._lines.end(now)


class _Held:
    """A body that is read at its end."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes, _now: float) -> None:
        """Take bytes."""
        self._size += len(data)
        if self._size <= MOST_HELD:
            self._parts.append(data)
        else:
            self._facts.failed(ErrorClass.RUBBISH, f"the answer is longer than {MOST_HELD} bytes")

    def end(self, _now: float) -> None:
        """The body is whole."""
        self._read(b"".join(self._parts))

    def _read(self, body: bytes) -> None:
        raise NotImplementedError


class _Whole(_Held):
    def _read(self, body: bytes) -> None:
        facts = self._facts
        if not body.strip():
            facts.failed(ErrorClass.EMPTY, "the body is empty")
            return
        content = _object(body, "the answer", facts)
        if content is None:
            return
        text = _text_of(content)
        if text is None:
            facts.failed(ErrorClass.RUBBISH, f"the answer has no generated text: {text_of_bytes(body)}")
        elif not text and not facts.completion:
            facts.failed(ErrorClass.EMPTY, "the generated text is empty")


class _Refusal(_Held):
    def __init__(self, status: int, facts: Facts, location: bytes) -> None:
        super().__init__(facts)
        self._status = status
        self._location = location

    def _read(self, body: bytes) -> None:
        status = original_status(self._status, body)
        # Not followed: what would be measured is another server.
        elsewhere = f" to {self._location.decode('latin-1')}" if self._location and status // 100 == 3 else ""
        self._facts.failed(class_of(status), f"HTTP {self._status}{elsewhere}: {said_in(body)}")


def _object(data: bytes, what: str, facts: Facts) -> dict[str, Any] | None:
    """Return an answer's JSON object, its usage noted; None where it is none or an error, which is noted instead."""
    try:
        content = pydantic_core.from_json(data)
    except ValueError:
        facts.failed(ErrorClass.RUBBISH, f"{what} is no JSON: {text_of_bytes(data)}")
        return None
    if isinstance(content, list) and content:
        content = content[0]
    if not isinstance(content, dict):
        facts.failed(ErrorClass.RUBBISH, f"{what} is no object: {text_of_bytes(data)}")
        return None
    if content.get("error"):
        facts.failed(ErrorClass.STREAM_ERROR, said(content))
        return None
    facts.used(content)
    return content


def _text_of(content: dict[str, Any]) -> str | None:
    if "generated_text" in content:
        return str(content["generated_text"] or "")
    choices = content.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    message = choices[0].get("message")
    if isinstance(message, dict):
        return "".join(str(message.get(name) or "") for name in _TEXTS)
    return str(choices[0]["text"] or "") if "text" in choices[0] else None


def _count(said: object, known: int | None) -> int | None:
    """Return a count of tokens that a server tells, or what is ``known`` where it is none."""
    valid = isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= MOST_TOKENS
    return said if valid else known  # type: ignore[return-value] # an int where it is valid
