"""Remembers on disk every engine that runs, so that an agent that was killed can be cleaned up after."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from standby.domain.values import Record
from standby.runtime.process import EngineProcess
from standby.runtime.process_group import bury_strays, kill_members, members
from standby.runtime.procfs import boot_id, process_stat

_SUFFIX: Final = ".engine.json"


class ProcessRecord(Record):
    """One engine: written before it is spawned (``pid`` None) and again once its number is known."""

    mark: str
    boot_id: str
    instance: str
    epoch: int
    agent_pid: int
    pid: int | None = None
    start_ticks: int | None = None


@dataclass(frozen=True, slots=True)
class Reaped:
    """An engine that an earlier agent had left: ``killed`` are the processes that were still there."""

    instance: str
    epoch: int
    killed: tuple[int, ...]


class ProcessLedger:
    """One small file for each engine in ``folder``. Used by one agent at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._boot_id = boot_id()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def intend(self, instance: str, epoch: int) -> ProcessRecord:
        """Write that an engine is about to be spawned, and return the record with its mark.

        Written first: an agent killed right after the spawn would otherwise leave an engine that nobody knows of.
        """
        record = ProcessRecord(
            mark=secrets.token_hex(16), boot_id=self._boot_id, instance=instance, epoch=epoch, agent_pid=os.getpid()
        )
        self._write(record)
        return record

    def confirm(self, record: ProcessRecord, process: EngineProcess) -> None:
        """Add the number and start time of the process that was spawned."""
        self._write(record.model_copy(update={"pid": process.pid, "start_ticks": process.start_ticks}))

    def forget(self, mark: str) -> None:
        """Remove the record of an engine whose whole group is gone."""
        self._path(mark).unlink(missing_ok=True)

    def records(self) -> tuple[ProcessRecord, ...]:
        """Return every record on disk; a file that cannot be read is passed over and kept."""
        found: list[ProcessRecord] = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                found.append(ProcessRecord.model_validate_json(path.read_bytes()))
            except (ValidationError, FileNotFoundError):
                continue
        return tuple(found)

    async def reap_orphans(self) -> tuple[Reaped, ...]:
        """Kill what earlier agents left, wait until it is gone, and return what was killed.

        Only recorded processes of this boot are touched. A number that now has another start time was given to a
        stranger: the stranger and its group are left alone, and only processes that carry the mark are ended.
        Raises EngineError when a process does not end.
        """
        reaped: list[Reaped] = []
        for record in self.records():
            killed = await _end(record) if self._may_live(record) else ()
            self.forget(record.mark)
            if killed:
                reaped.append(Reaped(record.instance, record.epoch, killed))
        return tuple(reaped)

    def survivors(self) -> tuple[int, ...]:
        """Return the pids of every recorded engine that live now."""
        return tuple(
            stat.pid
            for record in self.records()
            if self._may_live(record)
            for stat in members(record.mark, group=_own_group(record))
        )

    def _may_live(self, record: ProcessRecord) -> bool:
        return record.boot_id == self._boot_id

    def _write(self, record: ProcessRecord) -> None:
        path = self._path(record.mark)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("w") as stream:
            json.dump(record.model_dump(mode="json"), stream)
        temporary.replace(path)  # atomic: a reader sees the old record or the new one

    def _path(self, mark: str) -> Path:
        return self._folder / f"{mark}{_SUFFIX}"


async def _end(record: ProcessRecord) -> tuple[int, ...]:
    """Kill what is left of an engine, and wait for those of its processes that we have inherited as a subreaper."""
    group = _own_group(record)
    killed = await kill_members(record.mark, group=group)
    if group is not None:
        await bury_strays(group)
    return killed


def _own_group(record: ProcessRecord) -> int | None:
    """Return the group number while its leader is certainly the recorded process, else None.

    A leader that is gone proves nothing: the kernel may have given its number away since the last member ended.
    """
    if record.pid is None:
        return None
    stat = process_stat(record.pid)
    return record.pid if stat is not None and stat.start_ticks == record.start_ticks else None
