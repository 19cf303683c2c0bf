"""What real process trees hold: children and runaways counted, shared pages divided, never more than there is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from standby.domain.instance import InstanceState, Rung
from standby.domain.prices import Footprint
from standby.host import tasks
from standby.runtime.lifecycle_values import Lifecycle
from standby.runtime.process_group import MARK_VARIABLE
from standby.warm_pool import meter as meter_module
from standby.warm_pool import tree_memory
from standby.warm_pool.ledger import Claim, Ledger
from standby.warm_pool.managed import Managed
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.meter import Meter
from standby.warm_pool.price_book import PriceBook
from standby.warm_pool.price_key import price_key
from standby.warm_pool.tree_memory import Tree
from support.builders import an_assignment
from support.waiting import until

MIB = 1024 * 1024
# Of this run alone: another one may be under way on this machine.
MARK = f"mark-of-the-meter-{os.getpid()}"
# A leader that has held 64 MiB more, a child with 32 MiB of its own, a helper in a session of its own with 16 MiB.
PROGRAM = """
import os, sys, time
def child(mib, session):
    if os.fork() == 0:
        if session:
            os.setsid()
        kept = b"x" * (mib << 20)
        os.write(1, b".")
        time.sleep(600)
peak = b"x" * (64 << 20)
del peak
child(32, False)
child(16, True)
os.write(1, b".")
time.sleep(600)
"""


@pytest.fixture
def tree() -> Iterator[Tree]:
    environment = {**os.environ, MARK_VARIABLE: MARK}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, env=environment, start_new_session=True)
    assert process.stdout is not None
    try:
        said = b""
        while len(said) < 3:
            said += os.read(process.stdout.fileno(), 3)
        yield Tree(MARK, process.pid)
    finally:
        for pid in tree_memory.members({"t": Tree(MARK, process.pid)})["t"]:
            os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_the_whole_tree_is_measured(tree: Tree) -> None:
    found = tree_memory.look({"a": tree, "nobody": Tree("no-such-mark", 2**22 - 1)})
    assert list(found) == ["a"]
    memory = found["a"]
    assert len(memory.pids) == 3
    resident = sum(psutil.Process(pid).memory_info().rss for pid in memory.pids)
    assert memory.exact
    assert 48 * MIB < memory.held < resident, "shared pages count once"
    assert memory.peak >= memory.held + 60 * MIB, "what the leader gave back was held at the start"


def test_a_stranger_is_not_counted(tree: Tree) -> None:
    assert os.getpid() not in tree_memory.members({"a": tree})["a"]
    # Another agent's group number would mean nothing here: a mark alone finds the same three.
    assert sorted(tree_memory.members({"a": replace(tree, group=2**22 - 1)})["a"]) == sorted(
        tree_memory.members({"a": tree})["a"]
    )


def test_where_shared_pages_cannot_be_told_the_resident_ones_count(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = tree_memory.look({"a": tree})["a"]
    monkeypatch.setattr(tree_memory, "proportional", lambda _pid: None)
    coarse = tree_memory.look({"a": tree})["a"]
    assert not coarse.exact
    assert coarse.held > exact.held


def test_a_tree_that_has_ended_holds_nothing() -> None:
    assert tree_memory.measure([2**22 - 1]) is None


# ---- the meter ------------------------------------------------------------------------------------------------------


def rig(tree: Tree, state: InstanceState, **device: int) -> tuple[Meter, Managed, list[str]]:
    told: list[str] = []
    table: dict[str, Managed] = {}
    desk = MemoryDesk(Ledger(10**10), table, PriceBook, lambda _name, _event: None, lambda: 0.0)
    managed = Managed(an_assignment(memory_mb=None), Lifecycle(state=state, target=Rung.READY), cast("Any", None), 0.0)
    managed.handle = cast("Any", SimpleNamespace(process=SimpleNamespace(mark=tree.mark, pid=tree.group)))
    table[managed.id] = managed
    meter = Meter(desk, lambda managed: told.append(managed.id), lambda _pids: device or None)
    return meter, managed, told


async def test_one_that_is_awake_is_measured_into_ledger_store_and_record(tree: Tree) -> None:
    meter, managed, told = rig(tree, InstanceState.READY, g0=7, g1=5)
    await meter.look()
    size = meter.desk.sizes.footprint(price_key(managed.assignment).text)
    assert size.awake == managed.resident_bytes > 48 * MIB
    assert size.peak is not None
    assert size.peak > size.awake
    assert (size.asleep, size.device_awake) == (None, 12)
    assert meter.desk.ledger.held(managed.id) == Claim(managed.resident_bytes, {"g0": 7, "g1": 5})
    assert told == [managed.id]


async def test_a_sleeper_is_measured_once_when_it_has_fallen_asleep(tree: Tree) -> None:
    meter, managed, told = rig(tree, InstanceState.ASLEEP)
    await meter.look()
    assert told == []
    meter.changed(managed)
    await meter.look()
    await meter.look()
    assert told == [managed.id]
    size = meter.desk.sizes.footprint(price_key(managed.assignment).text)
    assert size == Footprint(asleep=managed.resident_bytes)
    assert meter.desk.ledger.held(managed.id) == Claim(managed.resident_bytes)


async def test_it_looks_soon_after_an_instance_has_become_ready(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "SETTLE_S", 0.0)
    meter, managed, told = rig(tree, InstanceState.READY)
    running = asyncio.create_task(meter.run())
    meter.changed(managed)
    await until(lambda: told == [managed.id])
    await tasks.end([running])


async def test_who_holds_more_than_its_configured_size_is_named_once(tree: Tree, caplog: pytest.LogCaptureFixture) -> None:
    meter, managed, _told = rig(tree, InstanceState.READY)
    managed.assignment = managed.assignment.model_copy(update={"memory_mb": 1})
    meter.desk.hold(managed, MIB)
    managed.resident_bytes = 100 * MIB
    meter.compare()
    managed.resident_bytes += 1
    meter.compare()
    assert [record.message for record in caplog.records] == [
        f"the ledger is not what is there: {managed.id} holds {100 * MIB} bytes of host memory, {MIB} are promised to it"
    ]
    managed.resident_bytes = MIB
    meter.compare()
    managed.resident_bytes = 100 * MIB
    meter.compare()
    assert len(caplog.records) == 2, "it was well in between"


async def test_a_figure_of_a_state_that_is_over_is_dropped(tree: Tree) -> None:
    """The engine is suspended or replaced while a thread still counts its pages."""
    meter, managed, told = rig(tree, InstanceState.READY)
    looking = asyncio.create_task(meter.look())
    await asyncio.sleep(0)
    managed.life = replace(managed.life, state=InstanceState.SUSPENDING)
    await looking
    assert (told, managed.resident_bytes) == ([], 0)
