"""The node's zygotes: hatched when an instance of their kind is wanted, replaced in time, ended when nobody is left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from standby.domain.errors import EngineStartFailed, StandbyError
from standby.domain.model import EngineKind
from standby.domain.node import Zygote as ZygoteRecord
from standby.host import tasks
from standby.runtime.children import StraySweep
from standby.runtime.zygote.host import Zygote
from standby.warm_pool.zygote_books import Books
from standby.warm_pool.zygote_rules import Fate, Verdict, ZygoteFacts, ZygoteLimits, back_off_s, judge

_log = logging.getLogger(__name__)

# After its memory was needed more elsewhere: the next climb may need it, too, and hatching costs seconds of a processor.
_PUSHED_OUT_S: Final = 60.0
# Of one that was never measured here: a pre-imported vLLM holds about 0.7 GiB.
_USUAL_BYTES: Final = 2**30


@dataclass
class _Nest:
    """The zygote of one engine kind, and who wants it. Belongs to the pool."""

    kind: EngineKind
    users: set[str] = field(default_factory=set)
    left_at: float = 0.0
    looked_at: float = 0.0
    current: Zygote | None = None
    version: str = ""
    """What was installed when ``current`` was hatched."""
    resident: int = 0
    hatching: bool = False
    hatch_s: float | None = None
    failure: str = ""
    failures: int = 0
    lacks_memory: bool = False
    """There is none as its memory is needed, or lacks: nothing is broken."""
    fork_ended: bool = False
    """Pages that a fork had shared are the zygote's alone now: it holds more than was last measured."""
    again: bool = False
    """Somebody starts: the pause after a want of memory is over."""
    pushed_out: bool = False
    """Its memory is needed more elsewhere: it is to end, whoever wants it."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, with each change of what the record says."""
    task: asyncio.Task[None] | None = None


class ZygotePool:
    """At most one ready zygote for each engine kind. Part of the agent's loop: called by its thread only."""

    def __init__(
        self,
        kinds: Iterable[EngineKind],
        make: Callable[[EngineKind], Zygote],
        *,
        installed_version: Callable[[EngineKind], str],
        limits: ZygoteLimits | None = None,
        books: Books | None = None,
        on_change: Callable[[EngineKind], None] = lambda _: None,
    ) -> None:
        """Know ``kinds``, of which nothing is hatched yet.

        ``make`` returns a zygote that has not been started. ``installed_version`` is called in a thread; unknown: it
        returns "" or raises a StandbyError.
        ``on_change`` is called after each change of what ``record`` returns, but not for each fork or measurement.
        """
        self._nests = {kind: _Nest(kind) for kind in kinds}
        self._make = make
        self._installed_version = installed_version
        self._limits = limits or ZygoteLimits()
        self._books = books
        self._on_change = on_change
        self._alive: set[Zygote] = set()
        """All that were made and not ended yet, also those that hatch and those that have a successor."""
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False

    def want(self, kind: EngineKind, instance: str) -> None:
        """Have a zygote of ``kind`` hatched and kept for ``instance``; nothing happens for a kind that has none."""
        nest = self._nests.get(kind)
        if nest is None or self._closed:
            return
        nest.users.add(instance)
        nest.changed.set()
        if nest.task is None:
            nest.task = asyncio.create_task(self._tend(nest), name=f"zygote {kind.value}")
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="stray processes")

    def leave(self, instance: str) -> None:
        """Say that ``instance`` needs none any more; the last one's leaving starts the zygote's last ``keep_s``."""
        for nest in self._nests.values():
            if instance in nest.users:
                nest.users.discard(instance)
                nest.left_at = asyncio.get_running_loop().time()
                nest.changed.set()

    def ready(self, kind: EngineKind) -> Zygote | None:
        """Return the zygote that forks engines of ``kind`` now; None: start without one."""
        nest = self._nests.get(kind)
        return nest.current if nest and nest.current and nest.current.usable else None

    async def hatched(self, kind: EngineKind) -> None:
        """Return once there is a ready one; somebody must want it. Raises EngineStartFailed when it did not hatch."""
        nest = self._nests.get(kind)
        if nest is None:
            raise EngineStartFailed(f"{kind.value} has no zygote on this node")
        while self.ready(kind) is None:
            await nest.news.wait()
            if nest.failure and not nest.hatching and self.ready(kind) is None:
                raise EngineStartFailed(f"zygote of {kind.value} did not hatch: {nest.failure}", remedy="see its log")

    async def wait_ready(self, kind: EngineKind, limit_s: float) -> None:
        """Wait for one that hatches right now; not for one that has failed to, nor longer than ``limit_s``.

        Where memory had lacked it is asked for once more: whoever starts has just been given some.
        """
        nest = self._nests.get(kind)
        if nest is None or not nest.users or self.ready(kind) is not None:
            return
        if nest.failure and not nest.hatching:
            if not nest.lacks_memory:
                return
            nest.again = True
            nest.changed.set()
        with contextlib.suppress(TimeoutError, EngineStartFailed):
            async with asyncio.timeout(limit_s):
                await self.hatched(kind)

    def push_out(self, kind: EngineKind) -> None:
        """End the zygote of ``kind``, as its memory is needed; ``Books.ended`` is called when it is gone."""
        nest = self._nests[kind]
        if nest.task is None:
            if self._books is not None:
                self._books.ended(kind)
            return
        nest.pushed_out = True
        nest.changed.set()

    def fork_ended(self, kind: EngineKind) -> None:
        """An engine that was forked has ended: look soon at what the zygote holds without it."""
        nest = self._nests.get(kind)
        if nest is not None and nest.current is not None:
            nest.fork_ended = True
            nest.changed.set()

    def records(self) -> Mapping[EngineKind, ZygoteRecord]:
        """Return what the node says of each kind: state ``none``, ``hatching``, ``ready`` or ``broken``."""
        return {kind: self._record(nest) for kind, nest in self._nests.items()}

    def resident_bytes(self, kind: EngineKind) -> int:
        """Return the memory of this kind's zygote when it was last looked at; 0: there is none."""
        nest = self._nests.get(kind)
        return nest.resident if nest and nest.current else 0

    async def close(self) -> None:
        """End every zygote; engines that were forked stay."""
        self._closed = True
        running = [nest.task for nest in self._nests.values() if nest.task]
        await tasks.end([*running, *([self._sweeper] if self._sweeper else [])])
        for nest in self._nests.values():
            nest.current = None
        for zygote in tuple(self._alive):
            await self._end(zygote)

    def _record(self, nest: _Nest) -> ZygoteRecord:
        ready = nest.current is not None and nest.current.usable
        broken = bool(nest.failure or nest.current) and not nest.lacks_memory
        state = "ready" if ready else "hatching" if nest.hatching else "broken" if broken else "none"
        return ZygoteRecord(
            state=state,
            resident_bytes=nest.resident if nest.current else 0,
            version=nest.current.version if nest.current else "",
            forks=nest.current.forks if nest.current else 0,
            hatch_s=nest.hatch_s,
            failure=nest.failure or (nest.current.failure if nest.current else ""),
        )

    async def _tend(self, nest: _Nest) -> None:
        """Keep a good zygote in the nest until nobody wants one."""
        try:
            while not self._over(nest):
                while not self._over(nest):
                    await self._one_step(nest)
                await self._retire(nest)  # somebody may want one again meanwhile
                pushed_out, nest.pushed_out = nest.pushed_out, False
                if pushed_out and nest.users:
                    await self._failed(nest, "its memory is needed elsewhere", lacks_memory=True, pause_s=_PUSHED_OUT_S)
                nest.failure, nest.lacks_memory = "", False
                self._announce(nest)
        finally:
            nest.task, nest.pushed_out = None, False

    async def _one_step(self, nest: _Nest) -> None:
        if nest.current is None:
            await self._hatch(nest)
            return
        verdict = await self._watch(nest, nest.current)
        if verdict.fate is not Fate.REPLACE:
            return
        _log.info("zygote of %s is replaced: %s", nest.kind.value, verdict.reason)
        if not nest.current.usable:
            await self._retire(nest)
            self._announce(nest)
        if nest.users:
            await self._hatch(nest)

    async def _watch(self, nest: _Nest, zygote: Zygote) -> Verdict:
        """Return at the next look, sooner when the zygote is spent or who wants it has changed."""
        if nest.fork_ended:
            nest.fork_ended = False
            if not zygote.failure:
                await self._measure(nest, zygote)
            return Verdict(Fate.KEEP)
        spent = zygote.spent
        try:
            changed = await _changed(nest, spent, self._until_look_s(nest))
        finally:
            await tasks.end([spent])
        if not changed or zygote.failure:
            return judge(await self._facts(nest, zygote), self._limits)
        return Verdict(Fate.KEEP)

    async def _hatch(self, nest: _Nest) -> None:
        """Hatch one, and put it in the place of the present one, which is usable until then; or wait after a failure."""
        nest.again = False
        if refused := self._refused(nest):
            await self._failed(nest, refused, lacks_memory=True)
            return
        version = await self._installed(nest.kind)
        nest.hatching, nest.lacks_memory = True, False
        self._announce(nest)
        fresh: Zygote | None = None
        try:
            fresh = self._make(nest.kind)
            self._alive.add(fresh)
            born = await self._started(nest, fresh)
        except Exception as error:  # noqa: BLE001 - whatever it is, engines start without it; who waits must hear of it
            reason, born = str(error) or type(error).__name__, False
        else:
            reason = ""
        finally:
            nest.hatching = False
        if fresh is None or not born:
            await self._miscarried(nest, fresh, reason)
            return
        await self._retire(nest, fresh)
        nest.version, nest.hatch_s, nest.failure, nest.failures = version, fresh.hatch_s, "", 0
        nest.looked_at = asyncio.get_running_loop().time()
        await self._measure(nest, fresh)
        if self._books is not None:
            self._books.hatched(nest.kind, fresh.hatch_s)
        self._announce(nest)

    def _refused(self, nest: _Nest) -> str:
        """Return why there is no memory; until a successor is ready the present one holds its own as well."""
        if self._books is None:
            return ""
        present = nest.resident if nest.current is not None else 0
        return self._books.admit(nest.kind, (nest.resident or _USUAL_BYTES) + present)

    async def _started(self, nest: _Nest, fresh: Zygote) -> bool:
        """Return whether it is ready; False: it was pushed out before. Raises as ``Zygote.start``."""
        starting = asyncio.ensure_future(fresh.start(self._limits.hatch_limit_s))
        try:
            while not starting.done() and not nest.pushed_out:
                await _changed(nest, starting)
        finally:
            await tasks.end([starting])
        if starting.cancelled():
            return False
        starting.result()
        return True

    async def _miscarried(self, nest: _Nest, fresh: Zygote | None, reason: str) -> None:
        if fresh is not None:
            await self._end(fresh)
        if self._books is not None:
            if nest.current is None:
                self._books.ended(nest.kind)
            else:
                self._books.measured(nest.kind, nest.resident)
        if reason:
            await self._failed(nest, reason)

    async def _failed(self, nest: _Nest, reason: str, *, lacks_memory: bool = False, pause_s: float | None = None) -> None:
        """Say why there is none, and wait before the next attempt."""
        known = lacks_memory and nest.lacks_memory
        nest.failure, nest.failures, nest.lacks_memory = reason, nest.failures + 1, lacks_memory
        if not known:
            level = logging.INFO if lacks_memory else logging.WARNING
            _log.log(level, "zygote of %s did not hatch: %s", nest.kind.value, reason)
        self._announce(nest)
        await self._pause(nest, back_off_s(nest.failures) if pause_s is None else pause_s)

    async def _measure(self, nest: _Nest, zygote: Zygote) -> None:
        nest.resident = await asyncio.to_thread(zygote.resident_bytes)
        if self._books is not None:
            self._books.measured(nest.kind, nest.resident)

    def _announce(self, nest: _Nest) -> None:
        nest.news.set()
        nest.news = asyncio.Event()
        self._on_change(nest.kind)

    async def _retire(self, nest: _Nest, successor: Zygote | None = None) -> None:
        """Put ``successor`` in its place, and end it."""
        former, nest.current = nest.current, successor
        if former is not None:
            await self._end(former)
            if successor is None and self._books is not None:
                self._books.ended(nest.kind)

    async def _end(self, zygote: Zygote) -> None:
        try:
            await zygote.stop()
        except (StandbyError, OSError) as error:  # e.g. it hangs in the kernel; its record lets the next agent end it
            _log.warning("zygote of %s does not end: %s", zygote.kind.value, error)
        self._alive.discard(zygote)

    async def _facts(self, nest: _Nest, zygote: Zygote) -> ZygoteFacts:
        nest.looked_at = asyncio.get_running_loop().time()
        if not zygote.failure:
            await self._measure(nest, zygote)
        return ZygoteFacts(
            failure=zygote.failure,
            age_s=zygote.age_s,
            resident=zygote.resident_whole(),
            resident_at_start=zygote.resident_at_start,
            forks=zygote.forks,
            version=nest.version,
            installed=await self._installed(nest.kind),
        )

    async def _installed(self, kind: EngineKind) -> str:
        try:
            return await asyncio.to_thread(self._installed_version, kind)
        except (StandbyError, OSError) as error:  # e.g. in the middle of an upgrade; what is not known changes nothing
            _log.warning("installed version of %s is not known: %s", kind.value, error)
            return ""

    async def _pause(self, nest: _Nest, seconds: float) -> None:
        """Wait, but no longer than somebody wants a zygote, nor when somebody asks once more."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self._over(nest) and not nest.again and (left := deadline - asyncio.get_running_loop().time()) > 0:
            nest.changed.clear()
            try:
                async with asyncio.timeout(left if nest.users else min(left, self._left_s(nest))):
                    await nest.changed.wait()
            except TimeoutError:
                continue

    async def _sweep(self) -> None:
        sweep = StraySweep()
        while True:
            await asyncio.sleep(self._limits.look_s)
            sweep.look()

    def _until_look_s(self, nest: _Nest) -> float:
        look = nest.looked_at + self._limits.look_s - asyncio.get_running_loop().time()
        return max(0.0, look if nest.users else min(look, self._left_s(nest)))

    def _over(self, nest: _Nest) -> bool:
        """Whether the nest is to be empty: nobody wants one, and none is kept (any longer) for who comes back."""
        return nest.pushed_out or (not nest.users and (nest.current is None or self._left_s(nest) <= 0))

    def _left_s(self, nest: _Nest) -> float:
        return nest.left_at + self._limits.keep_s - asyncio.get_running_loop().time()


async def _changed(nest: _Nest, other: asyncio.Future[Any], limit_s: float | None = None) -> bool:
    """Wait for a change of what is wanted of the nest, for ``other``, or for ``limit_s``; return whether it was the change."""
    nest.changed.clear()
    changed = asyncio.ensure_future(nest.changed.wait())
    either: set[asyncio.Future[Any]] = {changed, other}
    try:
        await asyncio.wait(either, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await tasks.end([changed])
    return not changed.cancelled()
