"""Engines in cgroups: on a folder that behaves as the kernel's, and on the real file system where it may be written."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from standby.domain.errors import EngineError
from standby.domain.node import Device, DeviceKind
from standby.runtime import isolation_entry
from standby.runtime.isolation import Isolation, entry_environment
from standby.runtime.isolation_cell import Cell, CgroupFiles, Limits
from standby.runtime.isolation_policy import DeviceSharing, may_share
from standby.runtime.procfs import process_stat
from support.waiting import until

MIB = 2**20
ME = 4711


class FakeCgroups(CgroupFiles):
    """Ordinary files that keep the kernel's rules: who is where, no processes beside limits, no removal while occupied."""

    def __init__(self, root: Path, controllers: str = "cpuset cpu io memory pids") -> None:
        self.root = root
        self.controllers = controllers
        self.refuse_make: OSError | None = None
        self.writes: list[tuple[str, str]] = []
        self._fill(root, controllers)
        (root / "cgroup.type").unlink()

    def make(self, path: Path) -> None:
        if self.refuse_make is not None:
            raise self.refuse_make
        if not path.exists():
            path.mkdir()
            self._fill(path, self.read(path.parent / "cgroup.subtree_control"))

    def write(self, path: Path, text: str) -> None:
        if not path.exists():
            raise FileNotFoundError(path)
        self.writes.append((str(path.relative_to(self.root)), text))
        if path.name == "cgroup.procs":
            for other in self.root.rglob("cgroup.procs"):
                other.write_text("".join(f"{pid}\n" for pid in other.read_text().split() if pid != text))
            path.write_text(path.read_text() + f"{text}\n")
        elif path.name == "cgroup.subtree_control":
            if (path.parent / "cgroup.type").exists() and (path.parent / "cgroup.procs").read_text():
                raise OSError(errno.EBUSY, "Device or resource busy")
            path.write_text(f"{path.read_text()} {text.removeprefix('+')}".strip())
        elif path.name == "cgroup.kill":
            (path.parent / "cgroup.procs").write_text("")
        else:
            path.write_text(text)

    def remove(self, path: Path) -> None:
        if not path.exists():
            raise FileNotFoundError(path)
        if (path / "cgroup.procs").read_text() or any(child.is_dir() for child in path.iterdir()):
            raise OSError(errno.EBUSY, "Device or resource busy")
        for child in path.iterdir():
            child.unlink()
        path.rmdir()

    def _fill(self, path: Path, controllers: str) -> None:
        files = {"cgroup.procs": "", "cgroup.subtree_control": "", "cgroup.controllers": controllers, "cgroup.kill": ""}
        files |= {"cgroup.type": "domain"}
        if "memory" in controllers.split() and path != self.root:
            files |= {"memory.max": "max", "memory.oom.group": "0", "memory.peak": "0", "memory.events": "oom 0\noom_kill 0\n"}
        if "cpu" in controllers.split() and path != self.root:
            files |= {"cpu.max": "max 100000", "cpu.weight": "100"}
        if "pids" in controllers.split() and path != self.root:
            files |= {"pids.max": "max"}
        for name, text in files.items():
            (path / name).write_text(text)


class Machine:
    """A fake tree with the agent in ``/system.slice/standby.service``."""

    def __init__(self, folder: Path, *, controllers: str = "cpuset cpu io memory pids", others: str = "") -> None:
        folder.joinpath("fs").mkdir()
        self.files = FakeCgroups(folder / "fs", controllers)
        (folder / "fs/cgroup.subtree_control").write_text(controllers)
        self.files.make(folder / "fs/system.slice")
        (folder / "fs/system.slice/cgroup.subtree_control").write_text(controllers)
        self.own = folder / "fs/system.slice/standby.service"
        self.files.make(self.own)
        (self.own / "cgroup.procs").write_text(f"{ME}\n{others}")
        self.self_cgroup = folder / "self"
        self.self_cgroup.write_text("0::/system.slice/standby.service\n")
        self.root = folder / "fs"

    def open(self) -> Isolation:
        return Isolation.open("n1", root=self.root, self_cgroup=self.self_cgroup, files=self.files, pid=ME)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_where_it_may_each_engine_gets_its_limits(machine: Machine) -> None:
    isolation = machine.open()
    assert isolation.controllers == ("memory", "cpu", "pids")
    assert isolation.describe(DeviceSharing.EXCLUSIVE_TENANT) == (
        "each engine in a cgroup of its own, ended as one; limited there: memory, cpu, pids; "
        "a GPU or MIG instance serves one tenant at a time"
    )
    assert (machine.own / "standby-agent-n1/cgroup.procs").read_text() == f"{ME}\n"
    cell = isolation.create("i-7", 3, Limits(memory_max=512 * MIB, cpus=1.5, cpu_weight=200, pids_max=900))
    assert cell is not None
    found = {name: (cell.path / name).read_text() for name in ("memory.max", "memory.oom.group", "cpu.max", "cpu.weight")}
    assert found == {"memory.max": str(512 * MIB), "memory.oom.group": "1", "cpu.max": "150000 100000", "cpu.weight": "200"}
    assert (cell.path / "pids.max").read_text() == "900"
    assert cell.path == machine.own / "standby-engines-n1/i-7-3"


def test_an_engine_without_limits_has_none(machine: Machine) -> None:
    cell = machine.open().create("i-7", 1, Limits())
    assert cell is not None
    assert ((cell.path / "memory.max").read_text(), (cell.path / "memory.oom.group").read_text()) == ("max", "0")


def test_an_agent_that_has_moved_itself_finds_its_place_again(machine: Machine) -> None:
    machine.open()
    machine.self_cgroup.write_text("0::/system.slice/standby.service/standby-agent-n1\n")
    isolation = machine.open()
    assert isolation.controllers == ("memory", "cpu", "pids")
    assert not list((machine.own / "standby-agent-n1").glob("standby-*"))


def test_other_processes_in_the_agents_cgroup_leave_it_without_limits(tmp_path: Path) -> None:
    """As under one supervisor with other components: the kernel lets nobody limit children beside processes."""
    isolation = Machine(tmp_path, others="12\n").open()
    assert (isolation.available, isolation.controllers) == (True, ())
    assert "not limited: memory, cpu, pids (other processes share the agent's cgroup" in isolation.describe()
    assert "Delegate=yes" in isolation.describe()


def test_controllers_that_belong_to_version_1_are_named(tmp_path: Path) -> None:
    isolation = Machine(tmp_path, controllers="cpu").open()
    assert isolation.controllers == ("cpu",)
    assert "not limited: memory, pids (their controllers belong to cgroup version 1" in isolation.describe()
    cell = isolation.create("i-1", 1, Limits(memory_max=MIB, cpus=1))
    assert cell is not None
    assert (cell.path / "cpu.max").read_text() == "100000 100000"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_where_nothing_may_be_written_nothing_fails(machine: Machine, number: int) -> None:
    machine.files.refuse_make = OSError(number, os.strerror(number))
    isolation = machine.open()
    assert isolation.create("i-1", 1, Limits(memory_max=MIB)) is None
    assert isolation.describe().startswith(f"no cgroups (cgroup version 2 is not writable: {os.strerror(number)}): engines are")
    assert entry_environment(None) == {}
    isolation.close()


def test_what_the_kernel_refuses_halfway_leaves_fewer_limits_and_never_fails(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a cgroup that is threaded, or with a controller that was taken away meanwhile."""
    write = machine.files.write

    def refuse(path: Path, text: str) -> None:
        if path.name == "cgroup.subtree_control" and "standby-engines" in path.parent.name and text == "+cpu":
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        write(path, text)

    monkeypatch.setattr(machine.files, "write", refuse)
    isolation = machine.open()
    assert isolation.controllers == ("memory", "pids")
    assert "not limited: cpu (Operation not supported" in isolation.describe()


def test_leftovers_that_may_not_be_removed_do_not_keep_the_agent_from_starting(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.open().create("i-old", 1, Limits()) is not None

    def refuse(_path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(machine.files, "remove", refuse)
    isolation = machine.open()
    assert isolation.available
    isolation.close()


def test_a_process_file_system_that_hides_cgroups_is_said(machine: Machine) -> None:
    machine.self_cgroup.unlink()
    assert "cannot be seen from here" in machine.open().describe()


def test_version_1_alone_a_foreign_cgroup_and_an_operators_no(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    assert "(cgroup version 2 is not mounted)" in Isolation.open("n", root=tmp_path / "v1").describe()
    assert "(switched off)" in Isolation.open("n", wanted=False).describe()
    for own in ("0::/../../elsewhere\n", "0::/nowhere\n", "4:memory:/\n"):
        machine.self_cgroup.write_text(own)
        assert "cannot be seen from here" in machine.open().describe()


def test_what_an_earlier_agent_left_is_ended_and_removed(machine: Machine) -> None:
    left = machine.open().create("i-old", 1, Limits())
    assert left is not None
    assert left.admit(99)
    assert machine.open().available
    assert not left.path.exists()
    assert ("system.slice/standby.service/standby-engines-n1/i-old-1/cgroup.kill", "1") in machine.files.writes


def test_processes_that_were_forked_before_the_move_are_gathered(machine: Machine) -> None:
    cell = machine.open().create("i-1", 1, Limits())
    assert cell is not None
    rounds = iter([{1, 2}, {1, 2, 3}, {1, 2, 3}])
    assert cell.gather(lambda: next(rounds)) == ""
    assert set(cell.members()) == {1, 2, 3}


def test_processes_that_cannot_be_moved_are_named(machine: Machine) -> None:
    cell = machine.open().create("i-1", 1, Limits())
    assert cell is not None
    (cell.path / "cgroup.procs").unlink()
    assert "processes [5] cannot be moved" in cell.gather(lambda: [5])


def test_a_kill_for_want_of_memory_is_told_with_limit_and_peak(machine: Machine) -> None:
    cell = machine.open().create("i-1", 1, Limits(memory_max=512 * MIB))
    assert cell is not None
    assert cell.out_of_memory() is None
    (cell.path / "memory.events").write_text("low 0\noom 1\noom_kill 2\noom_group_kill 1\n")
    (cell.path / "memory.peak").write_text(f"{511 * MIB}\n")
    found = cell.out_of_memory()
    assert found is not None
    assert found.words == "killed by the kernel: its memory limit of 512 MiB (it held 511 MiB at most)"
    (cell.path / "memory.peak").unlink()  # before Linux 5.19
    assert cell.peak() is None


async def test_a_cell_is_removed_when_its_last_process_has_gone(machine: Machine) -> None:
    isolation = machine.open()
    cell = isolation.create("i-1", 1, Limits())
    assert cell is not None
    cell.admit(5)
    with pytest.raises(EngineError, match=r"still holds processes \(5,\)"):
        await cell.remove(0.05)
    removing = asyncio.create_task(cell.remove(60))
    await asyncio.sleep(0.01)
    assert cell.kill()
    await removing
    assert not cell.path.exists()
    await cell.remove(1)  # once more does no harm
    isolation.close()
    assert not (machine.own / "standby-engines-n1").exists()


@pytest.fixture
def real() -> Iterator[Isolation]:
    """The real file system, where this user may make cgroups in it."""
    isolation = Isolation.open(f"test-{secrets.token_hex(4)}")
    if not isolation.available:
        pytest.skip(isolation.describe())
    yield isolation
    isolation.close()


async def test_a_real_engine_enters_its_cgroup_by_itself_and_ends_with_it(real: Isolation) -> None:
    """Its helper is born inside, in a session of its own, and is ended as well."""
    cell = real.create("i-1", 1, Limits())
    assert cell is not None
    code = (
        "import runpy, subprocess, sys, time; runpy.run_path(sys.argv[1])['enter']();"
        "subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, isolation_entry.__file__], env={**os.environ, **entry_environment(cell)}
    )
    try:
        await until(lambda: len(cell.members()) == 2)
        members = cell.members()
        assert process.pid in members
        assert cell.kill()
        assert process.wait(60) == -9
        await cell.remove()
        assert all(stat is None or not stat.alive for stat in map(process_stat, members))
    finally:
        cell.kill()
        process.kill()
        process.wait()


async def test_a_real_process_is_moved_by_the_agent(real: Isolation) -> None:
    cell = real.create("i-2", 1, Limits())
    assert cell is not None
    process = subprocess.Popen(["sleep", "600"])
    try:
        assert cell.gather(lambda: [process.pid]) == ""
        assert cell.members() == (process.pid,)
    finally:
        process.kill()
        process.wait()
        await cell.remove()
    assert not cell.admit(process.pid)


def test_entering_without_a_cgroup_or_without_leave_goes_on(tmp_path: Path) -> None:
    assert not isolation_entry.enter({})
    assert not isolation_entry.enter({isolation_entry.CGROUP_VARIABLE: str(tmp_path / "gone")})
    assert entry_environment(Cell(tmp_path, CgroupFiles(), Limits())) == {isolation_entry.CGROUP_VARIABLE: str(tmp_path)}


GPU = Device(id="GPU-1", kind=DeviceKind.GPU)
MIG = Device(id="MIG-1", kind=DeviceKind.MIG, parent="GPU-2")
CPU = Device(id="cpu-0", kind=DeviceKind.CPU)


@pytest.mark.decision
@pytest.mark.parametrize(
    ("device", "occupants", "sharing", "may", "reason"),
    [
        (GPU, [], DeviceSharing.EXCLUSIVE_TENANT, True, "no other tenant"),
        (GPU, ["a", "a"], DeviceSharing.EXCLUSIVE_TENANT, True, "no other tenant"),
        (GPU, ["a", "b"], DeviceSharing.EXCLUSIVE_TENANT, False, "GPU GPU-1 belongs to tenant b"),
        (MIG, ["b"], DeviceSharing.EXCLUSIVE_TENANT, False, "MIG instance MIG-1 belongs to tenant b"),
        (GPU, ["b"], DeviceSharing.SHARED, True, "tenants share devices here"),
        (CPU, ["b"], DeviceSharing.EXCLUSIVE_TENANT, True, "operating system"),
    ],
)
def test_who_may_share_a_device(device: Device, occupants: list[str], sharing: DeviceSharing, may: bool, reason: str) -> None:
    answer, words = may_share(device, "a", occupants, sharing)
    assert answer is may
    assert reason in words
