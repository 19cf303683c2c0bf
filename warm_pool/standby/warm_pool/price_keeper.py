"""Keeps the node's prices and sizes: takes measurements from the agent, writes them to disk, announces them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from standby.domain.assignment import Assignment
from standby.domain.model import EngineKind
from standby.domain.prices import NodePrices
from standby.warm_pool.kept_file import read_kept, write_kept
from standby.warm_pool.measured import Sizes, StoredSizes
from standby.warm_pool.price_book import PriceBook
from standby.warm_pool.price_key import price_key
from standby.warm_pool.transitions import Observation

EVERY_S: Final = 5.0
PRICES_FILE: Final = "prices.json"
SIZES_FILE: Final = "measured.json"


@dataclass
class PriceKeeper:
    """Part of the agent's loop. ``announce`` is given what the node says of its prices, at most every five seconds."""

    node: str
    state_dir: Path
    wall: Callable[[], float]
    announce: Callable[[NodePrices], None]
    book: PriceBook = field(default_factory=PriceBook)
    sizes: Sizes = field(default_factory=Sizes)
    _flushed: int = 0
    """The revision of ``sizes`` that was written last."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _disk: threading.Lock = field(default_factory=threading.Lock)

    def load(self) -> None:
        """Take up what an earlier agent has measured. Blocks for the disk."""
        self.book = read_kept(self.state_dir / PRICES_FILE, PriceBook)
        self.sizes.kept.update(read_kept(self.state_dir / SIZES_FILE, StoredSizes).footprints)
        self._changed.set()

    def observed(self, assignment: Assignment, observation: Observation) -> None:
        """Take up one completed step of an instance."""
        self.book = self.book.observe(price_key(assignment), observation.step, observation.seconds, self.wall())
        self._changed.set()

    def hatched(self, engine: EngineKind, seconds: float) -> None:
        """Take up that a zygote is ready, so many seconds after its start."""
        self.book = self.book.observe_hatch(engine, seconds, self.wall())
        self._changed.set()

    def sized(self) -> None:
        """Take up that engines were looked at; most looks say nothing new, and then nothing is written."""
        if self.sizes.revision != self._flushed:
            self._changed.set()

    async def run(self) -> None:
        """Write and announce what changes, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.flush()
            await asyncio.sleep(EVERY_S)

    async def flush(self) -> None:
        """Write and announce now."""
        book, sizes, self._flushed = self.book, self.sizes.stored(), self.sizes.revision
        self.announce(book.announced(self.node, sizes.footprints, self.wall()))
        await asyncio.to_thread(self._write, book, sizes)

    def _write(self, book: PriceBook, sizes: StoredSizes) -> None:
        # A flush that was cancelled still writes in its thread: the next one must not write the same file beside it.
        with self._disk:
            write_kept(self.state_dir / PRICES_FILE, book)
            write_kept(self.state_dir / SIZES_FILE, sizes)
