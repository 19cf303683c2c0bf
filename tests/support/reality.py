"""What is really there of a node's engines, held against what the node says: processes, files, memory.

``await assert_clean(reality)`` after each fault: within seconds no process is left that no engine of the node owns, no
folder or socket that no engine uses, and the node's ledger promises exactly what its engines hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from standby.domain.instance import HAS_PROCESS, InstanceState
from standby.runtime.process_group import MARK_VARIABLE
from standby.runtime.process_ledger import ProcessLedger, ProcessRecord
from standby.warm_pool.run_dir import run_dir
from support.waiting import until

Json = dict[str, Any]
CLEAN_S: Final = 30.0
"""A moment, on a busy machine; what is forgotten lives for ten minutes."""
MIB: Final = 2**20
# Two looks at a process that serves differ by less.
TOLERANCE: Final = 64 * MIB
_ZYGOTE: Final = "zygote-"
_SETTLED: Final = frozenset({InstanceState.READY, InstanceState.ASLEEP})


@dataclass
class Reality:
    """``temporary`` is the folder in which the temporary files of the deployment's processes lie, and nobody else's.

    ``read(path)`` asks the control API as the administrator. ``promised``: by endpoint, the bytes that its configuration
    reserves; where every endpoint has a size, the ledger must be exact. ``others`` lists the instances of other tenants.
    """

    node_state: Path
    temporary: Path
    read: Callable[[str], Awaitable[Json]]
    promised: dict[str, int] = field(default_factory=dict)
    others: list[Callable[[], Awaitable[Sequence[Json]]]] = field(default_factory=list)

    # ---- what is there ------------------------------------------------------------------------------------------------

    def engines(self) -> dict[int, str]:
        """Every live process that carries an engine's mark: its number and the mark."""
        return {process.pid: mark for process, mark in self._marked()}

    def tree(self, instance: str) -> list[psutil.Process]:
        """The processes of an instance's engine, whoever is their parent, the first one first."""
        (record,) = [one for one in self.records() if one.instance == instance]
        found = [process for process, mark in self._marked() if mark == record.mark]
        return sorted(found, key=lambda process: process.pid != record.pid)

    def all_processes(self) -> list[psutil.Process]:
        """The processes of all engines and zygotes."""
        return [process for process, _mark in self._marked()]

    def zygotes(self) -> list[psutil.Process]:
        """The processes that engines are forked from."""
        pids = {one.pid for one in self.records() if one.instance.startswith(_ZYGOTE)}
        return [process for process, _mark in self._marked() if process.pid in pids]

    def records(self) -> tuple[ProcessRecord, ...]:
        """What the agent has on record of its processes."""
        return ProcessLedger(self.node_state / "processes").records()

    async def node(self) -> Json:
        """The node as the API shows it."""
        found: Json = (await self.read("/nodes"))["nodes"][0]
        return found

    async def instances(self) -> list[Json]:
        """All instances, of whichever tenant."""
        found: list[Json] = (await self.read("/instances"))["instances"]
        for ask in self.others:
            found.extend(await ask())
        return found

    def _marked(self) -> Iterator[tuple[psutil.Process, str]]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                there = process.environ()
                ours = Path(there.get("TMPDIR", "/")).is_relative_to(self.temporary)
                if ours and there.get(MARK_VARIABLE) and alive(process):
                    yield process, there[MARK_VARIABLE]

    # ---- where it differs from what is said ---------------------------------------------------------------------------

    async def differences(self, gone: Iterable[psutil.Process]) -> list[str]:
        """Return in words where what is there and what is said differ; empty when all is well."""
        node, instances = await self.node(), await self.instances()
        records, marked = self.records(), await asyncio.to_thread(lambda: list(self._marked()))
        owned = {one["id"]: one for one in instances if InstanceState(one["state"]) in HAS_PROCESS}
        hatched = {kind: one for kind, one in node["zygotes"].items() if one["state"] in {"ready", "hatching"}}
        names = {one.instance for one in records}
        return [
            *(f"still there: {words(process)}" for process in gone if alive(process)),
            *_of_processes(records, marked),
            *_of_records(records, owned, set(hatched)),
            *(f"the zygote of {kind} is ready and not on record" for kind in hatched if f"{_ZYGOTE}{kind}" not in names),
            *_of_zombies(records),
            *self._of_files(records),
            *_of_memory(node, owned.values(), self.promised, marked),
        ]

    def _of_files(self, records: Sequence[ProcessRecord]) -> Iterator[str]:
        lives = [f"{one.instance}-{one.epoch}" for one in records if not one.instance.startswith(_ZYGOTE)]
        # Each life has a folder of its name, and one for temporary files whose name is made from it.
        used = {*lives, *(hashlib.sha256(life.encode()).hexdigest()[:8] for life in lives)}
        folder = run_dir(self.node_state)
        yield from (f"left in the run folder: {path.name}" for path in folder.iterdir() if path.name not in used)
        open_now = {line.rpartition(" ")[2] for line in Path("/proc/net/unix").read_text().splitlines()}
        for path in sockets_below(self.temporary):
            if str(path) not in open_now:
                yield f"a socket that nobody has open: {path}"


def _of_processes(records: Sequence[ProcessRecord], marked: Iterable[tuple[psutil.Process, str]]) -> Iterator[str]:
    known = {one.mark for one in records}
    for process, mark in marked:
        if mark not in known:
            yield f"of no engine on record: {words(process)}"


def _of_records(records: Sequence[ProcessRecord], owned: Mapping[str, Json], zygotes: set[str]) -> Iterator[str]:
    for one in records:
        if one.instance not in owned and one.instance.removeprefix(_ZYGOTE) not in zygotes:
            yield f"on record, but no instance has it: {one.instance}"
        if not psutil.pid_exists(one.agent_pid):
            yield f"on record of an agent that has ended: {one.instance}"
        if one.pid is not None and not psutil.pid_exists(one.pid):
            yield f"on record without its process: {one.instance}"
    on_record = {one.instance for one in records}
    yield from (
        f"{one['id']} is {one['state']} and has no process on record"
        for one in owned.values()
        if one["state"] in _SETTLED and one["id"] not in on_record
    )


def _of_zombies(records: Sequence[ProcessRecord]) -> Iterator[str]:
    for agent in {one.agent_pid for one in records}:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            for child in psutil.Process(agent).children():
                if child.status() == psutil.STATUS_ZOMBIE:
                    group, session = os.getpgid(child.pid), os.getsid(child.pid)
                    named = f"{child.name()} {child.pid} of group {group} and session {session}"
                    yield f"nobody has waited for {named}; of the agent's children live {[one.pid for one in living(agent)]}"


def _of_memory(
    node: Json, owned: Iterable[Json], promised: Mapping[str, int], marked: Iterable[tuple[psutil.Process, str]]
) -> Iterator[str]:
    reserved, resident = node["memory"]["reserved"], node["memory"]["resident"]
    zygotes = sum(one["resident_bytes"] for one in node["zygotes"].values())
    owned = list(owned)
    held = sum(one["resident_bytes"] for one in owned)
    if resident != held:
        yield f"the node says that {resident} bytes are held, its instances {held}"
    if all(one["endpoint"] in promised for one in owned):
        claims = sum(one["resident_bytes"] if one["state"] == "asleep" else promised[one["endpoint"]] for one in owned)
        if reserved != claims + zygotes:
            yield f"{reserved} bytes are promised; instances and zygotes have a claim on {claims} and {zygotes}"
    elif reserved < held + zygotes - TOLERANCE:
        yield f"{reserved} bytes are promised, {held + zygotes} are held"
    there = sum(memory_of(process) for process, _mark in marked)
    if there > reserved + TOLERANCE:
        yield f"the processes hold {there} bytes, {reserved} are promised"


async def assert_clean(reality: Reality, *, gone: Iterable[psutil.Process] = (), within_s: float = CLEAN_S) -> None:
    """Wait until what is there is what the node says, and no process of ``gone`` lives; fail with every difference."""
    expected, found = tuple(gone), ["nobody has looked"]

    async def clean() -> bool:
        found[:] = await reality.differences(expected)
        return not found

    try:
        await until(clean, "what is there is what the node says", within_s)
    except AssertionError as error:
        raise AssertionError(f"{error}: {'; '.join(found)}; instances: {await reality.instances()}") from None


def living(parent: int) -> list[psutil.Process]:
    """The live children of a process."""
    return [child for child in psutil.Process(parent).children() if alive(child)]


def alive(process: psutil.Process) -> bool:
    """Whether exactly this process still runs; a zombie does not."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def memory_of(process: psutil.Process) -> int:
    """The process's share of memory in bytes (PSS); 0 when it has ended."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def words(process: psutil.Process) -> str:
    """A process for a person."""
    with contextlib.suppress(psutil.Error):
        return f"process {process.pid} ({' '.join(process.cmdline())[-160:]})"
    return f"process {process.pid}"


def sockets_below(folder: Path) -> Iterator[Path]:
    """Every unix socket in ``folder`` and what lies in it."""
    for where, _folders, names in os.walk(folder):
        for name in names:
            path = Path(where) / name
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(path.lstat().st_mode):
                    yield path
