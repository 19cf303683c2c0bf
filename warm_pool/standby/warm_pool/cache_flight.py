"""One download that any number of callers wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

from standby.artifacts.fetch import Progress
from standby.warm_pool.cache_arrival import OnPath


@dataclass(eq=False)
class Listener:
    """One waiting caller."""

    progress: Progress
    on_path: OnPath | None


class Flight:
    """A download under way; ``listeners`` are told of its progress and of each file."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.listeners: list[Listener] = []
        self.task: asyncio.Task[Path]
        self._complete: list[Path] = []

    def start(self, work: Coroutine[None, None, Path], landed: Callable[[Flight], None]) -> None:
        """Begin; ``landed`` is called at the end, whatever it is."""
        self.task = asyncio.create_task(work, name=f"fetch {self.digest[:12]}")
        self.task.add_done_callback(lambda _: self._ended(landed))

    def join(self, listener: Listener) -> None:
        """Take one more listener; the files that are whole already are told at once."""
        self.listeners.append(listener)
        if listener.on_path is not None:
            for path in self._complete:
                listener.on_path(path)

    def report(self, done: int, total: int) -> None:
        """Tell every listener of the progress."""
        for listener in self.listeners:
            listener.progress(done, total)

    def file_came(self, path: Path) -> None:
        """Tell every listener, also those who come later, of a whole file."""
        self._complete.append(path)
        for listener in self.listeners:
            if listener.on_path is not None:
                listener.on_path(path)

    def _ended(self, landed: Callable[[Flight], None]) -> None:
        landed(self)
        if not self.task.cancelled():
            self.task.exception()  # seen, also when every caller was cancelled before
