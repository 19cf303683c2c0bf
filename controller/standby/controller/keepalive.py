"""How long an idle instance keeps its rung: ready, then asleep, then staged, then cold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from standby.controller.view import NEVER
from standby.domain.durations import format_duration
from standby.domain.endpoint import ScalePolicy
from standby.domain.instance import Rung

_BELOW: Final = {
    Rung.READY: (Rung.ASLEEP, Rung.STAGED, Rung.COLD),
    Rung.ASLEEP: (Rung.STAGED, Rung.COLD),
    Rung.ZYGOTE: (Rung.STAGED, Rung.COLD),
    Rung.STAGED: (Rung.COLD,),
    Rung.COLD: (),
}


@dataclass(frozen=True, slots=True)
class KeepDecision:
    """The rung to hold, why, and when the answer may change without any news."""

    rung: Rung
    reason: str
    wake_at: float = NEVER


def next_rung_below(rung: Rung, policy: ScalePolicy) -> Rung:
    """Return the first rung below ``rung`` that the policy keeps at all; a time of zero skips a rung."""
    for lower in _BELOW[rung]:
        if lower is Rung.COLD or _kept_for(lower, policy) > 0:
            return lower
    return Rung.COLD


def keep(rung: Rung, since: float, policy: ScalePolicy, now: float) -> KeepDecision:
    """Return the rung that an idle instance should hold at ``now``.

    ``since``: for ready, when the endpoint fell idle; for a lower rung, when it was reached.
    """
    limit = _kept_for(rung, policy)
    due = since + limit
    idle = "idle" if rung is Rung.READY else rung.label
    if now < due:
        return KeepDecision(rung, f"{idle} for {format_duration(max(0.0, now - since))} of {format_duration(limit)}", due)
    lower = next_rung_below(rung, policy)
    return KeepDecision(lower, f"{idle} for {format_duration(limit)}")


def _kept_for(rung: Rung, policy: ScalePolicy) -> float:
    if rung is Rung.READY:
        return policy.keep_ready
    if rung is Rung.ASLEEP:
        return policy.keep_asleep
    if rung is Rung.STAGED:
        return policy.keep_staged
    # a zygote is kept by the node for many models; an instance does not rest there
    return 0.0 if rung is Rung.ZYGOTE else NEVER
