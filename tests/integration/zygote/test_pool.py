"""The pool hatches what is wanted, replaces what is worn, and ends what nobody wants."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from standby.domain.errors import ConfigurationError, EngineStartFailed, ForkFailed
from standby.domain.model import EngineKind
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.zygote.host import Zygote
from standby.warm_pool import zygotes as zygotes_module
from standby.warm_pool.zygote_rules import ZygoteLimits
from standby.warm_pool.zygotes import ZygotePool
from support.waiting import until
from support.zygote_rig import Rig, alive, plan

KIND = EngineKind.FAKE


@dataclass
class Books:
    """What is promised to zygotes; ``refusal``: why nothing more is."""

    refusal: str = ""
    told: list[str] = field(default_factory=list)
    promised: list[int] = field(default_factory=list)
    held: int = 0

    def admit(self, kind: EngineKind, amount: int) -> str:
        self.told.append("refused" if self.refusal else "admitted")
        self.promised.append(amount)
        return self.refusal

    def hatched(self, kind: EngineKind, seconds: float) -> None:
        self.told.append("hatched")

    def measured(self, kind: EngineKind, amount: int) -> None:
        self.held = amount
        if self.told[-1] != "measured":
            self.told.append("measured")

    def ended(self, kind: EngineKind) -> None:
        self.told.append("ended")


@dataclass
class Nursery:
    """A pool and what its zygotes are made of."""

    folder: Path
    ledger: ProcessLedger
    knobs: dict[str, Any] = field(default_factory=dict)
    installed: str = "1"
    asked: int = 0
    made: list[Zygote] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    books: Books = field(default_factory=Books)
    pool: ZygotePool = field(init=False)

    def make(self, kind: EngineKind) -> Zygote:
        self.made.append(Zygote(plan(**self.knobs), ledger=self.ledger, log=self.folder / f"zygote{len(self.made)}.log"))
        return self.made[-1]

    def installed_version(self, kind: EngineKind) -> str:
        self.asked += 1
        if not self.installed:
            raise ConfigurationError("the engine is being installed")
        return self.installed

    def ready(self) -> Zygote:
        found = self.pool.ready(KIND)
        assert found is not None
        return found

    async def until_ready(self, good: Callable[[Zygote], bool] = lambda _: True) -> Zygote:
        """Wait for a ready zygote that is ``good``."""
        await until(lambda: (found := self.pool.ready(KIND)) is not None and good(found), "a ready zygote")
        return self.ready()

    @property
    def state(self) -> str:
        return self.pool.records()[KIND].state


@asynccontextmanager
async def nursery(folder: Path, ledger: ProcessLedger, limits: ZygoteLimits, **knobs: Any) -> AsyncIterator[Nursery]:
    """Yield a pool; its zygotes are gone afterwards."""
    found = Nursery(folder, ledger, knobs)
    found.pool = ZygotePool(
        [KIND],
        found.make,
        installed_version=found.installed_version,
        limits=limits,
        books=found.books,
        on_change=lambda kind: found.changes.append(found.pool.records()[kind].state),
    )
    try:
        yield found
    finally:
        await found.pool.close()
        assert not any(alive(zygote.pid) for zygote in found.made)


async def test_one_is_hatched_for_all_instances_and_ends_after_the_last_one(folder: Path, ledger: ProcessLedger) -> None:
    async with nursery(folder, ledger, ZygoteLimits(keep_s=0.05)) as nest:
        assert nest.state == "none"
        nest.pool.want(EngineKind.LLAMA_CPP, "other")  # it has none: nothing happens
        nest.pool.want(KIND, "a")
        nest.pool.want(KIND, "b")
        zygote = await nest.until_ready()
        await until(lambda: nest.changes == ["hatching", "ready"])
        record = nest.pool.records()[KIND]
        assert (record.state, record.version) == ("ready", zygote.version)
        assert record.hatch_s is not None
        assert record.resident_bytes == nest.pool.resident_bytes(KIND) > 2**20
        nest.pool.leave("a")
        nest.pool.leave("b")
        await until(lambda: nest.state == "none")
        assert nest.pool.ready(KIND) is None
        assert nest.pool.resident_bytes(KIND) == 0
        assert len(nest.made) == 1
        nest.pool.want(KIND, "c")
        assert await nest.until_ready() is not zygote


async def test_who_comes_back_in_time_finds_the_same_one(folder: Path, ledger: ProcessLedger) -> None:
    async with nursery(folder, ledger, ZygoteLimits(keep_s=60, look_s=0.02)) as nest:
        nest.pool.want(KIND, "a")
        zygote = await nest.until_ready()
        nest.pool.leave("a")
        await until(lambda: nest.pool.records()[KIND].resident_bytes > 0)
        nest.pool.want(KIND, "a")
        assert nest.ready() is zygote


async def test_a_killed_one_is_replaced_and_its_engines_live_on(folder: Path, ledger: ProcessLedger) -> None:
    async with nursery(folder, ledger, ZygoteLimits()) as nest:
        nest.pool.want(KIND, "a")
        first = await nest.until_ready()
        engine = await Rig(first, ledger, folder).fork(1)
        os.kill(first.pid, signal.SIGKILL)
        second = await nest.until_ready(lambda zygote: zygote is not first)
        assert second.pid != first.pid
        assert engine.status is None
        await until(lambda: nest.changes == ["hatching", "ready", "none", "hatching", "ready"])
        await engine.stop(0)


async def test_one_whose_fork_failed_is_replaced(folder: Path, ledger: ProcessLedger) -> None:
    async with nursery(folder, ledger, ZygoteLimits(), unfit_after=0) as nest:
        nest.pool.want(KIND, "a")
        first = await nest.until_ready()
        rig = Rig(first, ledger, folder)
        await until(lambda: "ready" in nest.changes)
        with pytest.raises(ForkFailed, match="tired"):
            await rig.fork(1)
        nest.knobs.clear()
        second = await nest.until_ready(lambda zygote: zygote is not first)
        await (await Rig(second, ledger, folder).fork(2)).stop(0)


async def test_a_worn_one_forks_until_its_successor_is_ready(folder: Path, ledger: ProcessLedger) -> None:
    """Another version was installed: the present one is in use all the time that the new one hatches."""
    async with nursery(folder, ledger, ZygoteLimits(look_s=0.05)) as nest:
        nest.pool.want(KIND, "a")
        first = await nest.until_ready()
        nest.knobs["preload"] = "hang"
        nest.installed = "2"
        await until(lambda: len(nest.made) == 2)
        engine = await Rig(first, ledger, folder).fork(1)
        assert nest.state == "ready"
        assert nest.ready() is first
        await engine.stop(0)


async def test_a_version_that_cannot_be_told_changes_nothing(folder: Path, ledger: ProcessLedger) -> None:
    async with nursery(folder, ledger, ZygoteLimits(look_s=0.01)) as nest:
        nest.pool.want(KIND, "a")
        first = await nest.until_ready()
        nest.installed = ""
        asked = nest.asked
        await until(lambda: nest.asked > asked + 2)
        assert nest.ready() is first


async def test_one_that_has_grown_is_replaced(folder: Path, ledger: ProcessLedger) -> None:
    async with nursery(folder, ledger, ZygoteLimits(look_s=0.05), grow_mib=32) as nest:
        nest.pool.want(KIND, "a")
        first = await nest.until_ready()
        engine = await Rig(first, ledger, folder).fork(1)
        await nest.until_ready(lambda zygote: zygote is not first)
        await until(lambda: not alive(first.pid))
        assert engine.status is None
        await engine.stop(0)


async def test_one_that_does_not_hatch_says_why_and_is_tried_again(folder: Path, ledger: ProcessLedger) -> None:
    async with nursery(folder, ledger, ZygoteLimits(keep_s=0.05), preload="thread") as nest:
        nest.pool.want(KIND, "a")
        await until(lambda: nest.state == "broken")
        assert "2 threads run in it" in nest.pool.records()[KIND].failure
        nest.knobs.clear()
        await nest.until_ready()
        assert nest.pool.records()[KIND].failure == ""
        assert len(nest.made) == 2


async def test_nobody_waits_for_a_back_off_that_nobody_wants(folder: Path, ledger: ProcessLedger) -> None:
    async with nursery(folder, ledger, ZygoteLimits(keep_s=0.0), preload="fail") as nest:
        nest.pool.want(KIND, "a")
        await until(lambda: nest.state == "broken")
        nest.pool.leave("a")
        await until(lambda: nest.state == "none")
        assert len(nest.made) == 1


async def test_close_ends_one_that_is_still_hatching(folder: Path, ledger: ProcessLedger) -> None:
    async with nursery(folder, ledger, ZygoteLimits(), preload="hang") as nest:
        nest.pool.want(KIND, "a")
        await until(lambda: nest.made and (folder / "zygote0.log").exists())
    assert ledger.records() == ()


# ---- memory ---------------------------------------------------------------------------------------------------------


async def test_one_that_is_pushed_out_is_not_hatched_again_for_nobody(folder: Path, ledger: ProcessLedger) -> None:
    """It is kept for who may come back; once it has ended there is nothing to keep."""
    async with nursery(folder, ledger, ZygoteLimits(keep_s=60)) as nest:
        nest.pool.want(KIND, "a")
        await nest.until_ready()
        nest.pool.leave("a")
        nest.pool.push_out(KIND)
        await until(lambda: nest.books.told[-1] == "ended" and nest.pool._nests[KIND].task is None)
        assert (nest.state, len(nest.made)) == ("none", 1)
        nest.pool.want(KIND, "b")
        await nest.until_ready()


async def test_one_that_is_pushed_out_comes_back_later_and_says_why_not_now(
    folder: Path, ledger: ProcessLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once it would take what was freed for somebody else, to be pushed out again by the next."""
    async with nursery(folder, ledger, ZygoteLimits()) as nest:
        nest.pool.want(KIND, "a")
        await nest.until_ready()
        nest.pool.push_out(KIND)
        await until(lambda: nest.pool.records()[KIND].failure == "its memory is needed elsewhere")
        assert (nest.state, len(nest.made)) == ("none", 1), "nothing is broken"
        nest.books.refusal = "host memory is short"
        await asyncio.wait_for(nest.pool.wait_ready(KIND, 600), 60)
        assert nest.pool.ready(KIND) is None, "who starts now does without"
        nest.books.refusal = ""
        await nest.pool.wait_ready(KIND, 60)
        assert nest.pool.ready(KIND) is not None, "or forks from it, where there is room after all"

    monkeypatch.setattr(zygotes_module, "_PUSHED_OUT_S", 0.0)
    async with nursery(folder, ledger, ZygoteLimits()) as nest:
        nest.pool.want(KIND, "a")
        first = await nest.until_ready()
        nest.pool.push_out(KIND)
        await nest.until_ready(lambda zygote: zygote is not first)


async def test_one_that_still_hatches_is_pushed_out_at_once(folder: Path, ledger: ProcessLedger) -> None:
    """A climb waits for its memory: not until it has hatched, or its time is over."""
    async with nursery(folder, ledger, ZygoteLimits(), preload="hang") as nest:
        nest.pool.want(KIND, "a")
        await until(lambda: nest.state == "hatching" and (folder / "zygote0.log").exists())
        hatched = asyncio.create_task(nest.pool.hatched(KIND))
        await asyncio.sleep(0)
        nest.pool.push_out(KIND)
        await until(lambda: nest.books.told == ["admitted", "ended"])
        assert not alive(nest.made[0].pid)
        with pytest.raises(EngineStartFailed, match="needed elsewhere"):
            await hatched


async def test_a_successor_is_promised_its_memory_beside_the_present_one(folder: Path, ledger: ProcessLedger) -> None:
    async with nursery(folder, ledger, ZygoteLimits(look_s=0.05)) as nest:
        nest.pool.want(KIND, "a")
        first = await nest.until_ready()
        await until(lambda: nest.pool.records()[KIND].resident_bytes > 0)
        nest.installed = "2"
        await nest.until_ready(lambda zygote: zygote is not first)
        held = nest.pool.records()[KIND].resident_bytes
        assert nest.books.promised[1] > 1.5 * held


async def test_who_finds_no_memory_is_not_broken_and_asks_no_interpreter(folder: Path, ledger: ProcessLedger) -> None:
    async with nursery(folder, ledger, ZygoteLimits()) as nest:
        nest.books.refusal = "host memory is short"
        nest.pool.want(KIND, "a")
        with pytest.raises(EngineStartFailed, match="host memory is short"):
            await nest.pool.hatched(KIND)
        assert (nest.state, nest.pool.records()[KIND].failure, nest.asked) == ("none", "host memory is short", 0)
        nest.books.refusal = ""
        await nest.until_ready()
        assert nest.books.told[-2:] == ["measured", "hatched"]


async def test_a_fault_that_nobody_foresaw_is_told_and_tried_again(folder: Path, ledger: ProcessLedger) -> None:
    async with nursery(folder, ledger, ZygoteLimits()) as nest:
        make, nest.pool._make = nest.pool._make, lambda _kind: 1 / 0  # type: ignore[assignment,return-value]
        nest.pool.want(KIND, "a")
        with pytest.raises(EngineStartFailed, match="division by zero"):
            await nest.pool.hatched(KIND)
        nest.pool._make = make
        await nest.until_ready()


async def test_what_a_fork_had_shared_is_promised_to_the_zygote_once_the_fork_has_ended(
    folder: Path, ledger: ProcessLedger
) -> None:
    """Pages are divided among those who share them; a minute later would be too late for whoever reserves meanwhile."""
    # Of programs' files other processes have shares too, and these come and go: what is looked at is far more than those.
    async with nursery(folder, ledger, ZygoteLimits(), preload="ballast64") as nest:
        nest.pool.want(KIND, "a")
        zygote = await nest.until_ready()
        await until(lambda: nest.books.held > 0)
        alone = nest.books.held
        engine = await Rig(zygote, ledger, folder).fork(1)
        nest.pool.fork_ended(KIND)
        await until(lambda: nest.books.held < alone - 16 * 2**20)
        await engine.stop(0)
        nest.pool.fork_ended(KIND)
        await until(lambda: nest.books.held > alone - 16 * 2**20)
        assert len(nest.made) == 1
