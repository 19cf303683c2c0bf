"""Awaitables run from inside a protocol callback, without a task for each.

A task costs two trips through the event loop. An ASGI ``send`` almost never has to wait (only when the client's socket is
full), so the relay steps it where the bytes arrive; when it does have to wait, ``Inline`` follows the future it waits for.
What is run like this must not ask for the current task (``asyncio.timeout``, anyio's primitives): uvicorn's own ``send``
and ``receive`` and plain wrappers around them do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final


class _Done:
    """An awaitable that is done."""

    def __await__(self) -> Generator[Any, None, None]:
        return iter(())  # type: ignore[return-value] # awaiting takes any iterator, and this one keeps no state


DONE: Final = _Done()


class Inline:
    """One awaitable on its way; ``on_done(value, error)`` is called when it has finished, never from inside ``run``."""

    __slots__ = ("_blocker", "_on_done", "_steps")

    def __init__(self, steps: Generator[Any, Any, Any], blocker: Any, on_done: Callable[[Any, Exception | None], None]) -> None:
        self._steps = steps
        self._on_done = on_done
        self._blocker: asyncio.Future[Any] | asyncio.Handle | None = None
        self._follow(blocker)

    @staticmethod
    def run(awaitable: Awaitable[Any], on_done: Callable[[Any, Exception | None], None]) -> tuple[bool, Any, Inline | None]:
        """Step the awaitable. Returns (True, value, None) when it finished at once, else (False, None, the rest of it).

        What it raises at once is raised here.
        """
        if awaitable is DONE:
            return True, None, None
        steps = awaitable.__await__()
        try:
            blocker = next(steps)
        except StopIteration as done:
            return True, done.value, None
        return False, None, Inline(steps, blocker, on_done)

    def cancel(self) -> None:
        """Close it where it stands; ``on_done`` is not called."""
        blocker, self._blocker = self._blocker, None
        if isinstance(blocker, asyncio.Handle):
            blocker.cancel()
        elif blocker is not None:
            blocker.remove_done_callback(self._step)
        self._steps.close()

    def _follow(self, blocker: Any) -> None:
        if blocker is None:  # a bare yield: asyncio.sleep(0)
            self._blocker = asyncio.get_running_loop().call_soon(self._step, None)
            return
        # The mark by which a future knows that it was awaited; a task clears it in the same way.
        blocker._asyncio_future_blocking = False  # noqa: SLF001 - the only way, and the same in asyncio and uvloop
        blocker.add_done_callback(self._step)
        self._blocker = blocker

    def _step(self, _: object) -> None:
        self._blocker = None
        try:
            blocker = next(self._steps)
        except StopIteration as done:
            self._on_done(done.value, None)
        except asyncio.CancelledError:
            self._on_done(None, ConnectionError("the awaited operation was cancelled"))
        except Exception as error:  # noqa: BLE001 - handed to the owner, who raises it in its task
            self._on_done(None, error)
        else:
            self._follow(blocker)
