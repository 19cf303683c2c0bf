"""One ready instance in one gateway's eyes: its record, its breaker, its pace, and how many requests it gets at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from standby.domain.instance import Instance
from standby.domain.traffic import TrafficPolicy
from standby.gateway import breaker, concurrency, pace
from standby.gateway.breaker import BreakerState, Permit, Phase
from standby.gateway.concurrency import Limit
from standby.gateway.pace import Pace
from standby.gateway.prefix import seed_of
from standby.gateway.results import Result, ResultKind
from standby.gateway.router import Candidate

# Each request asks for them: up to Python 3.11 an enum's member takes ten times as long to look up as a name of the module.
_CLOSED: Final = Phase.CLOSED
_OK: Final = ResultKind.OK


@dataclass(slots=True)
class ReadyInstance:
    """``seen``: when this gateway learnt of its present epoch, with which everything about it begins anew.

    ``slots`` are those in use, at most the door's. ``unreached``: the last request's connection failed or its engine did.
    """

    record: Instance
    seen: float
    traffic: TrafficPolicy = field(default_factory=TrafficPolicy)
    blocked_until: float = 0.0
    breaker: BreakerState = field(init=False)
    pace: Pace = pace.UNKNOWN
    limit: Limit = field(init=False)
    speed: float = 1.0
    slots: int = field(init=False)
    seed: int = field(init=False)
    pressed: bool = field(init=False)
    unreached: bool = False
    _good: int = 0

    def __post_init__(self) -> None:
        self.breaker = breaker.closed(self.traffic.breaker)
        self.limit = concurrency.fresh(self.record.slots)
        self.seed = seed_of(self.record.id)
        self.take_up(self.record, self.traffic)

    def take_up(self, record: Instance, traffic: TrafficPolicy) -> None:
        """Take up what its node says of it, or another policy."""
        if record.slots != self.record.slots or not traffic.adaptive_concurrency:
            self.limit = concurrency.fresh(record.slots)
        self.record, self.traffic = record, traffic
        self.slots = self.limit.whole
        pressure = record.memory_pressure
        self.pressed = pressure is not None and pressure > traffic.hybrid.memory_limit

    def may_run(self, limit: Limit) -> None:
        """Let so many requests in at once from now on."""
        self.limit = limit
        self.slots = limit.whole

    def candidate(self, outstanding: int, now: float, guarded: bool, unread: int = 0) -> Candidate:
        """Return it as the router compares it; ``guarded``: its breaker counts; ``unread``: bytes to be read."""
        record = self.record
        return Candidate(
            record.id,
            outstanding,
            self.slots,
            self.blocked_until,
            self.speed,
            self.pace.health,
            None if not guarded or self.breaker.phase is _CLOSED else self.permit(now),
            record.adapters,
            self.pressed,
            unread,
        )

    def plain(self, now: float, *, guarded: bool, spare: bool) -> bool:
        """Whether nothing at all speaks against it, be its slots free."""
        return (
            self.blocked_until <= now
            and (not guarded or self.breaker.phase is _CLOSED)
            and self.pace.health >= 1.0
            and not (spare and self.pressed)
        )

    def ended(self, result: Result | None, now: float, *, probe: bool) -> bool:
        """Tell its breaker how a request has ended; returns whether that has opened it.

        Good ones are only counted, as nearly all are: the breaker gets their number with the next thing that it has to judge.
        """
        state, policy = self.breaker, self.traffic.breaker
        if (
            result is not None
            and result.kind is _OK
            and now < state.fold_at
            and state.phase is _CLOSED
            and state.policy is policy
        ):
            self._good += 1
            return False
        if self._good:
            state = state._replace(good=state.good + self._good)
            self._good = 0
        self.breaker = breaker.record(state, result, policy, now, probe=probe)
        return self.breaker.phase is Phase.OPEN and state.phase is not Phase.OPEN

    def permit(self, now: float) -> Permit:
        """Return what its breaker says."""
        return breaker.allows(self.breaker, self.traffic.breaker, now)
