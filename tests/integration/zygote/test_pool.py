"""The pool hatches what is wanted, replaces what is worn, and ends what nobody wants."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standby.domain.errors import ConfigurationError
from standby.domain.model import EngineKind
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.zygote.host import Zygote
from standby.warm_pool.zygote_rules import ZygoteLimits
from standby.warm_pool.zygotes import ZygotePool
from support.waiting import until
from support.zygote_rig import Rig, alive, plan

KIND = EngineKind.FAKE


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
        try:
            await rig.fork(1)
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            assert "tired" in str(error)  # noqa: PT017 - as above
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
