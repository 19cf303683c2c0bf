"""How a gateway ends (field cases B18, B29): nothing new, what is open goes on for a while, then everybody left is told.

| phase | becomes | when |
|---|---|---|
| SERVING | ANNOUNCED | told to stop: /readyz says so, every answer is its connection's last |
| ANNOUNCED | DRAINING | the notice is over: the listener and idle connections are closed |
| DRAINING | OVER | nothing is open any more |
| DRAINING | CUTTING | the grace is over |
| CUTTING | OVER | all have been told, or ``TELL_S`` and ``FLUSH_S`` are over |

A second signal makes it CUTTING from wherever it is. Asynchronous invocations go back into their queue at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import uvicorn
from starlette.types import Scope, Send

from standby.domain.errors import StandbyError, Unavailable
from standby.gateway.http import send_bytes, send_error
from standby.gateway.public_port import PublicProtocol
from standby.sagemaker.runtime import answers
from standby.sagemaker.runtime.routes import PREFIX
from standby.sagemaker.shapes.faults import error_answer

_log = logging.getLogger(__name__)

# With the closing of the rest (``standby.gateway.main``) less than the two seconds that a stop may take beyond its grace.
TELL_S: Final = 0.7
FLUSH_S: Final = 0.3
SAY_EVERY_S: Final = 5.0
_LOOK_S: Final = 0.05


class Phase(Enum):
    """Where a gateway is between serving and its end; the transition table is in the module's docstring."""

    SERVING = "serving"
    ANNOUNCED = "announced"
    DRAINING = "draining"
    CUTTING = "cutting"
    OVER = "over"


async def _nothing() -> None:
    """There is nothing to give back."""


@dataclass(frozen=True)
class Ending:
    """What the parts of a gateway have to do with its end.

    ``stopping`` is set when it begins; ``waiting`` counts requests without an engine; ``give_back`` returns asynchronous
    invocations to their queue.
    """

    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: Callable[[], int] = lambda: 0
    give_back: Callable[[], Awaitable[None]] = _nothing


@dataclass(frozen=True, slots=True)
class Drained:
    """How a drain ended: requests that got their answer after it began, and those that were told at the limit."""

    finished: int
    cut: int


class _State(uvicorn.server.ServerState):
    """What all connections of a server share."""

    draining = False


class GatewayServer(uvicorn.Server):
    """Uvicorn that ends as the module says; ``told_to_stop`` begins it, and the second call of it ends the patience.

    ``grace_s`` is how long open requests may go on, ``notice_s`` how long the listener stays open for load balancers that
    first have to see ``/readyz`` fail.
    """

    def __init__(self, config: uvicorn.Config, ending: Ending, *, grace_s: float | None = None, notice_s: float = 0.0) -> None:
        super().__init__(config)
        self.server_state = _State()
        self.phase = Phase.SERVING
        self.drained = Drained(0, 0)
        self._ending = ending
        self._grace_s = float(config.timeout_graceful_shutdown or 0) if grace_s is None else grace_s
        self._notice_s = notice_s
        self._hurry = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: uvicorn would raise the one that it got again at the end, before anything was put away."""
        yield

    def told_to_stop(self) -> None:
        """Begin to drain; told again: cut off what is open."""
        if self.should_exit:
            self._hurry.set()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, tell those who are left, and return when no connection is."""
        self._ending.stopping.set()
        giving_back = asyncio.ensure_future(self._ending.give_back())
        await self._announce()
        before = self.server_state.total_requests
        self._close_listeners(sockets or [])
        await self._drain()
        finished = self.server_state.total_requests - before
        cut = await self._cut()
        # What it does not manage now is done again, or left, where everything is put away.
        await asyncio.wait([giving_back], timeout=FLUSH_S)
        giving_back.cancel()
        self.phase = Phase.OVER
        self.drained = Drained(finished, cut)
        _log.info("drained: %d finished, %d cut", finished, cut)

    # ---- one after the other -----------------------------------------------------------------------------------

    async def _announce(self) -> None:
        self.phase = Phase.ANNOUNCED
        self.server_state.draining = True  # type: ignore[attr-defined] # it is ours
        for connection in self._connections():
            connection.answer_is_last()
        if self._notice_s > 0:
            _log.info("draining: /readyz says so; the listener closes in %g s", self._notice_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._notice_s):
                    await self._hurry.wait()

    def _close_listeners(self, sockets: list[socket.socket]) -> None:
        self.phase = Phase.DRAINING
        for server in self.servers:
            server.close()
        for listener in sockets:
            listener.close()
        for connection in self._connections():
            connection.shutdown()

    async def _drain(self) -> None:
        """Wait until every connection has ended, for as long as the grace allows."""
        loop = asyncio.get_running_loop()
        over = loop.time() + self._grace_s
        say_at = loop.time()
        while self._open and not self._hurry.is_set() and (now := loop.time()) < over:
            if now >= say_at and self.server_state.tasks:
                say_at = now + SAY_EVERY_S
                self._say(over - now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_LOOK_S, over - now)):
                    await self._hurry.wait()

    async def _cut(self) -> int:
        """End what is still open, telling its callers, and return how many requests that were."""
        self.phase = Phase.CUTTING
        cut = set(self.server_state.tasks)
        if cut:
            _log.warning(
                "%d requests are cut off: %s",
                len(cut),
                "told twice to stop" if self._hurry.is_set() else f"the grace of {self._grace_s:g} s is over",
            )
            for task in cut:
                task.cancel()
            # A client that does not read holds its task in the middle of its error.
            _, left = await asyncio.wait(cut, timeout=TELL_S)
            for task in left:
                task.cancel()
        await self._flush()
        return len(cut)

    async def _flush(self) -> None:
        """Let callers take what was written for them, for a moment."""
        for connection in self._connections():
            connection.transport.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                while self.server_state.connections:  # noqa: ASYNC110 - uvicorn keeps them in a plain set
                    await asyncio.sleep(_LOOK_S / 5)
        for connection in self._connections():
            connection.transport.abort()

    # ---- small things ------------------------------------------------------------------------------------------

    def _connections(self) -> list[PublicProtocol]:
        return [connection for connection in self.server_state.connections if isinstance(connection, PublicProtocol)]

    @property
    def _open(self) -> bool:
        return bool(self.server_state.tasks or self.server_state.connections)

    def _say(self, left_s: float) -> None:
        waiting = self._ending.waiting()
        _log.info("draining: %d open requests, %d waiting, %.0f s left", len(self.server_state.tasks), waiting, left_s)


async def cut_off(scope: Scope, send: Send) -> None:
    """Answer a request that was cut off before anybody knew what it was, in the words of the API that it asked.

    One whose answer has begun is left as it is: the server closes its connection, which shows that something lacks.
    """
    error = Unavailable("the gateway is shutting down", remedy="retry", retry_after_s=1.0)
    with contextlib.suppress(RuntimeError):  # as the server says that the answer has begun
        await _tell(scope, send, error)


async def _tell(scope: Scope, send: Send, error: StandbyError) -> None:
    path: str = scope["path"]
    if path != "/" and not path.startswith(PREFIX):
        await send_error(send, error)
        return
    told = answers.aws_error(error, answers.Place("", "", ""))
    status, headers, body = error_answer(told, protocol="rest-json", request_id=secrets.token_hex(16))
    await send_bytes(send, status, body, [pair for pair in headers if pair[0] not in (b"content-type", b"content-length")])
