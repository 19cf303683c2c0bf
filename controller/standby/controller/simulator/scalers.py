"""What decides in a replay of requests how many instances are up: fixed numbers, Knative's rule, and the live controller's."""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Protocol

from standby.controller import forecast, scaling
from standby.controller.asked import EndpointDemand
from standby.controller.demand import DemandBook
from standby.controller.dispersion import Clusters
from standby.controller.scaling import Capacity, ScaleDecision
from standby.controller.simulator.fleet import Scaler
from standby.controller.simulator.tokens import TokenModel
from standby.domain.demand import Demand
from standby.domain.endpoint import ScalePolicy
from standby.domain.errors import InvalidInput

_TENANT, _ENDPOINT = "replay", "requests"
# A gateway tells of changes after a tenth of a second at the latest, and of everything once a second.
_SOON_S: Final = 0.1
_BEAT_S: Final = 1.0
# One instance stays this long without any request where the policy leaves that to prices: these replays compare how many are
# up beside it, and a single endpoint's idle hours are the other simulation's subject.
_KEEP_READY_S: Final = 300.0


class Fixed:
    """The same number all the time."""

    restless, urgent, every_s = False, False, 60.0

    def __init__(self, number: int) -> None:
        self.name = f"fixed-{number}"
        self._number = number

    def told(self, in_flight: int, queued: int, now: float) -> None:
        """Nothing to learn."""

    def decide(self, capacity: Capacity, now: float) -> ScaleDecision:  # noqa: ARG002
        """Return the number."""
        return ScaleDecision(self._number, "fixed")


class Kpa:
    """Knative's pod autoscaler with its defaults: a stable window of 60 s, a panic window of 6 s, asked every 2 s.

    Concurrency is averaged over time in buckets of a second, as its collector does. At zero the first request starts one at
    once, as its activator does; the last one goes when the stable window was empty and the grace of 30 s is over.
    """

    restless, urgent, every_s = True, True, 2.0
    stable_s, panic_s, utilisation, panic_at, up_rate, down_rate, grace_s = 60.0, 6.0, 0.7, 2.0, 1000.0, 2.0, 30.0

    def __init__(self, model: TokenModel) -> None:
        self.name = "kpa"
        self._target = max(0.01, self.utilisation * model.slots)
        self._highest = model.instances
        self._areas: deque[tuple[int, float]] = deque()  # request-seconds in each second
        self._since = self._first = 0.0
        self._value = 0
        self._panic_at: float | None = None
        self._panicked = 0
        self._active_at = 0.0
        self._seen = False

    def told(self, in_flight: int, queued: int, now: float) -> None:
        """Book the time until now at what it was."""
        if not self._seen:
            self._seen, self._first, self._since = True, now, now
        self._book(now)
        self._value = in_flight + queued

    def decide(self, capacity: Capacity, now: float) -> ScaleDecision:
        """Return what the two windows ask for."""
        self._book(now)
        if not capacity.current:
            return ScaleDecision(min(1, self._value), "the activator")
        ready = max(1, capacity.ready)
        stable, panic = self._average(self.stable_s, now), self._average(self.panic_s, now)
        low, high = math.floor(ready / self.down_rate), math.ceil(self.up_rate * ready)
        wants = min(max(math.ceil(stable / self._target), low), high)
        bursts = min(max(math.ceil(panic / self._target), low), high)
        if math.ceil(panic / self._target) / ready >= self.panic_at:
            self._panic_at = now
        elif self._panic_at is not None and now >= self._panic_at + self.stable_s:
            self._panic_at, self._panicked = None, 0
        if self._panic_at is not None:
            self._panicked = wants = max(self._panicked, wants, bursts)
        if stable > 0 or wants > 0:
            self._active_at = now
            wants = max(1, wants)
        elif now < self._active_at + self.grace_s:
            wants = 1
        return ScaleDecision(min(wants, self._highest), f"{stable:.1f} at once in a minute, {panic:.1f} in {self.panic_s:g} s")

    def _book(self, now: float) -> None:
        while self._seen and self._since < now:
            second = math.floor(self._since)
            until = min(now, second + 1.0)
            area = self._value * (until - self._since)
            if self._areas and self._areas[-1][0] == second:
                self._areas[-1] = (second, self._areas[-1][1] + area)
            else:
                self._areas.append((second, area))
            self._since = until
        while self._areas and self._areas[0][0] < now - self.stable_s:
            self._areas.popleft()

    def _average(self, window: float, now: float) -> float:
        begin = max(now - window, math.floor(self._first))
        if now <= begin:
            return 0.0
        return sum(area for second, area in self._areas if second >= now - window) / (now - begin)


class Decide(Protocol):
    """How many instances should be ready, as ``scaling.desired`` says it."""

    def __call__(
        self, demand: EndpointDemand, share: float, policy: ScalePolicy, capacity: Capacity, now: float
    ) -> ScaleDecision: ...


class Live:
    """A scaling rule of the live controller's over its own book of demand; the last instance sleeps after the policy's time."""

    restless, urgent, every_s = False, True, _SOON_S

    def __init__(self, name: str, decide: Decide, policy: ScalePolicy, window_s: float) -> None:
        self.name = name
        self._decide = decide
        self._policy = policy
        self._keep_ready_s = _KEEP_READY_S if policy.keep_ready is None else policy.keep_ready
        self._now = 0.0
        self._book = DemandBook(lambda: self._now)
        self._book.keep_window(f"{_TENANT}.{_ENDPOINT}", window_s)
        self._counts = (0, 0)
        self._sequence = 0
        self._active_at = 0.0

    def told(self, in_flight: int, queued: int, now: float) -> None:
        """Remember the counts until they are reported."""
        self._counts = in_flight, queued
        self._active_at = now

    def decide(self, capacity: Capacity, now: float) -> ScaleDecision:
        """Report the counts and ask."""
        self._now = now
        in_flight, queued = self._counts
        self._sequence += 1
        said = Demand.model_construct(
            gateway="gateway",
            boot_id="boot",
            sequence=self._sequence,
            tenant=_TENANT,
            endpoint=_ENDPOINT,
            variant="",
            backend="",
            in_flight=in_flight,
            queued=queued,
            queued_bytes=0,
            idle=max(0.0, now - self._active_at),
            oldest_arrival_at=None,
        )
        self._book.take_demand(said)
        decision = self._decide(self._book.demand(f"{_TENANT}.{_ENDPOINT}"), 1.0, self._policy, capacity, now)
        wake_at = min(decision.wake_at, now + _BEAT_S)
        idle_s = now - self._active_at
        if decision.count == 1 and not in_flight and not queued and idle_s >= self._keep_ready_s:
            return ScaleDecision(0, f"idle for {idle_s:.0f} s", wake_at)
        return ScaleDecision(decision.count, decision.reason, wake_at)


class _Remembering:
    """``forecast.desired`` with what its endpoint's dispersion was before the history began."""

    def __init__(self) -> None:
        self._clusters = Clusters()

    def desired(
        self, demand: EndpointDemand, share: float, policy: ScalePolicy, capacity: Capacity, now: float
    ) -> ScaleDecision:
        self._clusters.observe(demand.concurrency, capacity.climb_s, now)
        return forecast.desired(demand, share, policy, capacity, now, dispersion=self._clusters.value)


def build(name: str, model: TokenModel) -> Scaler:
    """Return a fresh scaler by its name, one of ``names``. Raises InvalidInput for an unknown one."""
    policy = ScalePolicy(slots=model.slots, max_instances=model.instances)
    if name == "kpa":
        return Kpa(model)
    if name == "reactive":
        return Live(name, scaling.desired, policy, policy.scale_in_after)
    if name == "predictive":
        longest = max(model.climb_s[model.resting(number)] for number in range(model.instances))
        return Live(name, _Remembering().desired, policy, forecast.window_s(policy, longest))
    word, _, number = name.partition("-")
    if word == "fixed" and number.isdecimal() and 1 <= int(number) <= model.instances:
        return Fixed(int(number))
    raise InvalidInput(f"policy {name!r} is not known for requests with tokens", remedy=f"use {', '.join(names(model))}")


def names(model: TokenModel) -> list[str]:
    """Return every scaler's name."""
    return [*(f"fixed-{number}" for number in range(1, model.instances + 1)), "kpa", "reactive", "predictive"]
