"""How long an idle instance keeps its rung: ready, then asleep, then zygote where there is one, then staged, then cold."""

from __future__ import annotations

from dataclasses import dataclass

from standby.controller.view import NEVER
from standby.domain.durations import format_duration
from standby.domain.endpoint import ScalePolicy
from standby.domain.instance import Rung


@dataclass(frozen=True, slots=True)
class KeepDecision:
    """The rung to hold, why, and when the answer may change without any news."""

    rung: Rung
    reason: str
    wake_at: float = NEVER


def next_rung_below(rung: Rung, policy: ScalePolicy, *, zygote: bool) -> Rung:
    """Return the first rung below ``rung`` that the policy keeps at all; a time of zero skips a rung.

    ``zygote``: the instance's engine has one on its node; without, there is no such rung.
    """
    for lower in sorted((r for r in Rung if r < rung), reverse=True):
        if lower is Rung.ZYGOTE and not zygote:
            continue
        if lower is Rung.COLD or _kept_for(lower, policy) > 0:
            return lower
    return Rung.COLD


def keep(rung: Rung, since: float, policy: ScalePolicy, now: float, *, zygote: bool) -> KeepDecision:
    """Return the rung that an idle instance should hold at ``now``; ``zygote`` as in ``next_rung_below``.

    ``since``: for ready, when the endpoint fell idle; for a lower rung, when it was reached.
    """
    limit = _kept_for(rung, policy)
    due = since + limit
    idle = "idle" if rung is Rung.READY else rung.label
    if now < due:
        return KeepDecision(rung, f"{idle} for {format_duration(max(0.0, now - since))} of {format_duration(limit)}", due)
    lower = next_rung_below(rung, policy, zygote=zygote)
    return KeepDecision(lower, f"{idle} for {format_duration(limit)}")


def _kept_for(rung: Rung, policy: ScalePolicy) -> float:
    limits = {
        Rung.READY: policy.keep_ready,
        Rung.ASLEEP: policy.keep_asleep,
        Rung.ZYGOTE: policy.keep_zygote,
        Rung.STAGED: policy.keep_staged,
    }
    return limits.get(rung, NEVER)
