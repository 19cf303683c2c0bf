"""The load: requests go out when they are due, whatever became of those before them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from standby.bench.values import Plan, Planned, Run, Sample

MAX_IN_FLIGHT: Final = 4096
GRACE_S: Final = 5.0

# Timers come up to a millisecond late: the last part of a wait is spent giving way to whatever else is due.
_TIMER_S: Final = 0.0015
# A generator that is behind must still read its answers.
_AT_ONCE: Final = 16
_PROGRESS_S: Final = 0.2


class Progress(NamedTuple):
    """What is known while the load runs."""

    planned: int
    sent: int
    ok: int
    failed: int
    in_flight: int
    not_sent: int
    seconds: float


Clock = Callable[[], float]
OnProgress = Callable[[Progress], None]


class Target(Protocol):
    """Who is asked."""

    @property
    def name(self) -> str:
        """As reports call it."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the report must know of this target, in words; may grow while it is asked."""

    async def ask(self, planned: Planned, clock: Clock) -> Sample:
        """Send one request and return what became of it; never raises for what the target does. ``clock``: s from the start."""

    async def close(self) -> None:
        """Close its connections."""


@dataclass(slots=True)
class _Load:
    plan: Plan
    target: Target
    max_in_flight: int
    stop: asyncio.Event
    clock: Clock
    samples: list[Sample | None] = field(init=False)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    sent: int = 0
    failed: int = 0
    ended: int = 0
    not_sent: int = 0
    broke: BaseException | None = None

    def __post_init__(self) -> None:
        self.samples = [None] * len(self.plan.requests)

    async def send_all(self) -> None:
        """Send each request when it is due, until the plan's end or ``stop``."""
        loop = asyncio.get_running_loop()
        late = 0
        for number, planned in enumerate(self.plan.requests):
            if planned.due_s > self.clock():
                late = 0
                await self._until(planned.due_s)
            else:
                late += 1
                if late % _AT_ONCE == 0:
                    await asyncio.sleep(0)
            if self.stop.is_set():
                return
            if len(self.tasks) >= self.max_in_flight:
                self.not_sent += 1
                continue
            self.sent += 1
            task = loop.create_task(self._one(number, planned))
            self.tasks.add(task)
            task.add_done_callback(self._ended)

    async def _until(self, due_s: float) -> None:
        while (left := due_s - self.clock()) > 0.0 and not self.stop.is_set():
            if left <= _TIMER_S:
                await asyncio.sleep(0)
                continue
            waiting = asyncio.ensure_future(self.stop.wait())
            await asyncio.wait({waiting}, timeout=left - _TIMER_S)
            waiting.cancel()

    async def _one(self, number: int, planned: Planned) -> None:
        sample = await self.target.ask(planned, self.clock)
        self.samples[number] = sample
        self.ended += 1
        if sample.error:
            self.failed += 1

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Targets raise nothing for what servers do: this is a bug of ours, and no number would be right.
            self.broke = error
            self.stop.set()

    def progress(self) -> Progress:
        ok = self.ended - self.failed
        return Progress(len(self.samples), self.sent, ok, self.failed, len(self.tasks), self.not_sent, max(0.0, self.clock()))


async def run_load(
    plan: Plan,
    target: Target,
    *,
    max_in_flight: int = MAX_IN_FLIGHT,
    on_progress: OnProgress | None = None,
    stop: asyncio.Event | None = None,
    cut: asyncio.Event | None = None,
    grace_s: float = GRACE_S,
) -> Run:
    """Send the plan's requests and return what became of them. The target stays open.

    A set ``stop`` ends the sending: answers under way get ``grace_s`` more, or until ``cut`` is set; then they are cut off.
    """
    stop = stop or asyncio.Event()
    began_at, origin, cpu_s = time.time(), time.perf_counter(), time.process_time()
    load = _Load(plan, target, max_in_flight, stop, lambda: time.perf_counter() - origin)
    telling = asyncio.create_task(_tell(load, on_progress))
    try:
        await load.send_all()
        left = await _await_answers(load, cut, grace_s)
    finally:
        telling.cancel()
        for task in load.tasks:
            task.cancel()
        await asyncio.gather(telling, *load.tasks, return_exceptions=True)
    if load.broke is not None:
        raise load.broke
    samples = tuple(sample for sample in load.samples if sample is not None)
    if on_progress is not None:
        on_progress(load.progress())
    return Run(
        target=target.name,
        workload=plan.workload,
        began_at=began_at,
        seconds=max((sample.ended_s for sample in samples), default=load.clock()),
        samples=samples,
        notes=(*_notes(load, stop, left), *target.notes),
        planned=len(plan.requests),
        not_sent=load.not_sent,
        interrupted=stop.is_set(),
        steps=tuple(plan.steps),
        generator_cpu_s=time.process_time() - cpu_s,
    )


async def _await_answers(load: _Load, cut: asyncio.Event | None, grace_s: float) -> int:
    """Wait for what is under way; returns how many requests were cut off."""
    under_way = set(load.tasks)
    if under_way:
        everything = asyncio.ensure_future(_all(under_way))
        stopped = asyncio.ensure_future(load.stop.wait())
        await asyncio.wait({stopped, everything}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        cutting = asyncio.ensure_future((cut or asyncio.Event()).wait())
        await asyncio.wait({cutting, everything}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        cutting.cancel()
        everything.cancel()
    return len(load.tasks)


async def _all(tasks: set[asyncio.Task[None]]) -> bool:
    await asyncio.wait(tasks)
    return True


async def _tell(load: _Load, on_progress: OnProgress | None) -> None:
    while on_progress is not None:
        on_progress(load.progress())
        await asyncio.sleep(_PROGRESS_S)


def _notes(load: _Load, stop: asyncio.Event, left: int) -> list[str]:
    notes = []
    if stop.is_set():
        unsent = len(load.samples) - load.sent - load.not_sent
        sent = f"{unsent} requests of the plan were not sent" if unsent else "all requests of the plan were sent"
        notes.append(f"stopped before its end: {sent}")
    if left:
        notes.append(f"{left} requests were still unanswered when it was stopped; they are in no number")
    if load.not_sent:
        notes.append(
            f"{load.not_sent} requests were due but not sent, because {load.max_in_flight} were in flight (--max-in-flight): "
            f"the target got less load than the plan says"
        )
    return notes
