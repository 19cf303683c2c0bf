"""What a replay found: waits, memory wasted by kind, cost, and the same per function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from standby.controller.simulator.cost_model import CostModel
from standby.controller.simulator.states import Function
from standby.controller.simulator.trace import Trace
from standby.domain.instance import Rung


@dataclass(frozen=True, slots=True)
class Spread:
    """How a figure is spread over functions that were asked at least once."""

    mean: float
    p50: float
    p75: float
    p90: float


@dataclass(frozen=True, slots=True)
class FunctionReport:
    """One function. ``cold`` and ``started`` count invocations that a start from cold, or any start, served; GB·s by kind."""

    name: str
    size_gb: float
    invocations: int
    cold: int
    started: int
    wait_s: float
    device_gbs: float
    host_gbs: float
    disk_gbs: float


@dataclass(frozen=True, slots=True)
class Report:
    """One replay, without its warm-up.

    ``cold_ratio`` and ``start_ratio`` are shares of invocations served by a start that had not ended when they came.
    Waste is memory held without work, in GB·s: device memory of instances that are idle (``idle_gbs``), start
    (``starting_gbs``) or sleep (``residue_gbs``); host memory of sleepers; disk of what is only staged. ``cost`` is their
    price, ``served_by`` and ``starts`` are by the rung from which the start began. Waits in seconds, over all invocations.
    """

    policy: str
    invocations: int
    cold_ratio: float
    start_ratio: float
    wait_mean_s: float
    wait_p50_s: float
    wait_p99_s: float
    wait_p999_s: float
    wait_max_s: float
    wait_total_s: float
    idle_gbs: float
    starting_gbs: float
    residue_gbs: float
    host_gbs: float
    disk_gbs: float
    cost: float
    served_by: Mapping[str, int]
    starts: Mapping[str, int]
    cold_per_function: Spread
    wait_per_function: Spread
    functions: tuple[FunctionReport, ...]

    @property
    def device_gbs(self) -> float:
        """Device memory wasted, in GB·s."""
        return self.idle_gbs + self.starting_gbs + self.residue_gbs

    def j(self, wait_price: float) -> float:
        """Return cost and waits together: J(λ) with λ = ``wait_price`` per second that a caller waits."""
        return self.cost + wait_price * self.wait_total_s

    def as_dict(self, wait_price: float, *, functions: bool = False) -> dict[str, Any]:
        """Return the report as JSON holds it; with ``functions`` also each function's line."""
        said = asdict(self) | {"device_gbs": self.device_gbs, "wait_price": wait_price, "j": self.j(wait_price)}
        if not functions:
            del said["functions"]
        return said


def report(trace: Trace, policy: str, model: CostModel, functions: Sequence[Function], counted: Sequence[int]) -> Report:
    """Sum up a replay; ``counted`` are each function's invocations after the warm-up."""
    each = tuple(_function(trace.functions[f.number], f, model, n) for f, n in zip(functions, counted, strict=True))
    waits = sorted(wait for f in functions for some in f.waits.values() for wait in some)
    asked = [one for one in each if one.invocations]
    invocations = sum(counted)
    idle = sum(f.size * f.idle_s for f in functions)
    starting = sum(f.size * f.start_s for f in functions)
    asleep = model.rungs[Rung.ASLEEP]
    residue = sum(asleep.on_device(f.size) * f.asleep_s for f in functions)
    host, disk = sum(one.host_gbs for one in each), sum(one.disk_gbs for one in each)
    return Report(
        policy=policy,
        invocations=invocations,
        cold_ratio=_share(sum(one.cold for one in each), invocations),
        start_ratio=_share(sum(one.started for one in each), invocations),
        wait_mean_s=_share(math.fsum(waits), invocations),
        wait_p50_s=among(waits, invocations, 0.5),
        wait_p99_s=among(waits, invocations, 0.99),
        wait_p999_s=among(waits, invocations, 0.999),
        wait_max_s=waits[-1] if waits else 0.0,
        wait_total_s=math.fsum(waits),
        idle_gbs=idle,
        starting_gbs=starting,
        residue_gbs=residue,
        host_gbs=host,
        disk_gbs=disk,
        cost=model.device_price * (idle + starting + residue) + model.host_price * host + model.disk_price * disk,
        served_by=_by_rung({rung: sum(len(f.waits[rung]) for f in functions) for rung in model.rungs}),
        starts=_by_rung({rung: sum(f.starts[rung] for f in functions) for rung in model.rungs}),
        cold_per_function=_spread([one.cold / one.invocations for one in asked]),
        wait_per_function=_spread([one.wait_s / one.invocations for one in asked]),
        functions=each,
    )


def _function(name: str, f: Function, model: CostModel, invocations: int) -> FunctionReport:
    asleep, staged = model.rungs[Rung.ASLEEP], model.rungs[Rung.STAGED]
    return FunctionReport(
        name=name,
        size_gb=f.size,
        invocations=invocations,
        cold=len(f.waits[Rung.COLD]),
        started=sum(len(waits) for rung, waits in f.waits.items() if rung is not Rung.READY),
        wait_s=math.fsum(wait for waits in f.waits.values() for wait in waits),
        device_gbs=f.size * (f.idle_s + f.start_s) + asleep.on_device(f.size) * f.asleep_s,
        host_gbs=asleep.host * f.size * f.asleep_s,
        disk_gbs=staged.disk * f.size * f.disk_s,
    )


def _by_rung(counts: Mapping[Rung, int]) -> dict[str, int]:
    return {rung.label: number for rung, number in sorted(counts.items()) if rung is not Rung.READY}


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0


def among(waits: Sequence[float], invocations: int, share: float) -> float:
    """Return a percentile of all waits, zero of none; ``waits`` are those above zero, sorted; the nearest rank below."""
    at = int(share * (invocations - 1)) - (invocations - len(waits))
    return waits[at] if at >= 0 and waits else 0.0


def _spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values)
    p50, p75, p90 = (among(ordered, len(ordered), share) for share in (0.5, 0.75, 0.9))
    return Spread(math.fsum(ordered) / len(ordered), p50, p75, p90)
