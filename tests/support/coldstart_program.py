"""Programs that the benchmark starts beside standby's engines: watched, logged, and gone with all that they have started."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from standby.runtime.process import EngineProcess, spawn

_TAIL: Final = 2000
_GRACE_S: Final = 15.0


@asynccontextmanager
async def program(
    command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None, descriptors: Sequence[int] = ()
) -> AsyncIterator[EngineProcess]:
    """Yield the running program; every process of it is gone at the end, whatever happened.

    It sees what a user's shell has (PATH, HOME, the language), ``environment`` and no more: nothing that standby sets for
    its engines.
    """
    process = spawn(command, log=log, mark=secrets.token_hex(16), extra_environment=environment, keep_descriptors=descriptors)
    try:
        yield process
    finally:
        await process.stop(_GRACE_S)


def tail(log: Path) -> str:
    """Return the end of a log, for whoever has to find out why a start failed."""
    return log.read_text(errors="replace")[-_TAIL:] if log.exists() else ""
