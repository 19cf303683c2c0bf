"""What a decision read, written small enough for an event, and the same decision made again from that. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from standby.controller.actions import Inputs
from standby.controller.arrivals import BINS, GapModel
from standby.controller.asked import Bucket, EndpointDemand
from standby.controller.demotion import Limits, Step
from standby.controller.economics import PriceVector, RungCost
from standby.controller.foresight import Margin, desired
from standby.controller.scaling import Capacity, ScaleDecision
from standby.controller.weighing import Weighing, step_of
from standby.domain.endpoint import ScalePolicy
from standby.domain.errors import InvalidInput
from standby.domain.events import DecisionMade
from standby.domain.instance import Rung

VERSION: Final = 1
# More than a book of demand keeps of one endpoint.
MOST_BUCKETS: Final = 256
_SCALING: Final = frozenset({"min_ready", "max_instances", "slots", "scale_out_at", "scale_in_after"})


def inputs(weighed: Weighing | None, step: Step | None, idle_s: float, rung: Rung) -> Inputs:
    """Return what ``demotion.hold`` read and said; without a step the endpoint's own time decided: only the idle time."""
    if weighed is None or step is None:
        return {"idle_s": round(idle_s, 3)}
    prices, limits = weighed.prices, weighed.limits
    said = {
        "version": VERSION,
        "ladder": [[one.rung.label, one.hold, one.wait_s] for one in weighed.ladder],
        "hazards": _packed(weighed.gaps.hazards),
        "idle_s": idle_s,
        "prices": [prices.device, prices.host, prices.disk, prices.wait, prices.late, prices.late_after_s],
        "limits": [limits.floor_s, _finite(limits.max_wait_s), limits.prewarm, limits.worst_case],
        "rung": rung.label,
    }
    return {
        "idle_s": round(idle_s, 3),
        "rung": rung.label,
        "hold": step.rung.label,
        "until_s": _finite(step.until_s),
        "gaps_seen": weighed.gaps.count,
        "weighed": json.dumps(said, separators=(",", ":")),
    }


def scaled(
    demand: EndpointDemand, share: float, policy: ScalePolicy, capacity: Capacity, now: float, ahead: Margin | None = None
) -> Inputs:
    """Return what ``foresight.desired`` read; instants as seconds from the decision, so that no clock is part of it."""
    said = {
        "version": VERSION,
        "in_flight": demand.in_flight,
        "queued": demand.queued,
        "valid": demand.valid,
        "valid_since": _finite(demand.valid_since - now),
        "bucket_s": demand.bucket_s,
        "history": [[bucket.start - now, *bucket[1:]] for bucket in demand.history[-MOST_BUCKETS:]],
        "share": share,
        "policy": policy.model_dump(mode="json", include=set(_SCALING), exclude_defaults=True),
        "capacity": [capacity.current, capacity.ready, _since(capacity.ready_at, now), capacity.climb_s],
    }
    if ahead is not None:
        said["ahead"] = list(ahead)
    return {"scaled": json.dumps(said, separators=(",", ":"))}


def replay_decision(event: DecisionMade) -> Step | ScaleDecision:
    """Return what was decided of the inputs that ``event`` tells.

    Of an idle instance what ``demotion.hold`` says: the rung, until which idle time, and the reason. Of a number of instances
    what ``foresight.desired`` says. Raises InvalidInput for an event that tells neither, or that another version wrote.
    """
    weighed, counted = event.inputs.get("weighed"), event.inputs.get("scaled")
    try:
        if isinstance(weighed, str):
            return _again(json.loads(weighed))
        if isinstance(counted, str):
            return _counted_again(json.loads(counted))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidInput(
            f"decision {event.id} cannot be read again: {error!r}", remedy="use the version that wrote it"
        ) from error
    raise InvalidInput(f"decision {event.id} ({event.action}) was not weighed", remedy="its reason says what decided")


def _counted_again(said: Mapping[str, Any]) -> ScaleDecision:
    _check(said)
    current, ready, ready_at, climb_s = said["capacity"]
    demand = EndpointDemand(
        in_flight=said["in_flight"],
        queued=said["queued"],
        valid=said["valid"],
        valid_since=math.inf if said["valid_since"] is None else said["valid_since"],
        history=tuple(Bucket(*bucket) for bucket in said["history"]),
        bucket_s=said["bucket_s"],
    )
    capacity = Capacity(current, ready, ready_at, climb_s)
    ahead = Margin(*said["ahead"]) if "ahead" in said else None
    return desired(demand, said["share"], ScalePolicy.model_validate(said["policy"]), capacity, 0.0, ahead)


def _check(said: Mapping[str, Any]) -> None:
    if said["version"] != VERSION:
        raise ValueError(f"version {said['version']}, not {VERSION}")


def _since(at: float | None, now: float) -> float | None:
    return None if at is None else at - now


def _again(said: Mapping[str, Any]) -> Step:
    _check(said)
    ladder = tuple(RungCost(Rung[label.upper()], hold_price, wait_s) for label, hold_price, wait_s in said["ladder"])
    floor_s, most, ahead, worst = said["limits"]
    limits = Limits(floor_s=floor_s, max_wait_s=math.inf if most is None else most, prewarm=ahead, worst_case=worst)
    gaps = _Recorded(_unpacked(said["hazards"]))
    weighed = Weighing(ladder, gaps, PriceVector(*said["prices"]), limits)
    return step_of(weighed, said["idle_s"], Rung[said["rung"].upper()])


class _Recorded(GapModel):
    """Gaps of which only the hazards are known."""

    __slots__ = ("_read",)

    def __init__(self, hazards: tuple[float, ...]) -> None:
        super().__init__()
        self._read = hazards

    @property
    def hazards(self) -> tuple[float, ...]:
        """What was read when it was decided."""
        return self._read


def _packed(hazards: tuple[float, ...]) -> list[float | list[float]]:
    """Return ``hazards`` with each stretch of equal ones as [how many, which]."""
    packed: list[list[float]] = []
    for hazard in hazards:
        if packed and packed[-1][1] == hazard:
            packed[-1][0] += 1
        else:
            packed.append([1, hazard])
    return [one[1] if one[0] == 1 else one for one in packed]


def _unpacked(packed: list[float | list[float]]) -> tuple[float, ...]:
    hazards: list[float] = []
    for one in packed:
        hazards += [one[1]] * int(one[0]) if isinstance(one, list) else [one]
    if len(hazards) != BINS or not all(0 <= hazard <= 1 for hazard in hazards):
        raise ValueError(f"{len(hazards)} hazards, not {BINS} between 0 and 1")
    return tuple(hazards)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
