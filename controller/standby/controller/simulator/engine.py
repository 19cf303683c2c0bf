"""Replays a trace against a policy: a discrete-event simulation of many models on one pool of memory.

Events happen in the order of their times. At the same time executions end first, then starts and steps (in the order in
which they were planned), then invocations arrive. Nothing is random here: two replays of one seed are equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final

from standby.controller.demotion import Step
from standby.controller.eviction import MemoryKind
from standby.controller.simulator.cost_model import CostModel
from standby.controller.simulator.pool import Pool
from standby.controller.simulator.protocol import Caps, Foreseeing, Numbered, Policy
from standby.controller.simulator.report import Report, report
from standby.controller.simulator.states import NEVER, Function, Instance
from standby.controller.simulator.trace import Trace, merged
from standby.domain.errors import InvalidInput
from standby.domain.instance import Rung

READY, ASLEEP, STAGED, COLD = Rung.READY, Rung.ASLEEP, Rung.STAGED, Rung.COLD
# Progress is told this often, in invocations.
_TELL_EVERY: Final = 50_000


def replay(
    trace: Trace,
    policy: Policy,
    model: CostModel,
    *,
    seed: int,
    caps: Caps | None = None,
    prestaged: bool,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Replay ``trace`` and return what it cost and how long callers waited; ``progress`` hears of invocations done.

    ``prestaged``: weights are on the node's disk from the registration on, so that staged is the lowest rung.
    Raises InvalidInput for a trace that ends within the warm-up, for caps that do not hold the largest model, and for a
    policy that asks to be asked in the past.
    """
    if trace.duration_s <= model.warm_up_s:
        raise InvalidInput(
            f"the trace lasts {trace.duration_s:g} s, and the first {model.warm_up_s:g} s are not counted",
            remedy="give a longer trace, or a shorter warm_up_s in the cost model",
        )
    arrivals = trace.arrivals(seed)
    one = Replay(trace, policy, model, seed=seed, caps=caps, prestaged=prestaged)
    times, owners = merged(arrivals)
    for first in range(0, len(times), _TELL_EVERY):
        some = slice(first, first + _TELL_EVERY)
        one.play(times[some], owners[some])
        if progress is not None:
            progress(len(times[some]))
    one.close()
    counted = [int((times >= model.warm_up_s).sum()) for times in arrivals]
    return report(trace, policy.name, model, one.functions, counted)


class Replay:
    """One replay: owns every function's state, the running executions and the timers."""

    def __init__(
        self, trace: Trace, policy: Policy, model: CostModel, *, seed: int, caps: Caps | None = None, prestaged: bool
    ) -> None:
        self.policy = policy
        self.model = model
        self.floor = STAGED if prestaged else COLD
        self.start_at = model.warm_up_s
        self.end_at = trace.duration_s
        self.functions = [Function(i, model.size_gb(name, seed), model, self.floor) for i, name in enumerate(trace.functions)]
        self.pool = None if caps is None else Pool(caps, self.functions, model, policy)
        self.ends: deque[tuple[float, Instance]] = deque()  # every execution takes as long, so they end in order
        self.timers: list[tuple[float, int, bool, Instance]] = []  # (when, order, whether a start ends, whose)
        self.order = count()
        self.numbered = policy if isinstance(policy, Numbered) else None
        if isinstance(policy, Foreseeing):
            for function in self.functions:
                self._take(function.instances[0], policy.registered(function.number, 0.0), 0.0, 0.0)

    def play(self, times: list[float], owners: list[int]) -> None:
        """Run invocations in order of time, each of the function beside it, and what else happens until the last one."""
        ends, timers, functions = self.ends, self.timers, self.functions
        slots, exec_s, start_at, arrived = self.model.slots, self.model.exec_s, self.start_at, self.policy.arrived
        for now, owner in zip(times, owners, strict=True):
            if (ends and ends[0][0] <= now) or (timers and timers[0][0] <= now):
                self._advance(now)
            function = functions[owner]
            if function.pending or function.idle_at is None:
                arrived(owner, now, None)
            else:
                arrived(owner, now, now - function.idle_at)
            function.pending += 1
            for instance in function.ready:
                busy = instance.busy
                if busy < slots:
                    if not busy and now > start_at:
                        since = instance.since
                        function.idle_s += now - (since if since > start_at else start_at)
                    instance.busy = busy + 1
                    ends.append((now + exec_s, instance))
                    break
            else:
                function.queue.append(now)
                self._start_if_needed(function, now)

    def close(self) -> None:
        """Serve whoever still waits, and book what lasts at the end of the trace."""
        self._advance(self.end_at)
        for function in self.functions:
            for instance in function.instances:
                if not instance.busy:
                    self._settle(instance, self.end_at)
        self._advance(NEVER)

    def _advance(self, until: float) -> None:
        """Let everything happen that was planned up to ``until``."""
        ends, timers = self.ends, self.timers
        while True:
            end = ends[0][0] if ends else NEVER
            if timers and timers[0][0] < end:
                now = timers[0][0]
                if now > until:
                    return
                _, _, starts, instance = heappop(timers)
                if starts:
                    self._started(instance, now)
                elif not instance.gone:
                    self._ring(instance, now)
                if self.pool is not None and self.pool.waiting:
                    self._start_the_waiting(now)
            else:
                if end > until or end == NEVER:
                    return
                self._finished(ends.popleft()[1], end)

    def _finished(self, instance: Instance, now: float) -> None:
        """One execution has ended: its slot goes to the head of the queue, or is free."""
        function = instance.function
        function.pending -= 1
        if function.queue:
            came = function.queue.popleft()
            if came >= self.start_at:
                # It waited for this start if it came before its end; else only for a slot.
                function.waits[instance.woke_from if came < instance.ready_at else READY].append(now - came)
            self.ends.append((now + self.model.exec_s, instance))
            return
        instance.busy -= 1
        if not instance.busy:
            instance.since = instance.idle_at = now
            if not function.pending:
                function.idle_at = now
            self._ask(instance, now, 0.0)
            if self.pool is not None and self.pool.waiting:
                self._start_the_waiting(now)

    def _ask(self, instance: Instance, now: float, idle_s: float) -> None:
        number = instance.function.number
        if self.numbered is None:
            step = self.policy.idle(number, now, idle_s)
        else:
            step = self.numbered.idle_instance(number, instance.number, now, idle_s)
        self._take(instance, step, now, idle_s)

    def _take(self, instance: Instance, step: Step, now: float, idle_s: float) -> None:
        """Do what the policy said of an instance that does not work."""
        rung, until = step[0], step[1]
        if not until > idle_s:
            raise InvalidInput(
                f"policy {self.policy.name} holds {rung.label} until {until} s idle, and it is idle for {idle_s} s already",
                remedy="a step must end later than it begins",
            )
        instance.until = until
        instance.step_at = instance.idle_at + until
        rung = max(rung, self.floor)
        if rung > instance.rung:
            self._begin(instance, now, demanded=False)
            if instance.starting:
                return
        elif rung < instance.rung:
            self._lower(instance, rung, now, keep=until != NEVER)
            if instance.gone:
                return
        self._set_timer(instance)

    def _set_timer(self, instance: Instance) -> None:
        if instance.step_at < instance.timer_at and instance.step_at < self.end_at:
            instance.timer_at = instance.step_at
            heappush(self.timers, (instance.step_at, next(self.order), False, instance))

    def _ring(self, instance: Instance, now: float) -> None:
        if instance.timer_at <= now:
            instance.timer_at = NEVER
        if instance.busy or instance.starting or instance.waiting:
            return
        if now < instance.step_at:
            self._set_timer(instance)  # it has worked since this timer was set
        else:
            self._ask(instance, now, instance.until)

    def _start_if_needed(self, function: Function, now: float) -> None:
        """Start one more when the queue is longer than what those that start can clear."""
        model = self.model
        cleared = 0.0
        for starting in function.starting:
            cleared += model.slots * (1 + function.wakes[starting.rung] / model.exec_s)
        if len(function.queue) > cleared:
            self._begin(function.best_resting() or function.one_more(now), now, demanded=True)

    def _begin(self, instance: Instance, now: float, *, demanded: bool) -> None:
        """Start it now, or once there is memory; what nobody waits for is left alone where memory is lacking."""
        function = instance.function
        instance.demanded = demanded
        instance.waiting = True  # not to be pushed down by what it pushes down itself
        if self.pool is not None and not self._room(instance, MemoryKind.DEVICE, now):
            instance.waiting = demanded
            if demanded:
                function.starting.append(instance)
                self.pool.waiting.append(instance)
            return
        function.starting.append(instance)
        self._start(instance, now)

    def _start(self, instance: Instance, now: float) -> None:
        function = instance.function
        self._settle(instance, now)
        if self.pool is not None:
            self.pool.starts(instance)
        instance.starting = True
        instance.waiting = False
        function.starts[instance.rung] += now >= self.start_at
        heappush(self.timers, (now + function.wakes[instance.rung], next(self.order), True, instance))

    def _started(self, instance: Instance, now: float) -> None:
        """A start has ended: as many as there are slots leave the queue."""
        function, queue, slots = instance.function, instance.function.queue, self.model.slots
        self._settle(instance, now)
        waits = function.waits[instance.rung]
        instance.woke_from = instance.rung
        instance.ready_at = now
        instance.starting = False
        instance.rung = READY
        function.starting.remove(instance)
        function.open(instance)
        end = now + self.model.exec_s
        while queue and instance.busy < slots:
            came = queue.popleft()
            if came >= self.start_at:
                waits.append(now - came)
            instance.busy += 1
            self.ends.append((end, instance))
        if instance.busy:
            return
        if instance.demanded:
            instance.idle_at = now
        self._ask(instance, now, now - instance.idle_at)

    def _lower(self, instance: Instance, rung: Rung, now: float, *, keep: bool) -> None:
        """Let it fall to ``rung``. Below asleep it is only bytes: an additional one ends, unless it is to climb again."""
        function = instance.function
        if self.pool is not None:
            if rung is ASLEEP and not self._room(instance, MemoryKind.HOST, now):
                rung = STAGED
            self.pool.lowers(instance, rung)
        self._settle(instance, now)
        if instance.rung is READY:
            function.ready.remove(instance)
        instance.rung = rung
        if rung <= STAGED:
            function.disk = rung
            if len(function.instances) > 1 and not keep:
                instance.gone = True
                function.instances.remove(instance)

    def _room(self, instance: Instance, kind: MemoryKind, now: float) -> bool:
        """Return whether there is memory for its next rung, after asking the policy for victims."""
        assert self.pool is not None
        lacking = self.pool.lacking(instance, kind)
        resting = self.pool.resting(instance, kind, now) if lacking > 0 else []
        if lacking > sum(one.held_gb for one in resting):
            return False  # nobody falls in vain
        while lacking > 0:
            eviction = self.policy.victim(lacking, kind, resting, now)
            if eviction is None:
                return False
            victim = self.pool.checked(eviction, resting)
            self._lower(victim, max(eviction.rung, self.floor), now, keep=False)
            victim.until = victim.step_at = NEVER
            resting = self.pool.resting(instance, kind, now)  # others may have fallen with it
            lacking = self.pool.lacking(instance, kind)
        return True

    def _start_the_waiting(self, now: float) -> None:
        """Start those that wait for memory and that it reaches for, in the order in which they came."""
        assert self.pool is not None
        for instance in self.pool.within_reach(now):
            if self._room(instance, MemoryKind.DEVICE, now):
                self.pool.waiting.remove(instance)
                self._start(instance, now)

    def _settle(self, instance: Instance, now: float) -> None:
        """Book what it has done since ``since``, as far as it counts; not for one that works."""
        since, until = max(instance.since, self.start_at), min(now, self.end_at)
        instance.since = now
        if until <= since:
            return
        function, span = instance.function, until - since
        if instance.starting:
            function.start_s += span
        elif instance.rung is READY:
            function.idle_s += span
        elif instance.rung is ASLEEP:
            function.asleep_s += span
        elif instance.rung is STAGED and (instance is function.instances[0] or len(function.instances) == 1):
            function.disk_s += span  # the bytes lie there once, however many instances rest on them
