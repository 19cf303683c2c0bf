"""The host's processors as devices: one for each NUMA node that this process may compute on."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from standby.domain.node import Device, DeviceKind

_NODES: Final = Path("/sys/devices/system/node")
_CPUINFO: Final = Path("/proc/cpuinfo")
_SELF_CGROUP: Final = Path("/proc/self/cgroup")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_NODE_NAME: Final = re.compile(r"node(\d+)$")


@dataclass(frozen=True, slots=True)
class _NumaNode:
    """Bytes, and the numbers of its processors that this process may use."""

    number: int
    cores: tuple[int, ...]
    total: int
    used: int


def host_devices(
    *, nodes: Path = _NODES, allowed: Collection[int] | None = None, limit: int | None = None
) -> tuple[Device, ...]:
    """Return ``cpu-<numa node>`` devices; ``allowed`` are the processors this process may use, ``limit`` its memory in bytes.

    Unset, both are what the kernel says (affinity with cgroup cpusets; the memory limits of all cgroups above). A CPU
    quota is a share of time, not a set of processors: it does not narrow ``cores``.
    """
    allowed = os.sched_getaffinity(0) if allowed is None else allowed
    limit = memory_limit() if limit is None else limit
    found = _numa_nodes(nodes, frozenset(allowed)) or (_whole_machine(frozenset(allowed)),)
    together = sum(node.total for node in found)
    share = min(1.0, limit / together) if limit and together else 1.0
    busy = psutil.cpu_percent(percpu=True)
    return tuple(
        Device(
            id=f"cpu-{node.number}",
            kind=DeviceKind.CPU,
            name=_model_name(),
            memory_total=int(node.total * share),
            memory_used=min(node.used, int(node.total * share)),
            utilisation=_mean([busy[core] for core in node.cores if core < len(busy)]),
            numa_node=node.number,
            cores=node.cores,
        )
        for node in found
    )


def memory_limit(*, self_cgroup: Path = _SELF_CGROUP, root: Path = _CGROUPS) -> int | None:
    """Return the least memory limit in bytes of the cgroups that this process is in, version 2 or 1; None: none."""
    limits: list[int] = []
    for line in _read(self_cgroup).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            base, name = (root / "unified" if (root / "unified").is_dir() else root), "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = base / path.lstrip("/")
        for place in (folder, *folder.parents):
            if not place.is_relative_to(base):
                break
            text = _read(place / name).strip()
            if text.isdigit():
                limits.append(int(text))
    # Version 1 says "no limit" with a number larger than any machine's memory.
    real = [value for value in limits if 0 < value < psutil.virtual_memory().total]
    return min(real, default=None)


def core_list(text: str) -> tuple[int, ...]:
    """Return the numbers of a kernel's list such as ``0-3,8,10-11``."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


def _numa_nodes(folder: Path, allowed: frozenset[int]) -> tuple[_NumaNode, ...]:
    found = []
    for place in sorted(folder.glob("node*")):
        match = _NODE_NAME.match(place.name)
        cores = tuple(core for core in core_list(_read(place / "cpulist")) if core in allowed)
        if match and cores:  # nodes without processors are memory alone, those of others are not ours
            memory = _meminfo(_read(place / "meminfo"))
            reclaimable = memory.get("FilePages", 0) - memory.get("Shmem", 0) + memory.get("SReclaimable", 0)
            total = memory.get("MemTotal", 0)
            used = max(0, total - memory.get("MemFree", 0) - reclaimable)
            found.append(_NumaNode(int(match[1]), cores, total, used))
    return tuple(sorted(found, key=lambda node: node.number))


def _whole_machine(allowed: frozenset[int]) -> _NumaNode:
    memory = psutil.virtual_memory()
    return _NumaNode(0, tuple(sorted(allowed)), memory.total, memory.total - memory.available)


def _meminfo(text: str) -> dict[str, int]:
    return {match[1]: int(match[2]) * 1024 for match in re.finditer(r"(\w+):\s+(\d+) kB", text)}


@functools.cache  # a file of 200 KB where there are many processors, which would be read at every look
def _model_name() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read(_CPUINFO), re.MULTILINE)
    return match[1].strip() if match else os.uname().machine


def _mean(shares: list[float]) -> float | None:
    return min(1.0, sum(shares) / len(shares) / 100) if shares else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
