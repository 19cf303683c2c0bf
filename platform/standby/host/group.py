"""Starts a guarded child in a session of its own, and ends its whole group."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from standby.host.guard import guarded

KILL_LIMIT_S = 5.0


async def spawn(
    arguments: list[str], *, environment: Mapping[str, str], log: Path, folder: Path | None = None
) -> asyncio.subprocess.Process:
    """Start ``arguments`` with its output appended to ``log`` (mode 0600), its input closed, tied to this process."""
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return await asyncio.create_subprocess_exec(
            *guarded(arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


async def stop_group(process: asyncio.subprocess.Process, grace_s: float, first: signal.Signals = signal.SIGTERM) -> int:
    """End the child's group: ``first``, after ``grace_s`` KILL; wait for the child and return its exit code."""
    for step, limit in ((first, grace_s), (signal.SIGKILL, KILL_LIMIT_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, step)
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(process.wait(), limit)
    return await process.wait()


def log_tail(log: Path, lines: int = 12, *, since: int = 0) -> str:
    """Return the last lines of a log, for an error message; only of what comes after the first ``since`` bytes."""
    if not log.exists():
        return "(no log)"
    with log.open("rb") as handle:
        handle.seek(since)
        written = handle.read().decode(errors="replace")
    return "\n".join(written.splitlines()[-lines:]) or "(empty log)"
