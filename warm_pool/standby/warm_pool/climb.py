"""Measures one climb to ready: which rung it began on, how long each phase took."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from standby.domain.instance import Activation, Phase, Rung
from standby.runtime.lifecycle_values import Event, Fetched, Loaded, Probed, Resumed, Spawned

# A climb that starts over and over is told by its first steps.
MOST_STEPS: Final = 64


class Step(NamedTuple):
    """One phase as it went, in seconds from the climb's begin; of a phase that began anew there are several."""

    phase: Phase
    began_s: float
    ended_s: float


# The event that ends each phase; a wake is a kind of loading: its pages come back.
_ENDS: dict[type[Event], Phase] = {
    Fetched: Phase.FETCHED,
    Spawned: Phase.FORKED,
    Loaded: Phase.LOADED,
    Resumed: Phase.LOADED,
    Probed: Phase.PROBED,
}


@dataclass
class Climb:
    """``began`` and ``last`` are monotonic seconds; ``called_at`` is the time of day at which the climb was called for."""

    from_rung: Rung
    began: float
    called_at: float
    demand_at: float | None
    id: str = field(default_factory=lambda: f"act-{secrets.token_hex(6)}")
    last: float = 0.0
    phases: dict[Phase, float] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = self.began

    def note(self, event: Event, now: float) -> None:
        """Account the time since the last boundary to the phase that ``event`` ends."""
        phase = _ENDS.get(type(event))
        if phase is not None:
            self.phases[phase] = self.phases.get(phase, 0.0) + (now - self.last) * 1000
            if len(self.steps) < MOST_STEPS:
                self.steps.append(Step(phase, self.last - self.began, now - self.began))
            self.last = now

    def seconds(self, now: float) -> float:
        """Seconds since it began."""
        return now - self.began

    def activation(self, ready_at: float | None) -> Activation:
        """Return what was measured so far."""
        return Activation(
            id=self.id,
            from_rung=self.from_rung,
            phases_ms={phase: round(ms, 3) for phase, ms in self.phases.items()},
            demand_at=self.demand_at,
            called_at=self.called_at,
            ready_at=ready_at,
        )
