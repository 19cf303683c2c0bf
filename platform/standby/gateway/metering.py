"""What a request used: an ASGI ``send`` between the relay and whoever writes the answer, and the facts it leaves behind.

An event stream passes through whole events at a time, each as soon as it is complete, byte for byte, but for three things:
the usage chunk that the caller did not ask for, an engine's own error, and an end that is none. The last two are raised as
AnswerBroken, so that whoever frames the answer says so in its dialect, and no ``[DONE]`` follows (field cases B26, B51).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple

import pydantic_core

from standby.domain.ask import NOTHING, Ask
from standby.gateway.inline import DONE
from standby.sagemaker.runtime.asks import BYTES_PER_TOKEN
from standby.sagemaker.runtime.contract import AnswerBroken, Message, Send
from standby.sagemaker.runtime.lines import ENDS
from standby.sagemaker.runtime.outlets import FAULT, own_bytes

# An event that is larger goes out in pieces, as it comes.
MAX_HELD: Final = 1024 * 1024
# In a whole answer the usage stands at the end; only log probabilities of a prompt stand behind it.
MAX_TAIL: Final = 16 * 1024
MAX_REASON: Final = 1000

# Inside a JSON string a quote is escaped, so none of these can be part of a generated text.
_USAGE: Final = b'"usage"'
_ERROR: Final = b'"error"'
_END: Final = b"\n\n"
_DONE: Final = b"[DONE]"
_NO_END: Final = "the engine ended its stream without a finish reason and without [DONE]"


class Usage(NamedTuple):
    """Tokens; ``estimated``: counted events and bytes, where the engine did not come to say it."""

    prompt: int
    completion: int
    estimated: bool


class Meter:
    """One request's; whatever attempts it takes, one of them answers. ``whole``: the answer came to its proper end.

    ``asked`` is for the dispatcher to set once an engine may have begun: before that nothing was used. ``first_event_at``,
    ``over_at``: when a stream's first event was whole and when its proper end came, by ``clock``; None: not yet.
    ``on_start`` is called when the answer begins.
    """

    __slots__ = (
        "_ask",
        "_before",
        "_clock",
        "_events",
        "_held",
        "_last",
        "_send",
        "_status",
        "_strips",
        "_told",
        "asked",
        "events",
        "first_event_at",
        "on_start",
        "over_at",
        "whole",
    )

    def __init__(self, send: Send, ask: Ask = NOTHING, clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._ask = ask
        self._clock = clock
        self._strips = ask.stream and not ask.wants_usage
        self._status = 0
        self.events = False
        self._events = 0
        self._held = b""
        self._before = self._last = b""
        self._told: Usage | None = None
        self.asked = False
        self.whole = False
        self.first_event_at: float | None = None
        self.over_at: float | None = None
        self.on_start: Callable[[], None] | None = None

    def __call__(self, message: Message) -> Awaitable[None]:
        """Take one message of the answer (ASGI). Raises AnswerBroken, at once or when awaited."""
        if message["type"] == "http.response.start":
            return self._start(message)
        data: bytes = message["body"]
        if not self.events:
            if data:
                self._before, self._last = self._last, data
            self.whole = not message.get("more_body", False) and FAULT not in message
            return self._send(message)
        if (
            not self._held
            and data[-2:] == _END
            and _USAGE not in data
            and _ERROR not in data
            and message.get("more_body", False)
            and FAULT not in message
        ):
            if not self._events:
                self.first_event_at = self._clock()
            self._events += data.count(_END)
            self._before, self._last = self._last, data
            return self._send(message)
        return self._carefully(message, data)

    def pace(self) -> float | None:
        """Return the seconds that each token after the first one took, of a whole stream; None: it had no second one."""
        if self.first_event_at is None or self.over_at is None:
            return None
        tokens = self._events if self._told is None else self._told.completion
        return (self.over_at - self.first_event_at) / (tokens - 1) if tokens > 1 else None

    def usage(self) -> Usage:
        """Return what was used up to now."""
        if self._told is not None:
            return self._told
        if self._status >= 400 or not (self.asked or self._status):
            return Usage(0, 0, estimated=False)
        if not self.events and self.whole and (told := _usage_of_whole(self._before, self._last)) is not None:
            self._told = told
            return told
        prompt = -(-self._ask.prompt_bytes // BYTES_PER_TOKEN)
        return Usage(prompt, self._events, estimated=True)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _start(self, message: Message) -> Awaitable[None]:
        self._status = message["status"]
        if self.on_start is not None:
            self.on_start()
        if self._status < 400:
            for name, value in message["headers"]:
                if name == b"content-type":
                    self.events = value[:17].lower() == b"text/event-stream"
                    break
        return self._send(message)

    def _carefully(self, message: Message, data: bytes) -> Awaitable[None]:
        """Take what may hold more or less than whole events of plain tokens."""
        if FAULT in message:
            return self._send({**message, "body": self._before_fault(message, data)})
        more = message.get("more_body", False)
        data = self._held + data
        cut = _last_end(data)
        whole, self._held = data[:cut], data[cut:]
        kept, failure = self._kept(whole)
        if failure is None and len(self._held) > MAX_HELD:
            self._count(self._held)
            kept, self._held = kept + self._held, b""
        if failure is None and not more:
            failure = self._ending()
            if failure is None:
                kept += self._held
                self.whole = True
                self.over_at = self._clock()
        if failure is not None:
            return self._broken(kept, failure)
        if not kept and more:
            return DONE
        return self._send({"type": "http.response.body", "body": kept, "more_body": more})

    def _kept(self, whole: bytes) -> tuple[bytes, str | None]:
        """Return what of these events goes on, and what the engine's own error says, if there is one among them."""
        if _USAGE not in whole and _ERROR not in whole:
            self._count(whole)
            return whole, None
        kept: list[bytes] = []
        for event in _events(whole):
            content = _content(event)
            error = content.get("error")
            if error:
                return b"".join(kept), _said(error)
            if self._strips_usage(content):
                continue
            self._count(event)
            kept.append(event)
        return b"".join(kept), None

    def _strips_usage(self, content: dict[str, Any]) -> bool:
        """Note the usage that an event tells; return whether the event is nothing but that, and not for the caller."""
        usage = content.get("usage")
        if not isinstance(usage, dict):
            return False
        prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if isinstance(prompt, int) and isinstance(completion, int):
            self._told = Usage(prompt, completion, estimated=False)
        return self._strips and content.get("choices") == []

    def _count(self, events: bytes) -> None:
        if not events:
            return
        whole = events.count(_END) or sum(events.count(end) for end in ENDS)
        if whole and not self._events:
            self.first_event_at = self._clock()
        self._events += whole
        self._before, self._last = self._last, events

    def _ending(self) -> str | None:
        """Return why the engine's end is none, or None where it is one."""
        if not self._ask.stream:
            return None
        rest = self._held
        content = _content(rest) if rest else {}
        if content.get("error"):
            return _said(content["error"])
        end = self._before + self._last + rest
        if _DONE in end or any(_finished(_content(event)) for event in _events(end)):
            return None
        return _NO_END

    def _before_fault(self, message: Message, data: bytes) -> bytes:
        """Return the last message's body without the event in whose middle the stream broke off: it can't be read."""
        own = own_bytes(message)
        kept: list[bytes] = []
        for event in _events(self._held + own):
            content = _content(event)
            if content.get("error") or self._strips_usage(content) or not (content or _DONE in event or b"data" not in event):
                continue
            self._count(event)
            kept.append(event)
        self._held = b""
        return b"".join(kept) + data[len(own) :]

    async def _broken(self, kept: bytes, failure: str) -> None:
        if kept:
            await self._send({"type": "http.response.body", "body": kept, "more_body": True})
        raise AnswerBroken(failure)


def _last_end(data: bytes) -> int:
    """Return where the last whole event of ``data`` ends."""
    return max((at + len(end) for end in ENDS if (at := data.rfind(end)) >= 0), default=0)


def _events(data: bytes) -> Iterator[bytes]:
    """Yield events with the empty line that ends each; what follows the last one is left out."""
    begin = 0
    while True:
        ends = [at + len(end) for end in ENDS if (at := data.find(end, begin)) >= 0]
        if not ends:
            return
        yield data[begin : min(ends)]
        begin = min(ends)


def _content(event: bytes) -> dict[str, Any]:
    """Return the JSON object of one event, also of one that lacks its framing; empty where it has none."""
    lines = [line for line in event.splitlines() if line and not line.startswith(b":")]
    framed = [line[5:] for line in lines if line.startswith(b"data:")]
    unframed = [line.removeprefix(b"error:") for line in lines]
    try:
        content = pydantic_core.from_json(b"\n".join(framed or unframed))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _finished(content: dict[str, Any]) -> bool:
    choices = content.get("choices")
    return isinstance(choices, list) and any(isinstance(one, dict) and one.get("finish_reason") for one in choices)


def _said(error: object) -> str:
    said = error.get("message", "") if isinstance(error, dict) else error
    return str(said)[:MAX_REASON] or "the engine reported an error"


def _usage_of_whole(before: bytes, last: bytes) -> Usage | None:
    """Return the usage in the end of a whole answer, which nobody parses for it."""
    tail = before[-MAX_TAIL:] + last if before and len(last) < MAX_TAIL else last
    at = tail.rfind(_USAGE)
    if at < 0:
        return None
    prompt, completion = _number(tail, b'"prompt_tokens"', at), _number(tail, b'"completion_tokens"', at)
    return None if prompt is None or completion is None else Usage(prompt, completion, estimated=False)


def _number(data: bytes, name: bytes, begin: int) -> int | None:
    """Return the whole number that a member has, of the first one of that name behind ``begin``."""
    at = data.find(name, begin)
    if at < 0:
        return None
    value = data.find(b":", at) + 1
    try:
        return int(data[value : value + 20].split(b",", 1)[0].split(b"}", 1)[0])
    except ValueError:
        return None
