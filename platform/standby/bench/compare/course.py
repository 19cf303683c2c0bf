"""The course of a comparison: four acts, both targets by turns in the order ABBA, so that a drift of the machine meets both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from standby.bench.compare.measured import (
    block_of,
    burst,
    cold_start,
    failed,
    from_zero,
    in_short,
    in_turn,
    lost_from,
    scale_in,
)
from standby.bench.compare.subject import Subject
from standby.bench.compare.values import Act, Burst, ColdStart, Death, Reached, ScaleIn, Side
from standby.bench.load import run_load
from standby.bench.values import Plan, Sample, Workload
from standby.bench.workload import LoadOptions, plan_of

_Found = TypeVar("_Found")
_GRACE_S: Final = 2.0
# When requests come after a target was seen to scale in: into its first moments, and while it still puts things away.
_INTO_THE_FALL_S: Final = (0.0, 0.02, 0.06, 0.12, 0.25, 0.5)


class StoppedError(Exception):
    """Somebody has pressed Ctrl-C."""


@dataclass(frozen=True, slots=True)
class CourseOptions:
    """How much of each act. ``requests`` of the warm blocks, for each target; ``blocks`` each target has: of an odd number A is
    first once more than B.
    """

    requests: int = 60
    blocks: int = 4
    rate: float = 2.0
    cold_starts: int = 5
    burst: int = 8
    bursts: int = 2
    scale_ins: int = 3
    prompt_tokens: str = "32"
    max_tokens: str = "16"
    seed: int = 0
    acts: frozenset[Act] = frozenset(Act)


@dataclass
class Lane:
    """One target with what has been measured of it so far."""

    subject: Subject
    samples: list[Sample] = field(default_factory=list)
    cold: list[ColdStart] = field(default_factory=list)
    bursts: list[Burst] = field(default_factory=list)
    scale_ins: list[ScaleIn] = field(default_factory=list)
    skipped: dict[Act, str] = field(default_factory=dict)
    death: Death | None = None
    sent: int = 0

    async def side(self, notes: Sequence[str] = ()) -> Side:
        """Return what is known of it now."""
        return Side(
            name=self.subject.target.name,
            kind=self.subject.kind,
            samples=tuple(self.samples),
            cold=tuple(self.cold),
            bursts=tuple(self.bursts),
            scale_ins=tuple(self.scale_ins),
            holding=await self.subject.holding(),
            sent=self.sent,
            death=self.death,
            skipped=dict(self.skipped),
            notes=(*notes, *self.subject.target.notes),
        )


@dataclass
class Course:
    """``say`` hears of each step; a set ``stop`` ends it with StoppedError, and what was measured stays."""

    a: Lane
    b: Lane
    options: CourseOptions
    stop: asyncio.Event
    say: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        """Both."""
        return self.a, self.b

    async def run(self) -> None:
        """Play all acts that are asked for. Raises StoppedError."""
        acts = ((Act.COLD, self._cold), (Act.BURST, self._burst), (Act.WARM, self._warm), (Act.SCALE_IN, self._scale_in))
        for act, play in acts:
            if act not in self.options.acts:
                for lane in self.lanes:
                    lane.skipped[act] = "not asked for"
                continue
            await play()
            for lane in self.lanes:
                if lane.death is not None and lane.death.act is not act:
                    lane.skipped.setdefault(act, f"the target was lost during {lane.death.act.value}")

    # ---- acts --------------------------------------------------------------------------------------------------

    async def _cold(self) -> None:
        """Each round makes both cold, then asks one after the other."""
        for number, order in enumerate(in_turn(self.options.cold_starts)):
            reached = await self._both_to_zero(Act.COLD)
            plan = self._plan(Act.COLD, number, count=1)
            for place in order:
                lane = self.lanes[place]
                how = reached[place]
                if how is None:
                    continue
                at_s = self._now()
                (sample,) = await self._ask(lane, plan, Act.COLD)
                phases = await lane.subject.phases(sample)
                lane.cold.append(cold_start(at_s, how, sample._replace(phases_ms=phases)))
                self.say(f"cold start {number + 1} of {lane.subject.target.name}: {in_short(sample)}")

    async def _burst(self) -> None:
        """Each round makes both cold, then sends many at once to one after the other."""
        for number, order in enumerate(in_turn(self.options.bursts)):
            reached = await self._both_to_zero(Act.BURST)
            plan = self._plan(Act.BURST, number, at_once=self.options.burst)
            for place in order:
                lane, how = self.lanes[place], reached[place]
                if how is None:
                    continue
                at_s = self._now()
                found = burst(at_s, how, await self._ask(lane, plan, Act.BURST))
                lane.bursts.append(found)
                self.say(f"burst {number + 1} on {lane.subject.target.name}: {found.ok} of {found.requests} served")

    async def _warm(self) -> None:
        """Each block begins with one request that is not counted, so that it meets nobody asleep."""
        rounds = self.options.blocks
        plan = plan_of(self._load(Act.WARM, 0, count=self.options.requests))
        for number, order in enumerate(in_turn(rounds)):
            block = block_of(plan, number, rounds)
            for place in order:
                lane = self.lanes[place]
                if lane.death is not None:
                    continue
                await self._ask(lane, self._plan(Act.WARM, number + 1, count=1), Act.WARM)
                if lane.death is not None:
                    continue
                lane.samples += await self._ask(lane, block, Act.WARM, stoppable=True)
                self.say(f"warm block {number + 1} of {rounds} on {lane.subject.target.name}: {len(block.requests)} requests")

    async def _scale_in(self) -> None:
        """Each round warms a target, waits until it begins to scale in, and goes on asking."""
        for number, order in enumerate(in_turn(self.options.scale_ins)):
            for place in order:
                lane = self.lanes[place]
                if lane.death is not None or Act.SCALE_IN in lane.skipped:
                    continue
                await self._ask(lane, self._plan(Act.SCALE_IN, number, count=1), Act.SCALE_IN)
                fell = await self._unless_stopped(lane.subject.falling())
                if not fell.ok:
                    await self._skip(lane, Act.SCALE_IN, fell)
                    continue
                at_s = self._now()
                plan = self._plan(Act.SCALE_IN, number, at_once=len(_INTO_THE_FALL_S))
                spread = [one._replace(due_s=due) for one, due in zip(plan.requests, _INTO_THE_FALL_S, strict=True)]
                samples = await self._ask(lane, plan._replace(requests=spread), Act.SCALE_IN)
                lane.scale_ins.append(scale_in(at_s, fell.words, samples))
                self.say(f"load while {lane.subject.target.name} scales in ({fell.words}): {failed(samples)} of them failed")

    # ---- steps -------------------------------------------------------------------------------------------------

    async def _both_to_zero(self, act: Act) -> list[Reached | None]:
        """Make both cold at the same time; None for one of which that cannot be said, or that is lost."""
        open_ = [lane for lane in self.lanes if lane.death is None and act not in lane.skipped]
        found = await self._unless_stopped(_all(lane.subject.to_zero() for lane in open_))
        reached: list[Reached | None] = []
        for lane in self.lanes:
            how = found[open_.index(lane)] if lane in open_ else None
            if how is not None and not how.ok:
                await self._skip(lane, act, how)
                how = None
            reached.append(how)
        return reached

    async def _skip(self, lane: Lane, act: Act, how: Reached) -> None:
        lane.skipped[act] = how.words
        if how.lost:
            await self._judge(lane, (), act, self._now())

    async def _ask(self, lane: Lane, plan: Plan, act: Act, *, stoppable: bool = False) -> tuple[Sample, ...]:
        """Send a plan and look whether the target has outlived it. A ``stoppable`` one keeps what it has when stopped."""
        began_s = self._now()
        if stoppable:
            samples = (await run_load(plan, lane.subject.target, stop=self.stop, grace_s=_GRACE_S)).samples
        else:
            samples = (await self._unless_stopped(run_load(plan, lane.subject.target))).samples
        lane.sent += len(samples)
        if not self.stop.is_set() and lost_from(samples) is not None:
            await self._judge(lane, samples, act, began_s)
        if stoppable and self.stop.is_set():
            lane.samples += samples
            raise StoppedError
        return samples

    async def _judge(self, lane: Lane, samples: Sequence[Sample], act: Act, began_s: float) -> None:
        """Ask once more: a target that fails that, too, is lost since the first of the failures in a row."""
        plan = self._plan(act, 0, count=1)
        (last,) = (await self._unless_stopped(run_load(plan, lane.subject.target))).samples
        lane.sent += 1
        if last.ok:
            return
        first = lost_from(samples)
        since_s = began_s + (first.due_s if first is not None else 0.0)
        why = await lane.subject.ended()
        said = f"{last.error}: {last.message}" + (f" ({why})" if why else "")
        lane.death = Death(at_s=since_s, act=act, words=said)
        self.say(f"{lane.subject.target.name} is lost: {said}")

    async def _unless_stopped(self, step: Awaitable[_Found]) -> _Found:
        """Return what a step returns. Raises StoppedError as soon as that is asked for; the step is cancelled."""
        task, stopping = asyncio.ensure_future(step), asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise StoppedError
            return task.result()
        finally:
            for one in (task, stopping):
                one.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)

    def _load(self, act: Act, number: int, *, count: int | None = None, at_once: int | None = None) -> LoadOptions:
        # The same for both targets; another one for each act and round, so that no cache of prompts answers.
        seed = self.options.seed * 1_000_003 + list(Act).index(act) * 1_009 + number
        return _load_of(self.options, seed, count=count, at_once=at_once)

    def _plan(self, act: Act, number: int, *, count: int | None = None, at_once: int | None = None) -> Plan:
        """Return a plan whose first request is due at once."""
        plan = plan_of(self._load(act, number, count=count, at_once=at_once))
        return plan._replace(requests=from_zero(plan.requests))

    def _now(self) -> float:
        return time.monotonic() - self.began


async def _all(steps: Iterable[Awaitable[Reached]]) -> list[Reached]:
    return list(await asyncio.gather(*steps))


def workload_of(options: CourseOptions) -> Workload:
    """Return the workload of the warm blocks as reports name it. Raises InvalidInput where any act's load makes no sense."""
    plan_of(_load_of(options, options.seed, at_once=options.burst))
    return plan_of(_load_of(options, options.seed, count=options.requests)).workload


def _load_of(options: CourseOptions, seed: int, *, count: int | None = None, at_once: int | None = None) -> LoadOptions:
    return LoadOptions(
        rate=options.rate,
        count=count,
        burst=at_once,
        prompt_tokens=options.prompt_tokens,
        max_tokens=options.max_tokens,
        seed=seed,
    )
