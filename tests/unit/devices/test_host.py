"""The host's processors as devices, and their disjoint sets for engines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.domain.node import DeviceKind
from standby.runtime.devices.binding import bind, threads
from standby.runtime.devices.cores import CoreBook, allot
from standby.runtime.devices.host_cpu import core_list, host_devices, memory_limit
from support.waiting import until


def node(folder: Path, number: int, cores: str, total_kb: int, free_kb: int, cache_kb: int = 0) -> None:
    """Write what the kernel says of one NUMA node."""
    place = folder / f"node{number}"
    place.mkdir(parents=True)
    (place / "cpulist").write_text(cores + "\n")
    lines = {"MemTotal": total_kb, "MemFree": free_kb, "FilePages": cache_kb, "Shmem": 0, "SReclaimable": 0}
    (place / "meminfo").write_text("".join(f"Node {number} {name}:  {value} kB\n" for name, value in lines.items()))


def test_this_machine_has_processors() -> None:
    devices = host_devices()
    assert {core for device in devices for core in device.cores} == os.sched_getaffinity(0)
    for device in devices:
        assert (device.kind, device.id) == (DeviceKind.CPU, f"cpu-{device.numa_node}")
        assert 0 < device.memory_used < device.memory_total <= psutil.virtual_memory().total
        assert device.name


def test_nodes_are_narrowed_to_what_this_process_may_use(tmp_path: Path) -> None:
    node(tmp_path, 0, "0-3", 4000, 1000, 2000)
    node(tmp_path, 1, "4-7", 4000, 4000)
    node(tmp_path, 2, "", 9000, 9000)  # memory without processors
    node(tmp_path, 10, "8-9", 4000, 4000)
    devices = host_devices(nodes=tmp_path, allowed={2, 3, 8}, limit=0)
    assert [(device.id, device.cores) for device in devices] == [("cpu-0", (2, 3)), ("cpu-10", (8,))]
    assert (devices[0].memory_total, devices[0].memory_used) == (4000 * 1024, 1000 * 1024)


def test_a_memory_limit_is_shared_by_the_nodes(tmp_path: Path) -> None:
    node(tmp_path, 0, "0", 4000, 0)
    node(tmp_path, 1, "1", 4000, 4000)
    devices = host_devices(nodes=tmp_path, allowed={0, 1}, limit=4000 * 1024)
    assert [(device.memory_total, device.memory_used) for device in devices] == [(2000 * 1024, 2000 * 1024), (2000 * 1024, 0)]


def test_a_machine_that_tells_no_nodes_is_one_device(tmp_path: Path) -> None:
    (device,) = host_devices(nodes=tmp_path, allowed={0, 5}, limit=0)
    assert (device.id, device.cores, device.memory_total) == ("cpu-0", (0, 5), psutil.virtual_memory().total)


def test_the_least_memory_limit_above_counts(tmp_path: Path) -> None:
    """The limit of a parent holds for its children; version 1's "no limit" is a number larger than any memory."""
    inner = tmp_path / "unified/pod/box"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("1000000\n")
    old = tmp_path / "memory/box"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    own = tmp_path / "own"
    own.write_text("4:memory:/box\n2:cpu,cpuacct:/\n0::/pod/box\n")
    assert memory_limit(self_cgroup=own, root=tmp_path) == 1000000
    (old / "memory.limit_in_bytes").write_text("500000\n")
    assert memory_limit(self_cgroup=own, root=tmp_path) == 500000
    own.write_text("2:cpu:/\n")
    assert memory_limit(self_cgroup=own, root=tmp_path) is None


def test_lists_of_processors() -> None:
    assert core_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert core_list("\n") == ()


GROUPS = ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("free", "wanted", "cores", "own", "reason"),
    [
        (range(8), 0, (), False, "not bound"),
        (range(8), 3, (0, 1, 2), True, "3 cores of its own"),
        ((0, 1, 2, 3, 6, 7), 2, (6, 7), True, "2 cores of its own"),
        ((3, 4, 5, 6), 4, (3, 4, 5, 6), True, "4 cores of its own"),
        ((0, 1), 4, (0, 1), True, "no more of 4"),
        ((0,), 4, tuple(range(8)), False, "shares all 8 cores: 1 are left of the 4"),
        ((), 1, tuple(range(8)), False, "shares all 8 cores: 0 are left"),
    ],
)
@pytest.mark.decision
def test_which_cores_an_engine_gets(free: range, wanted: int, cores: tuple[int, ...], own: bool, reason: str) -> None:
    found = allot(frozenset(free), wanted, groups=GROUPS)
    assert (found.cores, found.own) == (cores, own)
    assert reason in found.reason


@given(st.integers(0, 9), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40))
@pytest.mark.decision
def test_no_core_ever_belongs_to_two_engines(wanted: int, moves: list[tuple[int, bool]]) -> None:
    book, held = CoreBook(GROUPS, wanted), dict[str, tuple[int, ...]]()
    for number, takes in moves:
        name = f"i{number}"
        if takes:
            found = book.take(name)
            assert set(found.cores) <= set(book.everything)
            if found.own:
                held[name] = found.cores
        else:
            book.give_back(name)
            held.pop(name, None)
        owned = [core for cores in held.values() for core in cores]
        assert len(owned) == len(set(owned))
        assert book.free == set(book.everything) - set(owned)


async def test_every_thread_of_an_engine_is_bound_and_can_be_bound_again() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    code = "import threading as t, time\nfor _ in range(3): t.Thread(target=time.sleep, args=(60,)).start()"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        await until(lambda: len(threads(process.pid)) == 4)
        for cores in ([allowed[-1]], allowed):
            assert bind([process.pid, 2**22 + 9], cores) == ""
            assert {frozenset(os.sched_getaffinity(thread)) for thread in threads(process.pid)} == {frozenset(cores)}
        assert bind([process.pid], []) == ""
        assert "cannot be bound to cores [4000]" in bind([process.pid], [4000])
    finally:
        process.kill()
        process.wait()
    assert bind([process.pid], allowed) == ""
