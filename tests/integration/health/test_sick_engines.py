"""Engines that live and do not serve, behind a real door: found and told; and a busy one, which is left alone.

Field cases B30, B31 and B32. Limits are short here; what they mean is tested in the unit tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from standby.domain.endpoint import Failure
from standby.domain.errors import EngineStartFailed
from standby.host import tasks
from standby.runtime.engines.base import EngineHandle, EngineLoad, failure_of
from standby.runtime.engines.fake import FakeEngine
from standby.runtime.process_ledger import ProcessLedger
from standby.warm_pool import tree_watch
from standby.warm_pool.door import Door
from standby.warm_pool.door_load import DoorLoad
from standby.warm_pool.health import HealthLimits
from standby.warm_pool.health_watch import HealthWatch, Watched
from standby.warm_pool.start_watch import wait_while_it_moves
from standby.warm_pool.tree_watch import HelperLoss, TreeWatch
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, Option, fake_spec, running, short_dir
from support.raw_http import RawClient
from support.waiting import until

INSTANCE, TOKEN = "fake1", "node-token"
QUICK = HealthLimits(stall_s=1.5, crunch_s=3.0, probe_s=0.5, unavailable_s=0.3, errors_s=0.3, idle_every_s=0.3, ask_s=0.2)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    """The fake engine's adapter, of which nothing may be left."""
    with short_dir() as folder:
        ledger = ProcessLedger(folder / "ledger")
        yield FakeEngine(ledger, FAKE_ENGINE_PROGRAM)
        assert ledger.survivors() == ()


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with short_dir() as folder:
        yield folder


@dataclass
class Ward:
    """A ready engine behind a door, watched."""

    door: Door
    address: tuple[str, int]
    handle: EngineHandle
    watch: HealthWatch
    sick: list[tuple[str, int, Failure]] = field(default_factory=list)

    async def ask(self, **body: object) -> int:
        """Ask for a completion through the door; return the status."""
        client = await RawClient.connect(*self.address)
        headers = {"x-standby-token": TOKEN, "x-standby-instance": INSTANCE, "x-standby-epoch": "1", "x-request-id": "r"}
        try:
            content = json.dumps({"prompt": "x", **body}).encode()
            return (await client.request("POST", "/v1/completions", headers, content)).status
        finally:
            await client.close()

    async def failure(self, within_s: float = 60.0) -> Failure:
        """Wait until the engine is told to be sick."""
        await until(lambda: self.sick, within_s=within_s)
        instance, run, failure = self.sick[0]
        assert (instance, run) == (INSTANCE, 3)
        return failure


@contextlib.asynccontextmanager
async def ward(engine: FakeEngine, run_dir: Path, limits: HealthLimits = QUICK, **options: Option) -> AsyncIterator[Ward]:
    """Start everything; looks are made every twentieth of a second."""
    async with running(engine, fake_spec(run_dir).model_copy(update={"options": options})) as handle:
        door = Door(token=TOKEN, on_change=lambda instance: None)
        address = await door.start("127.0.0.1", 0)
        door.open(INSTANCE, epoch=1, slots=300, address=handle.address)
        sick: list[tuple[str, int, Failure]] = []
        watch = HealthWatch(
            engines=lambda: [Watched(INSTANCE, 3, engine, handle)],
            load=door.load,
            sick=lambda *told: sick.append(told),
            limits=limits,
        )
        looking = asyncio.create_task(_look(watch))
        try:
            yield Ward(door, address, handle, watch, sick)
        finally:
            await tasks.end([looking])
            watch.forget(INSTANCE)
            await door.stop()


async def _look(watch: HealthWatch) -> None:
    while True:
        watch.look()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("stream", [False, True])
async def test_health_is_good_and_completions_stall_for_ever(engine: FakeEngine, run_dir: Path, stream: bool) -> None:
    async with ward(engine, run_dir, stall=True) as here:
        asking = asyncio.create_task(here.ask(stream=stream))
        failure = await here.failure()
        assert failure.code == "engine_stalled"
        assert "does not generate: engine generated no token within 0.5 s" in failure.reason
        assert "with 1 requests in flight nothing has moved" in failure.reason
        await tasks.end([asking])


async def test_callers_who_give_up_do_not_hide_a_stalled_engine(engine: FakeEngine, run_dir: Path) -> None:
    async with ward(engine, run_dir, stall=True) as here:
        asking = asyncio.create_task(here.ask(stream=True))

        async def arrived() -> bool:
            return (await engine.load(here.handle, 10)).running == 1

        await until(arrived)
        await tasks.end([asking])
        await until(lambda: here.door.load(INSTANCE).in_flight == 0)
        assert (await here.failure()).code == "engine_stalled"


async def test_a_busy_engine_with_slow_health_is_left_alone(engine: FakeEngine, run_dir: Path) -> None:
    """200 callers get tokens for longer than any limit, while no question about health is answered in time."""
    limits = replace(QUICK, stall_s=4.0, crunch_s=8.0, probe_s=5.0)
    async with ward(engine, run_dir, limits, health_delay_s=600, tokens=100, token_delay_ms=100, text="a b c") as here:
        asking = [asyncio.create_task(here.ask(stream=True)) for _ in range(200)]
        await until(lambda: here.door.load(INSTANCE).in_flight == 200)
        assert {await answer for answer in asyncio.as_completed(asking)} == {200}
        assert here.sick == []


async def test_503_for_ever(engine: FakeEngine, run_dir: Path) -> None:
    async with ward(engine, run_dir, unavailable_after_s=6.0) as here:
        while await here.ask() == 200:
            await asyncio.sleep(0.05)
        while not here.sick:
            await here.ask()
            await asyncio.sleep(0.05)
        failure = await here.failure()
        assert failure.code == "engine_unavailable"
        assert "in a row with 503" in failure.reason


async def test_503_for_ever_with_one_caller(engine: FakeEngine, run_dir: Path) -> None:
    """One refused request is worth a probe, and that fails."""
    async with ward(engine, run_dir, unavailable_after_s=6.0) as here:
        while await here.ask() == 200:
            await asyncio.sleep(0.05)
        assert (await here.failure()).code in {"engine_stalled", "engine_mute"}


async def test_nobody_listens_any_more(engine: FakeEngine, run_dir: Path) -> None:
    async with ward(engine, run_dir, close_socket_after_s=6.0) as here:
        assert (await here.failure()).code == "engine_refuses"


@pytest.mark.parametrize("busy", [False, True])
async def test_a_stopped_engine(engine: FakeEngine, run_dir: Path, busy: bool) -> None:
    """SIGSTOP: the kernel still accepts connections for it."""
    async with ward(engine, run_dir, tokens=10**6, token_delay_ms=20) as here:
        asking = [asyncio.create_task(here.ask(stream=True))] if busy else []
        await until(lambda: here.door.load(INSTANCE).in_flight == len(asking))
        os.killpg(here.handle.pid, signal.SIGSTOP)
        failure = await here.failure()
        assert failure.code == ("engine_stalled" if busy else "engine_mute")
        await tasks.end(asking)


async def test_500_for_ever_is_probed_and_one_callers_bad_requests_are_not_held_against_it(
    engine: FakeEngine, run_dir: Path
) -> None:
    patient = replace(QUICK, probe_s=30.0, ask_s=30.0)
    async with ward(engine, run_dir, patient) as here:
        for _ in range(12):
            assert await here.ask(fail_with=500) == 500
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        assert here.sick == []
    async with ward(engine, run_dir, completions_500=True) as here:
        for _ in range(12):
            await here.ask()
            await asyncio.sleep(0.05)
        assert "does not generate" in (await here.failure()).reason


@dataclass
class Tree:
    """The watch of all trees, and what it has told."""

    watch: TreeWatch
    losses: list[tuple[str, HelperLoss]]


@pytest.fixture
async def tree() -> AsyncIterator[Tree]:
    losses: list[tuple[str, HelperLoss]] = []
    watch = TreeWatch(lambda key, loss: losses.append((key, loss)))
    task = asyncio.create_task(watch.run())
    yield Tree(watch, losses)
    await tasks.end([task])
    watch.close()


async def test_a_helper_that_dies_in_a_long_start_is_told_within_seconds(engine: FakeEngine, run_dir: Path, tree: Tree) -> None:
    spec = fake_spec(run_dir, start_delay_s=600, helper_dies_after_s=6.0)
    async with running(engine, spec, loaded=False) as handle:
        tree.watch.follow(INSTANCE, handle)
        await until(lambda: tree.losses)
        key, loss = tree.losses[0]
        assert (key, loss.certain) == (INSTANCE, True)
        assert loss.words.endswith("the engine's first one lives: killed by signal 9 (SIGKILL)")
        tree.watch.forget(INSTANCE)


async def test_a_helper_that_dies_later_makes_the_engine_sick_at_once(engine: FakeEngine, run_dir: Path, tree: Tree) -> None:
    async with ward(engine, run_dir, HealthLimits(), helper_dies_after_s=6.0) as here:
        tree.watch.follow(INSTANCE, here.handle)
        await until(lambda: tree.losses)
        here.watch.helper_ended(Watched(INSTANCE, 3, engine, here.handle), tree.losses[0][1])
        assert (await here.failure()).code == "engine_helper_ended"
        tree.watch.forget(INSTANCE)


async def test_short_helpers_and_the_whole_engines_end_are_not_told(
    engine: FakeEngine, run_dir: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler of a second, and a tree that is killed as one."""
    monkeypatch.setattr(tree_watch, "ESSENTIAL_AGE_S", 4.0)
    monkeypatch.setattr(tree_watch, "_LEADER_LIMIT_S", 2.0)
    async with running(engine, fake_spec(run_dir, helper_dies_after_s=0.8, spawn_child=True)) as handle:
        tree.watch.follow(INSTANCE, handle)
        await asyncio.sleep(4.5)
        os.killpg(handle.pid, signal.SIGKILL)
        await handle.exited
        await asyncio.sleep(2.5)
    assert tree.losses == []


@pytest.mark.parametrize(("code", "told"), [("time.sleep(5)", False), ("time.sleep(5); os._exit(3)", True)])
async def test_an_orderly_end_while_it_starts_is_none_of_ours(
    engine: FakeEngine, run_dir: Path, tree: Tree, code: str, told: bool
) -> None:
    """Helpers that have done their work leave with 0; the kernel says how one ended that is not our child."""
    async with running(engine, fake_spec(run_dir, start_delay_s=600), loaded=False) as handle:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", f"import os, time; {code}",
            env={**os.environ, "STANDBY_ENGINE_MARK": handle.process.mark},
        )  # fmt: skip
        tree.watch.follow(INSTANCE, handle)
        members = tree.watch._trees[INSTANCE].members
        await until(lambda: process.pid in members, "it is watched")
        await process.wait()
        await until(lambda: process.pid not in members, "its end is seen")
        if told:
            await until(lambda: tree.losses)
        await asyncio.sleep(0.6)
        tree.watch.forget(INSTANCE)
    assert [loss.certain for _, loss in tree.losses] == ([True] if told else [])


async def test_a_start_that_moves_outlasts_its_limit(engine: FakeEngine, run_dir: Path) -> None:
    """It writes to its log all the time: the limit ends only what stands still."""
    async with running(engine, fake_spec(run_dir, ready_after_s=6.0), loaded=False) as handle:
        writing = asyncio.create_task(_write(handle.log))
        await wait_while_it_moves(engine, handle, 2.0, look_s=0.1)
        await tasks.end([writing])


async def test_a_start_that_stands_still_ends_at_its_limit_and_one_that_moves_for_ever_at_the_cap(
    engine: FakeEngine, run_dir: Path
) -> None:
    async with running(engine, fake_spec(run_dir, start_delay_s=600), loaded=False) as handle:
        await asyncio.sleep(1.0)  # its interpreter starts
        with pytest.raises(EngineStartFailed, match=r"did not load within 1 s and has not moved for \d+ s") as caught:
            await wait_while_it_moves(engine, handle, 1.0, look_s=0.2)
        assert failure_of(caught.value).code == "engine_load_timeout"
        writing = asyncio.create_task(_write(handle.log))
        with pytest.raises(EngineStartFailed, match=r"within 8 s, 10 times its limit, although it moved"):
            await wait_while_it_moves(engine, handle, 0.8, look_s=2.0)
        await tasks.end([writing])


async def _write(log: Path) -> None:
    with log.open("a") as stream:
        while True:
            stream.write("loading shard\n")
            stream.flush()
            await asyncio.sleep(0.03)


async def test_an_engine_that_is_forgotten_is_asked_nothing_more(engine: FakeEngine, run_dir: Path) -> None:
    """Before it is put to sleep: calls to one engine must not overlap."""
    asked = asyncio.Event()

    class Slow(FakeEngine):
        ended = False

        async def load(self, handle: EngineHandle, deadline_s: float) -> EngineLoad:
            asked.set()
            try:
                await asyncio.sleep(600)
            finally:
                Slow.ended = True
            return EngineLoad()

    slow = Slow(ProcessLedger(run_dir / "ledger"), FAKE_ENGINE_PROGRAM)
    async with running(engine, fake_spec(run_dir)) as handle:
        watch = HealthWatch(
            engines=lambda: [Watched(INSTANCE, 1, slow, handle)],
            load=lambda instance: DoorLoad(),
            sick=lambda *told: pytest.fail(str(told)),
            limits=HealthLimits(idle_every_s=0),
        )
        watch.look()
        await asyncio.wait_for(asked.wait(), 60)
        watch.forget(INSTANCE)
        await until(lambda: Slow.ended)
