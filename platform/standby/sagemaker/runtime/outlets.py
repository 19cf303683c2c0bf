"""Where an engine's answer goes: ASGI ``send`` callables that write it as the operation's clients expect it.

Each takes the messages of one answer as the relay sends them. An engine's own error is collected and raised as
ContainerAnswered once it is whole, so nothing has gone to the client by then. A message with ``fault`` is the relay's honest
end of a broken answer; the outlets that frame the answer themselves wait for ``broken`` instead and end it in their way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from standby.sagemaker.errors import AwsError
from standby.sagemaker.runtime import eventstream
from standby.sagemaker.runtime.answers import Place, model_error
from standby.sagemaker.runtime.contract import Answer, AnswerBroken, ContainerAnswered, Headers, Message, Send
from standby.sagemaker.runtime.lines import LineWriter

FAULT: Final = "fault"
STREAM_BROKEN: Final = "StreamBroken"
MAX_ERROR_BODY: Final = 64 * 1024
# How a door and the relay begin the event with which they end a broken event stream.
_ERROR_EVENT: Final = b'data: {"error": {'


class Outlet:
    """Passes an answer on as it is. ``started``: the client has got its head."""

    def __init__(self, send: Send) -> None:
        self.started = False
        self._send = send
        self._refusal: int | None = None
        self._refused = b""

    def __call__(self, message: Message) -> Awaitable[None]:
        """Take one message of the answer."""
        return self._take(message)

    async def _take(self, message: Message) -> None:
        if self._refusal is not None:
            self._collect(message)
        elif message["type"] != "http.response.start":
            await self.body(message)
        elif message["status"] >= 400:
            self._refusal = message["status"]
        else:
            self.started = True
            await self.start(message)

    def start(self, message: Message) -> Awaitable[None]:
        """Take the head of a good answer."""
        return self._send(message)

    def body(self, message: Message) -> Awaitable[None]:
        """Take a piece of its body."""
        return self._send(message)

    async def broken(self, error: AwsError) -> None:
        """End an answer that broke off in its middle. As it is: what is incomplete stays so, and the connection closes."""

    async def _finish(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    def _collect(self, message: Message) -> None:
        assert self._refusal is not None
        room = MAX_ERROR_BODY - len(self._refused)
        self._refused += message.get("body", b"")[: max(0, room)]
        if not message.get("more_body", False):
            raise ContainerAnswered(self._refusal, self._refused)


class Captured(Outlet):
    """Keeps the whole answer, up to ``limit`` bytes; ``place`` is for the error beyond it."""

    def __init__(self, limit: int, place: Place) -> None:
        super().__init__(_nowhere)
        self._limit = limit
        self._place = place
        self._head: Message = {}
        self._body = bytearray()

    async def start(self, message: Message) -> None:
        """Keep the head; nothing has gone to any client."""
        self.started = False
        self._head = message

    async def body(self, message: Message) -> None:
        """Keep a piece."""
        self._body += message.get("body", b"")
        if len(self._body) > self._limit:
            raise model_error(500, f"the answer is larger than the limit of {self._limit} bytes", self._place)

    def answer(self) -> Answer:
        """Return what was kept, once it is whole."""
        headers: Headers = [pair for pair in self._head["headers"] if pair[0] != b"content-length"]
        return Answer(self._head["status"], headers, bytes(self._body))


class Events(Outlet):
    """Writes the answer as an event stream: one PayloadPart for each piece, the engine's bytes as they are.

    With a ``heartbeat`` (seconds), ``open`` sends the head, ``headers``, before there is an answer, and an empty PayloadPart
    goes out whenever nothing else has for that long; errors must then ride in the stream.
    """

    def __init__(self, send: Send, headers: Headers, monotonic: Callable[[], float], heartbeat: float | None = None) -> None:
        super().__init__(send)
        self._headers = headers
        self._monotonic = monotonic
        self._heartbeat = heartbeat
        self._sending = False
        self._sent_at = 0.0
        self._over = False
        self._beats: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Send the head at once and let the heart beat; the answer's own head can add nothing any more."""
        assert self._heartbeat is not None
        self.started = True
        await self._head(self._headers)
        await self._frame(eventstream.HEARTBEAT)
        self._beats = asyncio.create_task(self._beat(self._heartbeat))

    async def start(self, message: Message) -> None:
        """Send the head, with the engine's content type under the name that clients of streams read."""
        if self._beats is not None:
            return
        named = [
            (b"x-amzn-sagemaker-content-type" if name == b"content-type" else name, value)
            for name, value in message["headers"]
            if name != b"content-length"
        ]
        await self._head(named)

    async def body(self, message: Message) -> None:
        """Send a piece; the last one ends the stream, unless it says that the answer was broken off."""
        data = own_bytes(message)
        if FAULT in message or message.get("more_body", False):
            await self._part(data)
        else:
            self.close()
            await self._finish(eventstream.part(data) if data else b"")

    async def broken(self, error: AwsError) -> None:
        """End the stream with an exception frame: without one, clients take it for complete."""
        if self._over:
            return
        self.close()
        if error.code == "ModelError":
            code = "ModelInvocationTimeExceeded" if error.members.get("OriginalStatusCode") == 0 else STREAM_BROKEN
            frame = eventstream.exception("ModelStreamError", str(error.message), code)
        else:
            frame = eventstream.exception("InternalStreamFailure", f"{error.code}: {error.message}")
        await self._finish(frame)

    def close(self) -> None:
        """Stop the heart; nothing but the last frame may follow."""
        self._over = True
        if self._beats is not None:
            self._beats.cancel()

    async def _head(self, headers: Headers) -> None:
        start = [(b"content-type", eventstream.CONTENT_TYPE), *headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": start})

    async def _part(self, data: bytes) -> None:
        if data:
            await self._frame(eventstream.part(data))

    async def _frame(self, frame: bytes) -> None:
        self._sending = True
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        self._sending = False
        if self._heartbeat is not None:
            self._sent_at = self._monotonic()

    async def _beat(self, every: float) -> None:
        while True:
            due = self._sent_at + every - self._monotonic()
            if due > 0:
                await asyncio.sleep(due)
            elif self._sending:
                await asyncio.sleep(every)
            else:
                await self._frame(eventstream.HEARTBEAT)


class Translated(Outlet):
    """Writes an engine's event stream in lines of another dialect, into another outlet."""

    def __init__(self, writer: LineWriter, into: Outlet) -> None:
        super().__init__(into)
        self._writer = writer
        self._into = into

    async def start(self, message: Message) -> None:
        """Send the head with the dialect's content type."""
        kept = [pair for pair in message["headers"] if pair[0] not in (b"content-type", b"content-length")]
        headers = [(b"content-type", self._writer.dialect.content_type), *kept]
        await self._into({"type": "http.response.start", "status": message["status"], "headers": headers})

    async def body(self, message: Message) -> None:
        """Send the lines that are complete; the end only when the engine had come to its own. Raises AnswerBroken."""
        lines = self._writer.feed(own_bytes(message))
        whole = FAULT not in message and not message.get("more_body", False)
        if whole:
            lines += self._writer.end()
        if whole and self._writer.failure is None:
            await self._into({"type": "http.response.body", "body": lines, "more_body": False})
            return
        if lines:
            await self._into({"type": "http.response.body", "body": lines, "more_body": True})
        if self._writer.failure is not None and FAULT not in message:
            raise AnswerBroken(self._writer.failure)

    async def broken(self, error: AwsError) -> None:
        """Say so in the dialect's own words, or by the event stream's exception around them."""
        if isinstance(self._into, Events):
            await self._into.broken(error)
        else:
            await self._finish(self._writer.error(str(error.message), error.code))


def own_bytes(message: Message) -> bytes:
    """Return the engine's own bytes: without the event by which a door or the relay says that it broke off."""
    data: bytes = message.get("body", b"")
    end = data.rfind(_ERROR_EVENT) if FAULT in message else -1
    return data if end < 0 else data[:end]


async def _nowhere(_message: Message) -> None:
    """What is captured goes to no client."""
