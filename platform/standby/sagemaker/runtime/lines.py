"""An engine's stream of completion events, written anew in LMI's or TGI's lines. Pure, incremental, bounded.

The engine's events may be cut anywhere, also inside a character. Each token goes out as soon as its event is whole; the
line that ends the answer waits for the engine's own end, so that a stream that broke off never looks like a short answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pydantic_core

from standby.sagemaker.runtime.dialects import Dialect, Family, Lines
from standby.sagemaker.runtime.forms import reason

MAX_EVENT: Final = 1024 * 1024
# What ends an event.
ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


@dataclass(slots=True)
class LineWriter:
    """``feed`` the engine's bytes, ``end`` once when they are complete; ``failure`` says why the answer is no whole one.

    ``prefix`` is put before the whole text (``return_full_text``); ``max_text`` bounds the text in characters.
    """

    dialect: Dialect
    max_text: int
    prefix: str = ""
    failure: str | None = None
    _buffer: bytearray = field(default_factory=bytearray)
    _searched: int = 0
    _text: list[str] = field(default_factory=list)
    _length: int = 0
    _tokens: int = 0
    _usage: int | None = None
    _reason: object = None
    _last_token: dict[str, Any] | None = None

    def feed(self, data: bytes) -> bytes:
        """Return the lines that these bytes complete."""
        if self.failure is not None:
            return b""
        self._buffer += data
        lines = b"".join(self._line_of(event) for event in self._events())
        if len(self._buffer) > MAX_EVENT:
            self._fail(f"the engine sent an event of more than {MAX_EVENT} bytes")
        return lines

    def end(self) -> bytes:
        """Return the line that ends the answer; nothing, and a ``failure``, where the engine had not come to an end."""
        if self.failure is None and self._reason is None:
            self._fail("the engine ended its stream without a finish reason")
        if self.failure is not None:
            return b""
        token = self._last_token or self._token("", {})
        details = {
            "finish_reason": reason(self._reason),
            "generated_tokens": self._tokens if self._usage is None else self._usage,
        }
        more = {"seed": None} if self.dialect.family is Family.TGI else {"inputs": None}
        return self._write(token, {"generated_text": self.prefix + "".join(self._text), "details": {**details, **more}})

    def error(self, message: str, kind: str) -> bytes:
        """Return the dialect's line for an answer that broke off."""
        if self.dialect.family is Family.TGI:
            return self._frame({"error": message, "error_type": kind})
        token = {"id": -1, "text": "", "log_prob": -1, "special_token": True}
        return self._frame({"token": token, "error": message, "code": kind, "details": {"finish_reason": "error"}})

    # ---- inside ------------------------------------------------------------------------------------------------

    def _events(self) -> Iterator[bytes]:
        while True:
            ends = [(at, len(mark)) for mark in ENDS if (at := self._buffer.find(mark, self._searched)) >= 0]
            if not ends:
                # The longest mark may have begun; what lies before it is not searched again.
                self._searched = max(0, len(self._buffer) - 3)
                return
            at, size = min(ends)
            event = bytes(self._buffer[:at])
            del self._buffer[: at + size]
            self._searched = 0
            yield event

    def _line_of(self, event: bytes) -> bytes:
        data = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
        if not data or data == b"[DONE]" or self.failure is not None:
            return b""
        try:
            content = pydantic_core.from_json(data)
        except ValueError:
            self._fail("the engine sent an event that is not JSON")
            return b""
        if not isinstance(content, dict):
            self._fail("the engine sent an event that is no JSON object")
            return b""
        return self._take(content)

    def _take(self, content: Mapping[str, Any]) -> bytes:
        if content.get("error"):
            error = content["error"]
            said = error.get("message", "") if isinstance(error, dict) else error
            self._fail(str(said)[:1000] or "the engine reported an error")
            return b""
        usage = content.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self._usage = usage["completion_tokens"]
        choices = content.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return b""
        choice = choices[0]
        text = str(choice.get("text") or "")
        self._length += len(text)
        if self._length > self.max_text:
            self._fail(f"the answer is longer than {self.max_text} characters")
            return b""
        self._text.append(text)
        token = self._token(text, choice)
        if choice.get("finish_reason") is not None:
            # It goes out with the line that ends the answer, after the engine has said how many tokens it was.
            self._reason = choice["finish_reason"]
            self._last_token = token
            self._tokens += bool(text)
            return b""
        if not text:
            return b""
        self._tokens += 1
        return self._write(token, {})

    def _token(self, text: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        """Return a token; its id and probability are null where the engine does not tell them."""
        identity, probability = _said_of_token(choice.get("logprobs"))
        if self.dialect.family is Family.TGI:
            return {"id": identity, "text": text, "logprob": probability, "special": False}
        return {"id": identity, "text": text, "log_prob": probability}

    def _write(self, token: Mapping[str, Any], more: Mapping[str, Any]) -> bytes:
        if self.dialect.family is Family.TGI:
            return self._frame({"index": self._tokens, "token": token, "generated_text": None, "details": None, **more})
        return self._frame({"token": token, **more})

    def _frame(self, content: Mapping[str, Any]) -> bytes:
        line = pydantic_core.to_json(content)
        return b"data:" + line + b"\n\n" if self.dialect.lines is Lines.SSE else line + b"\n"

    def _fail(self, why: str) -> None:
        self.failure = why
        self._buffer.clear()
        self._searched = 0


def _said_of_token(logprobs: object) -> tuple[int | None, float | None]:
    """Return id and log probability from either of the two forms that engines answer ``logprobs`` in."""
    if not isinstance(logprobs, dict):
        return None, None
    content, plain = logprobs.get("content"), logprobs.get("token_logprobs")
    if isinstance(content, list) and content and isinstance(content[0], dict):
        return content[0].get("id"), content[0].get("logprob")
    if isinstance(plain, list) and plain:
        return None, plain[0]
    return None, None
