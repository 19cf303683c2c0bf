"""A zygote with the stand-in profile, and what one asks of its forks in tests."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from standby.domain.model import EngineKind
from standby.runtime.process import EngineProcess
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.procfs import process_stat, processes
from standby.runtime.zygote.host import Zygote, ZygotePlan
from support.waiting import until

TESTS: Final = Path(__file__).parents[1]
START_LIMIT_S: Final = 90.0


def plan(*, fork_limit_s: float = 10.0, profile: str = "support.zygote_profile", **knobs: object) -> ZygotePlan:
    """Plan for a stand-in; ``fork="die"`` sets STAND_IN_FORK."""
    environment = {f"STAND_IN_{name.upper()}": str(value) for name, value in knobs.items()}
    return ZygotePlan(
        kind=EngineKind.FAKE,
        python=Path(sys.executable),
        profile=profile,
        environment={"PYTHONPATH": str(TESTS), **environment},
        fork_limit_s=fork_limit_s,
    )


@dataclass
class Rig:
    """A zygote and the engines that were forked from it."""

    zygote: Zygote
    ledger: ProcessLedger
    folder: Path
    engines: list[EngineProcess] = field(default_factory=list)
    zombies_before: frozenset[int] = field(default_factory=lambda: frozenset(zombies()))

    def zombies(self) -> list[int]:
        """Children that ended and were not waited for since this rig was made."""
        return [pid for pid in zombies() if pid not in self.zombies_before]

    async def fork(self, number: int = 0, *, wait: bool = True, mark: str = "", **spec: Any) -> EngineProcess:
        """Fork an engine and, with ``wait``, return once it has written its report."""
        mark = mark or f"{number:032x}"
        process = await self.zygote.fork(
            arguments=[json.dumps({"report": str(self.report_file(number)), **spec})],
            environment={"GIVEN": "yes"},
            log=self.log(number),
            mark=mark,
        )
        self.engines.append(process)
        if wait:
            await until(lambda: self.report_file(number).exists() or process.status is not None, "the engine's report")
        return process

    def report_file(self, number: int = 0) -> Path:
        """Where engine ``number`` writes what it sees."""
        return self.folder / f"report{number}.json"

    def report(self, number: int = 0) -> dict[str, Any]:
        """What engine ``number`` saw."""
        found: dict[str, Any] = json.loads(self.report_file(number).read_text())
        return found

    def log(self, number: int = 0) -> Path:
        """The log of engine ``number``."""
        return self.folder / f"engine{number}.log"


@asynccontextmanager
async def hatched(folder: Path, ledger: ProcessLedger, **knobs: Any) -> AsyncIterator[Rig]:
    """Yield a rig whose zygote is ready; everything of it is gone afterwards."""
    zygote = Zygote(plan(**knobs), ledger=ledger, log=folder / "zygote.log")
    await zygote.start(START_LIMIT_S)
    rig = Rig(zygote, ledger, folder)
    try:
        yield rig
    finally:
        await asyncio.gather(*(engine.stop(0.0) for engine in rig.engines))
        await zygote.stop()


def zombies() -> list[int]:
    """Children of this process that ended and were not waited for."""
    return [stat.pid for stat in processes() if not stat.alive and stat.parent == os.getpid()]


def descriptors(pid: int) -> int:
    """How many files ``pid`` has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def alive(pid: int) -> bool:
    """Whether ``pid`` runs."""
    stat = process_stat(pid)
    return stat is not None and stat.alive
