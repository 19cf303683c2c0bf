"""One state for all viewers of a gateway: ticks of one loop, which runs only while somebody watches.

A tick makes nothing by itself. The first viewer who wants something of it has it made, and all others get the same objects:
rows, the overview of a scope, and the text of a change. A viewer keeps what it has told last, and tells the difference to
what is true now: whoever reads slowly gets fewer and larger changes, never a backlog. It is made in slices, and
requests are served in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pydantic_core

from standby.console.news import Rings
from standby.console.overview import Overview, diff, overview
from standby.console.rows import Desktop, Tables
from standby.console.slices import sliced
from standby.console.values import Facts, Moment, Row, Scope
from standby.host import tasks

FASTEST_S: Final = 0.25
SLOWEST_S: Final = 10.0
# Whoever may not go on does not for longer, however slow.
_LONGEST_TICK_S: Final = 1.0
# Whoever asks again and again gets what was made so recently: nobody can have it made more often than twenty times a second.
FRESH_S: Final = 0.05
# Of the time of the loop that serves requests. Ten thousand endpoints take a tenth of a second: they are looked at once in one.
LARGEST_SHARE: Final = 0.1
# Ticks come a little late and viewers a little early.
_LEEWAY: Final = 0.9


@dataclass(slots=True)
class _Tick:
    """What was made for one tick, by scope, and how long that took; ``texts`` by the tick that a viewer knows."""

    number: int
    made_at: float
    moment: Moment
    tables: Tables
    took_s: float = 0.0
    seen: dict[Scope, Overview] = field(default_factory=dict)
    texts: dict[tuple[Scope, int], bytes] = field(default_factory=dict)


class _Known(NamedTuple):
    """What a viewer was told: not its tick, whose texts must not live as long as the slowest viewer takes to read."""

    number: int
    overview: Overview


_Step = Generator[None, None, tuple[bytes, _Known]]


@dataclass
class Feed:
    """``look`` returns, in slices, the platform as it is now, ``saved`` a scope's savings; ``clock`` is monotonic."""

    look: Callable[[], Generator[None, None, Facts]]
    saved: Callable[[Scope], Row]
    rings: Rings
    clock: Callable[[], float]
    _desktop: Desktop = field(default_factory=Desktop)
    _tick: _Tick | None = None
    _number: int = 0
    _paces: Counter[float] = field(default_factory=Counter)
    _ticked: asyncio.Event = field(default_factory=asyncio.Event)
    _joined: asyncio.Event = field(default_factory=asyncio.Event)
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)
    _loop: asyncio.Task[None] | None = None

    async def text(self, scope: Scope) -> bytes:
        """Return what a scope sees now, as JSON."""
        text, _ = await self._by_turns(self._step(scope, None, FRESH_S))
        return text

    async def watch(
        self, scope: Scope, every_s: float, still: Callable[[], bool], *, heartbeat_s: float
    ) -> AsyncGenerator[str, None]:
        """Yield server-sent events: the overview, then its changes, at most one each ``every_s``; until ``still`` is not.

        A comment shows that the stream is alive where nothing else did for ``heartbeat_s``.
        """
        self._join(every_s)
        try:
            text, known = await self._by_turns(self._step(scope, None))
            told_at = spoke_at = self.clock()
            yield _event("overview", text)
            while True:
                await self._ticked.wait()
                if not still():
                    return
                now = self.clock()
                if now - told_at >= every_s * _LEEWAY:
                    told_at = now
                    text, known = await self._by_turns(self._step(scope, known))
                    if text:
                        spoke_at = now
                        yield _event("change", text)
                # At its own pace: a slow viewer takes a silent stream for a dead one just as soon.
                if now - spoke_at >= heartbeat_s:
                    spoke_at = now
                    yield ": alive\n\n"
        finally:
            await self._leave(every_s)

    def wake(self) -> None:
        """Let all viewers look whether they may go on, at once."""
        self._ticked.set()
        self._ticked = asyncio.Event()

    @property
    def watched(self) -> bool:
        """Whether there is a viewer."""
        return self._paces.total() > 0

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _by_turns(self, step: _Step) -> tuple[bytes, _Known]:
        # One at a time: all viewers of a moment want the same.
        async with self._making:
            told, took_s = await tasks.by_turns(step, self.clock)
            if self._tick is not None:
                self._tick.took_s += took_s
            return told

    def _present(self, oldest_s: float) -> Generator[None, None, _Tick]:
        """Return the present state, made anew where it is older than that; the fastest viewers share one."""
        now = self.clock()
        if self._tick is None or now - self._tick.made_at >= max(oldest_s, self._tick.took_s / LARGEST_SHARE):
            facts = yield from self.look()
            yield
            tables = yield from self._desktop.lay_out(facts)
            self._number += 1
            self._tick = _Tick(self._number, now, facts.moment, tables)
            yield
        return self._tick

    def _seen(self, scope: Scope, tick: _Tick) -> Generator[None, None, Overview]:
        seen = tick.seen.get(scope)
        if seen is None:
            news, savings = self.rings.of(scope), self.saved(scope)
            yield
            seen = tick.seen[scope] = overview(tick.moment, scope, tick.tables, news, savings)
            yield
        return seen

    def _text(self, scope: Scope, tick: _Tick, after: Overview, before: _Known | None) -> Generator[None, None, bytes]:
        """Return the overview, or what has changed since ``before``; nothing where nothing has."""
        key = (scope, 0 if before is None else before.number)
        text = tick.texts.get(key)
        if text is None:
            content = after.as_json() if before is None else diff(before.overview, after)
            yield
            text = b"" if len(content) == 1 else (yield from _encoded(content))
            tick.texts[key] = text
        return text

    def _step(self, scope: Scope, known: _Known | None, oldest_s: float = FASTEST_S * _LEEWAY) -> _Step:
        """Return, in slices, what a viewer is told now, and what it knows then."""
        tick = yield from self._present(oldest_s)
        seen = yield from self._seen(scope, tick)
        text = yield from self._text(scope, tick, seen, known)
        return text, _Known(tick.number, seen)

    def _join(self, every_s: float) -> None:
        self._paces[every_s] += 1
        self._joined.set()
        if self._loop is None:
            self._loop = asyncio.get_running_loop().create_task(self._run())

    async def _leave(self, every_s: float) -> None:
        self._paces[every_s] -= 1
        self._paces += Counter()
        if not self.watched and self._loop is not None:
            loop, self._loop = self._loop, None
            await tasks.end([loop])
            # Nobody compares with it any more, and it may be large.
            self._tick, self._desktop = None, Desktop()

    async def _run(self) -> None:
        while True:
            self._joined.clear()
            try:
                # Who joins may be faster than all before.
                async with asyncio.timeout(min(_LONGEST_TICK_S, min(self._paces, default=_LONGEST_TICK_S))):
                    await self._joined.wait()
            except TimeoutError:
                self.wake()


def _encoded(content: Row) -> Generator[None, None, bytes]:
    """Return, in slices, an object as JSON: a new viewer's has ten megabytes where there are ten thousand endpoints."""
    members = []
    for name, value in content.items():
        if isinstance(value, list):
            pieces = []
            for some in sliced(value):
                pieces.append(_json(some)[1:-1])
                yield
            text = b"[%b]" % b",".join(pieces)
        else:
            text = _json(value)
        members.append(b'"%b":%b' % (name.encode(), text))
    return b"{%b}" % b",".join(members)


def _json(value: Any) -> bytes:
    return pydantic_core.to_json(value, inf_nan_mode="null")


def _event(kind: str, data: bytes) -> str:
    return f"event: {kind}\ndata: {data.decode()}\n\n"
