"""Where an instance should climb: the node and the rung with the fewest predicted seconds until ready."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from standby.controller.view import ObservedNode, Placed
from standby.domain.endpoint import Variant
from standby.domain.instance import Rung
from standby.domain.model import Model

# Seconds until ready where a node has not measured any: guesses, replaced by the first measurement.
DEFAULT_COSTS_S: Final[Mapping[Rung, float]] = {
    Rung.READY: 0.1,
    Rung.ASLEEP: 0.3,
    Rung.ZYGOTE: 2.0,
    Rung.STAGED: 5.0,
    Rung.COLD: 60.0,
}
DOWNLOAD_BYTES_PER_S: Final = 100e6
MEMORY_PER_BYTE: Final = 1.3
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """Climb here: ``wake`` is the resting instance to use, or None for a new one on ``node``."""

    node: str
    wake: Placed | None
    from_rung: Rung
    seconds: float
    need_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class NoFit:
    """No node can take it; ``reason`` says what is needed and what there is."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    node: ObservedNode
    wake: Placed | None
    rung: Rung
    seconds: float
    free: int
    fits: bool
    neighbours: int

    def rank(self) -> tuple[bool, bool, float, int, bool, int, str, str]:
        """Smaller is better: seen alive, fits by its ledger, soonest ready, fewest of the same, a wake, most free."""
        return (
            not self.node.confirmed,
            not self.fits,
            round(self.seconds, 3),
            self.neighbours,
            self.wake is None,
            -self.free,
            self.node.record.name,
            "" if self.wake is None else self.wake.key,
        )


def memory_need(memory_mb: int | None, model: Model) -> int:
    """Return the bytes of host memory to reserve for one instance: as configured, else estimated from the model's size."""
    if memory_mb is not None:
        return memory_mb * _MIB
    return math.ceil(model.manifest.unpacked_bytes * MEMORY_PER_BYTE)


def seconds_to_ready(node: ObservedNode, digest: str, rung: Rung, size: int) -> float:
    """Return the predicted seconds until ready: what this node measured for this model, else a guess by the rung.

    A guess is never above what was measured from a lower rung: a higher one only leaves parts of that out.
    """
    costs = node.record.costs.get(digest, {})
    if rung in costs:
        return costs[rung]
    guess = DEFAULT_COSTS_S[rung] + (size / DOWNLOAD_BYTES_PER_S if rung is Rung.COLD else 0.0)
    return min([guess, *(seconds for lower, seconds in costs.items() if lower < rung)])


def choose(
    variant: Variant,
    model: Model,
    nodes: Iterable[ObservedNode],
    siblings: Iterable[Placed],
    promised: Mapping[str, int],
    now: float,
) -> Choice | NoFit:
    """Return where the next instance of ``variant`` should climb.

    ``siblings`` are the variant's assignments: those below ready may be woken. ``promised`` holds, by node, bytes of
    assignments that the node's ledger does not know yet. A resting instance is woken even where the ledger looks
    full, because its node may make room; a new one must fit.
    """
    need = memory_need(variant.memory_mb, model)
    placed = tuple(siblings)
    living = {n.record.name: n for n in nodes if n.alive(now)}
    able = {name: n for name, n in living.items() if model.engine in n.record.engines}
    wakes = list(_wakes(placed, able, model, need, promised))
    # Beside one that rests a new one is never better: it would start from a rung that the resting one has reached, and
    # the sleeper would stay behind. Two measured times of a small model may well say the opposite.
    resting = {candidate.node.record.name for candidate in wakes}
    fresh = [candidate for candidate in _new(placed, able, model, need, promised) if candidate.node.record.name not in resting]
    candidates = [*wakes, *fresh]
    if not candidates:
        return NoFit(_why_not(living, able, model, need, promised))
    best = min(candidates, key=_Candidate.rank)
    return Choice(
        node=best.node.record.name,
        wake=best.wake,
        from_rung=best.rung,
        seconds=best.seconds,
        need_bytes=need,
        reason=f"{best.seconds:.1f} s from {best.rung.label} on {best.node.record.name}, best of {len(candidates)}",
    )


def cheapest_seconds(model: Model, nodes: Iterable[ObservedNode], siblings: Iterable[Placed], now: float) -> float:
    """Return the fewest predicted seconds that one more instance would take, memory left aside."""
    able = {n.record.name: n for n in nodes if n.alive(now) and model.engine in n.record.engines}
    placed = tuple(siblings)
    costs = [c.seconds for c in (*_wakes(placed, able, model, 0, {}), *_new(placed, able, model, 0, {}))]
    return min(costs, default=DEFAULT_COSTS_S[Rung.COLD])


def _wakes(
    placed: tuple[Placed, ...], able: Mapping[str, ObservedNode], model: Model, need: int, promised: Mapping[str, int]
) -> Iterable[_Candidate]:
    digest = model.manifest.digest
    for sibling in placed:
        node = able.get(sibling.assignment.node)
        if node is None or sibling.wants_ready or sibling.failed:
            continue
        rung = sibling.assignment.rung if sibling.instance is None else sibling.instance.record.rung
        held = 0 if sibling.instance is None else sibling.instance.record.resident_bytes
        free = _free(node, promised)
        yield _Candidate(
            node=node,
            wake=sibling,
            rung=rung,
            seconds=seconds_to_ready(node, digest, rung, model.manifest.total_bytes),
            free=free,
            fits=need - held <= free,
            neighbours=_neighbours(placed, node, but=sibling),
        )


def _new(
    placed: tuple[Placed, ...], able: Mapping[str, ObservedNode], model: Model, need: int, promised: Mapping[str, int]
) -> Iterable[_Candidate]:
    digest = model.manifest.digest
    for node in able.values():
        free = _free(node, promised)
        if need > free:
            continue
        staged = any(artifact.digest == digest for artifact in node.record.artifacts)
        rung = Rung.STAGED if staged else Rung.COLD
        yield _Candidate(
            node=node,
            wake=None,
            rung=rung,
            seconds=seconds_to_ready(node, digest, rung, model.manifest.total_bytes),
            free=free,
            fits=True,
            neighbours=_neighbours(placed, node, but=None),
        )


def _neighbours(placed: tuple[Placed, ...], node: ObservedNode, but: Placed | None) -> int:
    return sum(1 for p in placed if p.assignment.node == node.record.name and p.wants_ready and p is not but)


def _free(node: ObservedNode, promised: Mapping[str, int]) -> int:
    return max(0, node.record.memory.free - promised.get(node.record.name, 0))


def _why_not(
    living: Mapping[str, ObservedNode],
    able: Mapping[str, ObservedNode],
    model: Model,
    need: int,
    promised: Mapping[str, int],
) -> str:
    if not living:
        return "no node is alive: start one with `standby node`"
    if not able:
        return f"no living node runs the engine {model.engine.value} ({len(living)} alive)"
    largest = max(_free(node, promised) for node in able.values())
    return (
        f"no node has {_megabytes(need)} of memory free: model {model.name} needs {_megabytes(need)}, "
        f"largest free {_megabytes(largest)} ({len(able)} alive with engine {model.engine.value})"
    )


def _megabytes(count: int) -> str:
    return f"{count / _MIB:.0f} MiB"
