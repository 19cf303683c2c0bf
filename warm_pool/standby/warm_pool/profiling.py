"""Profiles of this node's engines: one at a time, for a bounded time, kept in a folder of their own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from standby.bus.connection import Bus
from standby.bus.subjects import profile_subject
from standby.bus.subscription import Subscription
from standby.domain.errors import Conflict, DiskFull, InvalidInput, NotFound
from standby.domain.instance import InstanceState
from standby.domain.model import EngineKind
from standby.domain.profiles import ID, MANIFEST, LeftOut, ProfileAction, ProfileAnswer, ProfileFile, ProfileOrder, ProfileState
from standby.host import tasks
from standby.runtime.engines.vllm_options import VllmOptions
from standby.warm_pool.managed import Managed
from standby.warm_pool.nvidia_profilers import WORDS, command_lines, engine_command
from standby.warm_pool.profile_recorders import PY_SPY_MISSING, Recorder, Stacks, TorchTrace, find_py_spy, names_of

_log = logging.getLogger(__name__)

LEASE_S: Final = 15.0
"""Who asked looks every half second; one who has been silent for this long is gone."""
KEPT: Final = 5
LEAST_FREE: Final = 2 * 2**30
"""A profile has hundreds of megabytes at most; the node's cache, logs and state lie on the same disk."""
_LOOK_S: Final = 0.1
_MOST_INSTANCES: Final = 8


def free_at(folder: Path) -> int:
    """Return the bytes that are free where ``folder`` is, or will be."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


@dataclass
class Session:
    """One profile under way, or ended."""

    order: ProfileOrder
    folder: Path
    began_at: float
    began: float
    state: ProfileState = ProfileState.RECORDING
    recorded_s: float = 0.0
    stopped: str = ""
    looked: float = 0.0
    left_out: list[LeftOut] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    files: tuple[ProfileFile, ...] = ()
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, why: str) -> None:
        """Stop recording before its time; what has been recorded is kept."""
        if self.state is ProfileState.RECORDING and not self.stop.is_set():
            self.stopped = why
            self.stop.set()

    def answer(self, node: str, now: float) -> ProfileAnswer:
        """Return how it stands."""
        recording = self.state is ProfileState.RECORDING
        return ProfileAnswer(
            node=node,
            id=self.order.id,
            endpoint=self.order.endpoint,
            state=self.state,
            began_at=self.began_at,
            seconds=self.order.seconds,
            recorded_s=round(min(now - self.began, self.order.seconds) if recording else self.recorded_s, 2),
            stopped=self.stopped,
            folder=str(self.folder),
            files=self.files,
            left_out=tuple(self.left_out),
            commands=tuple(self.commands),
        )


@dataclass
class Profiler:
    """Owned by the agent's loop. ``instances`` are the agent's; ``folder`` holds the last few profiles."""

    node: str
    instances: Mapping[str, Managed]
    folder: Path
    py_spy: Callable[[], str | None] = find_py_spy
    clock: Callable[[], float] = time.monotonic
    lease_s: float = LEASE_S
    free: Callable[[Path], int] = free_at
    _sessions: OrderedDict[str, Session] = field(default_factory=OrderedDict)
    _task: asyncio.Task[None] | None = None

    async def serve(self, bus: Bus) -> Subscription:
        """Take orders from the bus. Raises BusUnavailable."""
        return await bus.serve(profile_subject(self.node), self.answer)

    async def answer(self, _subject: str, payload: bytes) -> bytes:
        """Return the encoded ProfileAnswer to an encoded ProfileOrder. Raises as ``carry_out`` does, and InvalidInput."""
        try:
            order = ProfileOrder.model_validate_json(payload)
        except ValidationError as error:
            first = error.errors()[0]
            raise InvalidInput(
                f"no order for a profile: {'.'.join(map(str, first['loc']))}: {first['msg']}",
                remedy="use a client of this version",
            ) from None
        return self.carry_out(order).encode()

    def carry_out(self, order: ProfileOrder) -> ProfileAnswer:
        """Start, look at or stop a profile; never waits.

        Raises NotFound, Conflict (another one is being recorded), DiskFull.
        """
        session = self._sessions.get(order.id)
        if session is None:
            if order.action is not ProfileAction.START:
                raise NotFound(f"node {self.node!r} knows no profile {order.id!r}", remedy="it keeps the last few only")
            session = self._start(order)
        session.looked = self.clock()
        if order.action is ProfileAction.STOP:
            session.end(f"stopped by {order.by}")
        return session.answer(self.node, self.clock())

    async def close(self) -> None:
        """End what is being recorded, with its processes."""
        await tasks.end([] if self._task is None else [self._task])

    # ---- one profile -----------------------------------------------------------------------------------------------

    def _start(self, order: ProfileOrder) -> Session:
        busy = next((one for one in self._sessions.values() if one.state is not ProfileState.DONE), None)
        if busy is not None:
            raise Conflict(
                f"node {self.node!r} is recording profile {busy.order.id} of endpoint {busy.order.endpoint!r} already",
                remedy="wait until it is done; two at once would measure each other",
            )
        free = self.free(self.folder)
        if free < LEAST_FREE:
            raise DiskFull(
                f"node {self.node!r} has {free / 2**30:.1f} GiB free for a profile, it needs {LEAST_FREE / 2**30:g}",
                remedy=f"make room on the disk of {self.folder}",
            )
        session = Session(order, self.folder / order.id, time.time(), self.clock(), looked=self.clock())
        self._sessions[order.id] = session
        while len(self._sessions) > KEPT:
            self._sessions.popitem(last=False)
        self._task = asyncio.create_task(self._run(session), name=f"profile {order.id}")
        return session

    async def _run(self, session: Session) -> None:
        watching = asyncio.create_task(self._watch(session))
        try:
            await asyncio.to_thread(_make_room, self.folder, session.folder)
            recorders = self._recorders(session)
            _log.info("profile %s of %s by %s", session.order.id, session.order.endpoint, session.order.by)
            for left in await asyncio.gather(
                *(one.record(session.folder, session.order.seconds, session.stop) for one in recorders)
            ):
                session.left_out += left
            session.recorded_s = round(self.clock() - session.began, 2)
            session.state = ProfileState.WRITING
            await asyncio.to_thread(_finish, session)
        except Exception as error:  # noqa: BLE001 - whoever waits for it must hear that nothing comes
            _log.exception("profile %s", session.order.id)
            session.left_out.append(LeftOut(what="the profile", reason=f"{type(error).__name__}: {error}"))
        finally:
            await tasks.end([watching])
        # Before it is done: who hears that it is reads the manifest next.
        await asyncio.to_thread(_write_manifest, session, self.node)
        session.state = ProfileState.DONE

    async def _watch(self, session: Session) -> None:
        """Stop it when whoever asked is gone, or when an engine leaves ready: a stopped process must not be sampled."""
        meant = [one for one in self.instances.values() if _is_meant(one, session.order) and _is_ready(one)]
        while True:
            await asyncio.sleep(_LOOK_S)
            if self.clock() - session.looked > self.lease_s:
                session.end("whoever asked for it has gone")
            for managed in meant:
                if not _is_ready(managed):
                    session.end(f"instance {managed.id} became {managed.life.state.value}")

    def _recorders(self, session: Session) -> list[Recorder]:
        """Return what is recorded, noting what cannot be and why."""
        order, py_spy = session.order, self.py_spy()
        found: list[Recorder] = []
        if py_spy is None:
            session.left_out.append(PY_SPY_MISSING)
        taken = 0
        for managed in sorted(self.instances.values(), key=lambda one: one.id):
            if not _is_meant(managed, order):
                continue
            if not _is_ready(managed):
                reason = f"it is {managed.life.state.value}: only a ready engine works"
                session.left_out.append(LeftOut(what=f"instance {managed.id}", reason=reason, remedy="ask it something first"))
            elif taken == _MOST_INSTANCES:
                session.left_out.append(LeftOut(what=f"instance {managed.id}", reason=f"{_MOST_INSTANCES} are enough"))
            else:
                taken += 1
                found += self._recorders_of(session, managed, py_spy)
        if order.node_too and py_spy is not None:
            found.append(Stacks(py_spy, f"node-{self.node}", os.getpid(), f"node agent {self.node}", order.native))
        return found

    def _recorders_of(self, session: Session, managed: Managed, py_spy: str | None) -> list[Recorder]:
        handle = managed.handle
        assert handle is not None, "a ready instance has an engine"
        found: list[Recorder] = []
        if py_spy is not None:
            found.append(Stacks(py_spy, managed.id, handle.pid, f"instance {managed.id}", session.order.native))
        kind = managed.assignment.model.engine
        if kind is EngineKind.VLLM:
            if VllmOptions.parse(handle.spec.options).profile:
                found.append(TorchTrace(managed.id, handle))
            else:
                reason, remedy = "its engine was started without it", "register the model with --option profile=true"
                session.left_out.append(LeftOut(what=f"torch trace of {managed.id}", reason=reason, remedy=remedy))
        if managed.devices:
            command = engine_command(handle, kind, session.folder / "profiled.sock")
            session.commands += command_lines(command, managed.devices, session.order.seconds, str(session.folder))
        else:
            reason = "its engine computes on processors, nsys and ncu look at GPUs"
            session.left_out.append(LeftOut(what=f"NVIDIA's profilers for {managed.id}", reason=reason))
        return found


def _is_meant(managed: Managed, order: ProfileOrder) -> bool:
    return (managed.assignment.tenant, managed.assignment.endpoint) == (order.tenant, order.endpoint)


def _is_ready(managed: Managed) -> bool:
    return managed.life.state is InstanceState.READY and managed.handle is not None


def _make_room(folder: Path, own: Path) -> None:
    """Make the profile's folder (0700), and remove all but the newest others; nothing but profiles is ever touched."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    earlier = [path for path in folder.iterdir() if re.fullmatch(ID, path.name) and path.is_dir() and not path.is_symlink()]
    earlier.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in earlier[KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
    own.mkdir(mode=0o700)


def _finish(session: Session) -> None:
    if session.commands:
        (session.folder / "nvidia.sh").write_text(WORDS + "\n".join(session.commands) + "\n")
    paths = sorted(path for path in session.folder.iterdir() if path.is_file())
    told = names_of(paths)
    session.files = tuple(ProfileFile(name=path.name, bytes=path.stat().st_size, what=told[path.name]) for path in paths)


def _write_manifest(session: Session, node: str) -> None:
    answer = session.answer(node, session.began + session.recorded_s).model_copy(update={"state": ProfileState.DONE})
    content = answer.model_dump(mode="json", exclude={"schema_version"})
    try:
        (session.folder / MANIFEST).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        _log.warning("the manifest of profile %s could not be written: %s", session.order.id, error)
