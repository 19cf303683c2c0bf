"""The processes of a deployment, whoever their parents are: every one carries the deployment's folder in ``TMPDIR``."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil


def processes_marked(root: Path) -> list[psutil.Process]:
    """Live processes whose ``TMPDIR`` is ``root`` or lies below it: every process of a deployment has one that does."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = process.pid != os.getpid() and Path(process.environ().get("TMPDIR", "/")).is_relative_to(root)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def command_line(process: psutil.Process) -> list[str]:
    """The command line, or nothing when the process has just ended."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def describe(process: psutil.Process) -> str:
    """A process in words."""
    return f"{process.pid} {' '.join(command_line(process))}"
