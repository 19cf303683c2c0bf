"""The agent's side of a zygote: hatched once, asked for forks, never trusted to be alive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from standby.domain.errors import ForkFailed
from standby.domain.model import EngineKind
from standby.runtime.children import become_subreaper
from standby.runtime.engines.base import StartFailure, describe_log
from standby.runtime.exit_status import ExitStatus
from standby.runtime.foreign import foreign_command
from standby.runtime.log_words import mask
from standby.runtime.process import EngineProcess, engine_environment, open_log, spawn
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.procfs import held, resident
from standby.runtime.zygote.leash import Fork, NothingBornError, complete, hear, writable
from standby.runtime.zygote.protocol import CONTROL_VARIABLE, DESCRIPTORS_LIMIT, ForkRequest, Ready, Unfit, encode, pair

FORK_LIMIT_S: Final = 10.0
_PROGRAM: Final = "standby.runtime.zygote.program"


@dataclass(frozen=True)
class ZygotePlan:
    """How to make the zygote of one engine kind. ``profile``: a module as ``zygote.program`` describes it.

    ``environment`` is what must be there when the process starts and cannot be set later, e.g. LD_PRELOAD; every fork
    gets it too, for the programs that it starts itself.
    """

    kind: EngineKind
    python: Path
    profile: str
    environment: Mapping[str, str] = field(default_factory=dict)
    fork_limit_s: float = FORK_LIMIT_S


class Zygote:
    """One zygote process, from ``start`` to ``stop``. Made and used by the event loop's thread only."""

    def __init__(self, plan: ZygotePlan, *, ledger: ProcessLedger, log: Path) -> None:
        """``log``: its own file, whose folder is made; an earlier one is overwritten."""
        self.plan = plan
        self.log = log
        self.forks = 0
        self.hatch_s = 0.0
        self.resident_at_start = 0
        """Resident bytes once it was ready, shared ones counted whole: growth is measured against it."""
        self._ledger = ledger
        self._ready: Ready | None = None
        self._process: EngineProcess | None = None
        self._control: socket.socket | None = None
        self._began = time.monotonic()
        self._spent: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def kind(self) -> EngineKind:
        """Which engine it forks."""
        return self.plan.kind

    @property
    def version(self) -> str:
        """What it has imported, in its own words; empty before it is ready."""
        return self._ready.version if self._ready else ""

    @property
    def pid(self) -> int:
        """Its process."""
        return self._running().pid

    @property
    def exited(self) -> asyncio.Future[ExitStatus]:
        """A future, new at each call, of its end, whoever ended it."""
        return self._running().exited

    @property
    def usable(self) -> bool:
        """True while it is ready, alive and no fork has failed."""
        return self._ready is not None and not self.failure

    @property
    def failure(self) -> str:
        """Why it must be replaced, in words; empty: nothing is known against it."""
        return self._spent.result() if self._spent.done() else ""

    @property
    def spent(self) -> asyncio.Future[str]:
        """A future, new at each call, of ``failure``: set when it ends, is stopped, or a fork fails."""
        return asyncio.shield(self._spent)

    @property
    def age_s(self) -> float:
        """Seconds since it was spawned."""
        return time.monotonic() - self._began

    def resident_bytes(self) -> int:
        """Return the memory it holds, pages shared with its forks divided by their number where the kernel says so.

        Takes tens of milliseconds: to be called in a thread.
        """
        return held(self._running().pid)

    def resident_whole(self) -> int:
        """Return its resident bytes with shared pages counted whole: what ``resident_at_start`` is compared with."""
        return resident(self._running().pid).total

    async def start(self, deadline_s: float) -> None:
        """Spawn it and wait until it has preloaded. Raises StartFailure, EngineStartFailed; nothing is left of it then."""
        become_subreaper()
        self._began = time.monotonic()
        self._spawn()
        try:
            async with asyncio.timeout(deadline_s):
                word = await self._first_word()
        except TimeoutError as error:
            failure = describe_log(self.log, f"zygote was not ready within {deadline_s:g} s", code="zygote_timeout")
            await complete(self.stop())
            raise StartFailure(failure, remedy="see its log; engines are started without it meanwhile") from error
        except BaseException:
            await complete(self.stop())
            raise
        self._ready = word
        self.hatch_s = self.age_s
        self.resident_at_start = self.resident_whole()

    async def fork(
        self,
        *,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        mark: str,
        descriptors: Mapping[str, int] | None = None,
        cores: Sequence[int] = (),
    ) -> EngineProcess:
        """Fork an engine that runs the profile's ``serve(arguments)`` in a session of its own, as a child of this process.

        ``environment`` is added to what every engine sees, as by ``process.spawn``; ``descriptors`` are passed on, each
        with its number in the variable of that name. Raises ForkFailed; then nothing is left of it, and the zygote is
        not ``usable`` any more, or the request was at fault. May be called again while another call runs.
        """
        request = ForkRequest(
            arguments=list(arguments),
            environment=engine_environment({**self.plan.environment, **environment}, mark),
            mark=mark,
            agent=os.getpid(),
            descriptors=list(descriptors or {}),
            cores=list(cores),
        )
        packet = self._packet(request)
        if not self.usable:
            raise self._failed(self.failure or "zygote is not ready")
        fork = Fork(mark)
        try:
            async with asyncio.timeout(self.plan.fork_limit_s):
                await self._ask(packet, fork, log, tuple((descriptors or {}).values()))
                process = await fork.until_armed()
                await fork.release()
        except NothingBornError as error:
            if not error.fit:
                self._condemn(str(error))
            await complete(fork.abandon())
            raise self._failed(str(error)) from error
        except TimeoutError as error:
            reason = f"zygote did not fork within {self.plan.fork_limit_s:g} s"
            self._condemn(reason)
            await complete(self._running().stop(0.0))  # first: it may still give birth, after the search for what it bore
            await complete(fork.abandon(patience_s=0.0))
            raise self._failed(reason) from error
        except BaseException:
            await complete(fork.abandon())
            raise
        finally:
            fork.close()
        self.forks += 1
        return process

    async def stop(self, grace_s: float = 0.0) -> None:
        """End it; its forks stay. May be called again, and before ``start``. Raises EngineError when the kernel keeps it."""
        if self._control is not None:
            self._control.close()
            self._control = None
        self._condemn("zygote was stopped")
        if self._process is not None:
            await self._process.stop(grace_s)
            self._ledger.forget(self._process.mark)

    def _spawn(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        record = self._ledger.intend(f"zygote-{self.plan.kind.value}", 0)
        ours, theirs = pair()
        ours.setblocking(False)
        try:
            process = spawn(
                foreign_command(self.plan.python, _PROGRAM, [self.plan.profile]),
                log=self.log,
                mark=record.mark,
                extra_environment={**self.plan.environment, CONTROL_VARIABLE: str(theirs.fileno())},
                keep_descriptors=(theirs.fileno(),),
                guards_itself=True,
            )
        except BaseException:
            ours.close()
            self._ledger.forget(record.mark)
            raise
        finally:
            theirs.close()
        self._control, self._process = ours, process
        process.exited.add_done_callback(lambda ended: self._condemn(f"zygote ended: {ended.result().words}"))
        with contextlib.suppress(OSError):  # a full disk: the record that was written first still leads to it, by its mark
            self._ledger.confirm(record, process)

    async def _first_word(self) -> Ready:
        assert self._control is not None, "called between spawn and stop"
        said = await hear(self._control)
        if isinstance(said, Ready):
            return said
        if isinstance(said, Unfit):
            raise StartFailure(describe_log(self.log, f"zygote must not fork: {said.reason}", code="zygote_unfit"))
        status = await self._running().exited
        raise StartFailure(describe_log(self.log, f"zygote ended while it preloaded: {status.words}", code="zygote_exit"))

    def _condemn(self, reason: str) -> None:
        if not self._spent.done():  # the first reason is nearest to the cause
            self._spent.set_result(reason)

    def _packet(self, request: ForkRequest) -> bytes:
        if len(request.descriptors) + 2 > DESCRIPTORS_LIMIT:
            limit = DESCRIPTORS_LIMIT - 2
            raise ForkFailed(f"{len(request.descriptors)} descriptors for a fork, the limit is {limit}", remedy="pass fewer")
        try:
            return encode(request)
        except ValueError as error:
            raise ForkFailed(f"request to fork is too large: {error}", remedy="shorten options or environment") from error

    async def _ask(self, packet: bytes, fork: Fork, log: Path, descriptors: tuple[int, ...]) -> None:
        """Hand the request over. Raises NothingBornError when the zygote has gone."""
        output = open_log(log)
        try:
            while self._control is not None:
                try:
                    socket.send_fds(self._control, [packet], [fork.far.fileno(), output, *descriptors])
                except BlockingIOError:
                    await writable(self._control)
                    continue
                return
            raise NothingBornError("zygote was stopped")
        except (BrokenPipeError, ConnectionError) as error:
            raise NothingBornError("zygote has gone") from error
        finally:
            os.close(output)
            fork.far.close()  # only the fork holds the other end now: its end is seen here

    def _running(self) -> EngineProcess:
        assert self._process is not None, "called after start"
        return self._process

    def _failed(self, reason: str) -> ForkFailed:
        return ForkFailed(
            f"engine could not be forked: {mask(reason)}", remedy=f"it can be started without the zygote; see {self.log}"
        )
