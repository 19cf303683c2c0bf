"""An engine's event stream for OpenAI's clients: its bytes as they are, comments while it is silent, errors in band.

A quiet stream is cut by whatever stands between us and the client (field case B29). So after ``heartbeat_s`` without a byte
the head goes out, and then a comment whenever nothing else has for that long, only between two events. From then on the
status is told, and every error is one event, without a ``[DONE]`` after it (field case B26). What the engine's own head would
have added is lost to such an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pydantic_core

from standby.sagemaker.errors import AwsError
from standby.sagemaker.runtime.answers import openai_answer
from standby.sagemaker.runtime.contract import AnswerBroken, Headers, Message, Send
from standby.sagemaker.runtime.lines import ENDS
from standby.sagemaker.runtime.outlets import Outlet
from standby.wire.sse import EVENT_STREAM

# Proxies that collect an answer before they pass it on would keep the comments too.
_EARLY: Final[Headers] = [(b"content-type", EVENT_STREAM), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
# The loop's timers may be early by their resolution.
_RESOLUTION_S: Final = 0.002


class OpenAIOutlet(Outlet):
    """The last outlet before a client of OpenAI's dialect; ``close`` it at the end.

    ``headers`` are those of an early head. ``heartbeat_s`` None: no comments, no early head. ``passes_errors``: an engine's
    own error goes on untouched, while it still can, and is not raised as ContainerAnswered.
    """

    def __init__(
        self,
        send: Send,
        headers: Headers,
        monotonic: Callable[[], float],
        heartbeat_s: float | None,
        *,
        passes_errors: bool = False,
    ) -> None:
        super().__init__(send)
        self._headers = headers
        self._monotonic = monotonic
        self._passes_errors = passes_errors
        self._every = heartbeat_s
        self._events = True
        self._answering = self._early = self._over = False
        self._last = b""
        self._began = self._sent_at = monotonic()
        self._beat: asyncio.Task[None] | None = None
        self._timer = None if heartbeat_s is None else asyncio.get_running_loop().call_later(heartbeat_s, self._tick)

    def __call__(self, message: Message) -> Awaitable[None]:
        """Take one message of the answer; a plain function, since each token pays."""
        if self._refusal is None and message["type"] == "http.response.body":
            if not message.get("more_body", False):
                self._ends()
            else:
                self._sent_at = self._monotonic()
                self._last = message["body"]
            return self._send(message)
        if self._passes_errors and not self._early and message["type"] == "http.response.start" and message["status"] >= 400:
            self._ends()
            self.started = True
            return self._send(message)
        return self._take(message)

    async def start(self, message: Message) -> None:
        """Send the head of a good answer, unless one has gone out already. Raises AnswerBroken where it does not fit that."""
        self._events = any(name == b"content-type" and value.startswith(EVENT_STREAM) for name, value in message["headers"])
        if self._early:
            if not self._events:
                raise AnswerBroken("the engine did not answer with a stream")
        elif not self._events:
            self._ends()
        self._answering = True
        self._sent_at = self._monotonic()
        if not self._early:
            await self._send(message)

    async def broken(self, error: AwsError) -> None:
        """End an answer that has begun with one error event."""
        await self.fail(openai_answer(error)[2])

    async def fail(self, envelope: bytes) -> None:
        """End an answer that has begun with an event of this JSON, ``{"error": …}``; what is no stream stays incomplete."""
        if self._over or not self._events:
            return
        self._ends()
        boundary = b"" if not self._last or self._last.endswith(ENDS) else b"\n\n"
        await self._finish(boundary + b"data: " + envelope + b"\n\n")

    def close(self) -> None:
        """Send no more comments."""
        self._ends()

    # ---- inside ------------------------------------------------------------------------------------------------

    def _ends(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._beat is not None:
            # Before the last message goes out: behind it nothing may come.
            self._beat.cancel()
            self._beat = None

    def _tick(self) -> None:
        assert self._every is not None
        due = self._sent_at + self._every - self._monotonic()
        if due <= _RESOLUTION_S:
            self._sent_at = self._monotonic()
            self._beat = asyncio.create_task(self._comment())
            due = self._every
        self._timer = asyncio.get_running_loop().call_later(due, self._tick)

    async def _comment(self) -> None:
        if not self.started:
            self.started = self._early = True
            await self._send({"type": "http.response.start", "status": 200, "headers": [*_EARLY, *self._headers]})
        if self._last and not self._last.endswith(ENDS):
            return
        waited = self._monotonic() - self._began
        told = b"the engine is silent" if self._answering else b"waiting for the first token"
        comment = b": standby %b, %d s since the request came\n\n" % (told, waited)
        await self._send({"type": "http.response.body", "body": comment, "more_body": True})


def envelope_of(status: int, body: bytes) -> bytes:
    """Return an engine's own error as OpenAI's clients read one: as it is where it has that form already."""
    try:
        content = pydantic_core.from_json(body)
    except ValueError:
        content = None
    if isinstance(content, dict) and isinstance(content.get("error"), dict):
        return pydantic_core.to_json(content)
    kind = "invalid_request_error" if status < 500 else "server_error"
    message = body.decode("utf-8", "replace")[:1000] or f"the engine answered {status}"
    error = {"message": message, "type": kind, "param": None, "code": f"engine_{status // 100}xx"}
    return pydantic_core.to_json({"error": error})
