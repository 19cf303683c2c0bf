"""What is kept of an engine beyond its life, along whole lives: what crashed is set aside, what was good is captured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from standby.domain.errors import EngineStartFailed
from standby.domain.instance import InstanceState, Rung
from standby.host import tasks
from standby.runtime.exit_status import ExitStatus
from standby.runtime.fingerprint import DeviceFacts
from standby.warm_pool import keepsakes as keepsakes_module
from standby.warm_pool.canaries import Canaries, CanaryCheck, CanaryOutcome
from standby.warm_pool.engine_cache import EngineCache
from standby.warm_pool.keepsakes import Keepsakes
from support.agent_rig import Rig, ScriptedEngine
from support.builders import an_assignment
from support.waiting import until


class Compiler(ScriptedEngine):
    """Compiles into its cache when it starts; may hang, break or end by itself before it has loaded."""

    version = "1"

    def __init__(self) -> None:
        super().__init__()
        self.loads = True
        self.hangs = False
        self.may_end.set()
        self.folders: list[Path] = []
        self.exited: list[asyncio.Future[ExitStatus]] = []
        self.seen: list[bool] = []

    def uses_compile_cache(self, _options: Any) -> bool:
        return True

    async def start(self, spec: Any) -> Any:
        handle = await super().start(spec)
        self.folders.append(spec.cache_dir)
        self.exited.append(handle.exited)
        self.seen.append((spec.cache_dir / "kernel.so").exists())
        (spec.cache_dir / "kernel.so").write_bytes(b"\x7fELF")
        return handle

    async def wait_loaded(self, handle: Any, deadline_s: float) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        await super().wait_loaded(handle, deadline_s)

    async def suspend(self, _handle: Any, *, depth: int = 1) -> Any:
        return SimpleNamespace(resident_before=2, resident_after=1, ms=1.0, depth=str(depth), kept="")


class Deployment:
    """A rig with real engine caches."""

    def __init__(self, folder: Path) -> None:
        self.rig = Rig(capacity=1000)
        self.engine = self.rig.engine = Compiler()
        self.caches = EngineCache(folder / "caches")
        self.processors: list[int | None] = []
        self.told: list[str] = []
        self.kept = Keepsakes(
            canaries=cast("Canaries", _Agrees()),
            caches=self.caches,
            place=None,
            keys_for=cast("Any", None),
            facts=self.facts,
            tell=lambda _managed, words: self.told.append(words),
        )
        engines = self.rig.agent.effects.engines
        engines.keepsakes = self.kept
        engines.cache.locate = lambda _digest: folder  # type: ignore[method-assign,assignment]

    def facts(self, _devices: Sequence[str], processors: int | None) -> DeviceFacts:
        self.processors.append(processors)
        return DeviceFacts(name="cpu", compute_capability="", driver="")

    def order(self, rung: Rung, intent: str) -> None:
        assignment = an_assignment(instance="a", rung=rung, intent=intent)
        self.rig.agent.assignment_changed("n1.a", None, cast("Any", SimpleNamespace(value=assignment)))

    async def until(self, *states: InstanceState) -> None:
        await until(lambda: "a" in self.rig.agent.instances and self.rig.state("a") in states)

    def retry(self) -> None:
        """Let the time of the retry come."""
        self.rig.now += 60
        self.rig.agent.instances["a"].retry._run()  # type: ignore[union-attr]

    @property
    def captured(self) -> bool:
        return any((folder.parent / "state.json").exists() for folder in self.engine.folders)


class _Agrees:
    async def check(self, *_arguments: Any, **_options: Any) -> CanaryOutcome:
        return CanaryOutcome(CanaryCheck.MATCHED)


@pytest.fixture
async def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Deployment]:
    monkeypatch.setattr(keepsakes_module, "CAPTURE_AFTER_S", 0.0)
    async with _running(Deployment(tmp_path)) as found:
        yield found


@asynccontextmanager
async def _running(found: Deployment) -> AsyncIterator[Deployment]:
    await found.caches.open()
    running = asyncio.create_task(found.rig.agent.run())
    try:
        yield found
    finally:
        left = [task for managed in found.rig.agent.instances.values() for task in managed.tasks.values()]
        await tasks.end([running, *found.kept.tasks, *left])


async def started_well(found: Deployment) -> None:
    """One good start and its end: the next one finds what this one compiled."""
    found.order(Rung.READY, "first")
    await found.until(InstanceState.READY)
    await until(lambda: found.captured)
    found.order(Rung.STAGED, "down")
    await found.until(InstanceState.STAGED)


async def test_what_an_engine_crashed_with_while_it_loaded_is_set_aside(deployment: Deployment) -> None:
    """Its end is seen before whoever waits for its load: without this every start would crash with the same kernels."""
    await started_well(deployment)
    deployment.engine.hangs = True
    deployment.order(Rung.READY, "second")
    await until(lambda: len(deployment.engine.exited) == 2)
    await deployment.until(InstanceState.STARTING)
    deployment.engine.exited[-1].set_result(ExitStatus.of(-11))
    await deployment.until(InstanceState.FAILED)
    await until(lambda: any("is set aside" in words for words in deployment.told))
    deployment.engine.hangs = False
    deployment.retry()
    await deployment.until(InstanceState.READY)
    assert deployment.engine.seen == [False, True, False]
    await until(lambda: any("never used again" in words for words in deployment.told))


@pytest.mark.parametrize("end", [-9, -15])
async def test_who_was_killed_from_outside_says_nothing_against_its_kernels(deployment: Deployment, end: int) -> None:
    await started_well(deployment)
    deployment.engine.hangs = True
    deployment.order(Rung.READY, "second")
    await until(lambda: len(deployment.engine.exited) == 2)
    status = ExitStatus.of(end)
    deployment.rig.agent.instances["a"].handle.process.status = status  # type: ignore[union-attr,misc]
    deployment.engine.exited[-1].set_result(status)
    await deployment.until(InstanceState.FAILED)
    deployment.engine.hangs = False
    deployment.retry()
    await deployment.until(InstanceState.READY)
    assert deployment.engine.seen == [False, True, True]


async def test_a_start_that_is_cut_short_says_nothing_against_its_kernels(deployment: Deployment) -> None:
    await started_well(deployment)
    deployment.engine.hangs = True
    deployment.order(Rung.READY, "second")
    await until(lambda: len(deployment.engine.exited) == 2)
    deployment.order(Rung.STAGED, "down again")
    await deployment.until(InstanceState.STAGED)
    deployment.engine.hangs = False
    deployment.order(Rung.READY, "third")
    await deployment.until(InstanceState.READY)
    assert deployment.engine.seen == [False, True, True]
    assert deployment.told == []


async def test_a_start_that_fails_by_itself_sets_its_kernels_aside(deployment: Deployment) -> None:
    await started_well(deployment)
    deployment.engine.loads = False
    deployment.order(Rung.READY, "second")
    await deployment.until(InstanceState.FAILED)
    await until(lambda: any("is set aside" in words for words in deployment.told))


async def test_an_engine_that_is_put_to_sleep_right_after_its_probe_is_captured(deployment: Deployment) -> None:
    """The order to sleep comes while its start is still being taken up."""
    deployment.order(Rung.ASLEEP, "first")
    await deployment.until(InstanceState.ASLEEP)
    await until(lambda: deployment.captured)


async def test_an_engine_that_breaks_while_it_serves_keeps_its_kernels(deployment: Deployment) -> None:
    deployment.order(Rung.READY, "first")
    await deployment.until(InstanceState.READY)
    await until(lambda: deployment.captured)
    deployment.engine.exited[-1].set_result(ExitStatus.of(-11))
    await deployment.until(InstanceState.FAILED)
    deployment.retry()
    await deployment.until(InstanceState.READY)
    assert deployment.engine.seen == [False, True]
    assert deployment.told == []


async def test_nothing_is_held_when_all_have_ended(deployment: Deployment) -> None:
    async def refuse(_spec: Any) -> Any:
        raise EngineStartFailed("no such program")

    await started_well(deployment)
    deployment.engine.start = refuse  # type: ignore[method-assign,assignment]
    deployment.order(Rung.READY, "second")
    await deployment.until(InstanceState.FAILED)
    await until(lambda: not deployment.caches._users and not deployment.kept._held)


async def test_the_number_of_processors_is_known_before_the_fingerprint(deployment: Deployment) -> None:
    """Threads are compiled into loops: the first start must be named as the second one is."""
    cores = deployment.rig.agent.effects.engines.berths.cores
    cores._groups, cores._wanted = ((0, 1, 2, 3),), 2
    await started_well(deployment)
    deployment.order(Rung.READY, "second")
    await deployment.until(InstanceState.READY)
    assert deployment.processors == [2, 2]
    assert len(set(deployment.engine.folders)) == 1


async def test_a_cache_that_cannot_be_prepared_does_not_fail_the_start(deployment: Deployment) -> None:
    async def refuse(*_arguments: Any) -> Any:
        raise OSError(28, "No space left on device")

    deployment.caches.prepare = refuse  # type: ignore[method-assign,assignment]
    managed = deployment.rig.agent._adopt(an_assignment(instance="a"))
    assert await deployment.kept.prepare(managed) is None
    assert any("No space left" in words for words in deployment.told)
