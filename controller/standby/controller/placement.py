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
from standby.domain.node import Node, NodeMode
from standby.domain.serving import gpus_of

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
    """No node can take it; ``reason`` says what is needed and what there is.

    ``passing``: a node that could take it is about to be started again, or to be gone; nothing is wrong yet.
    """

    reason: str
    passing: bool = False


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


def memory_need(memory_mb: int | None, model: Model, node: ObservedNode | None = None) -> int:
    """Return the bytes of host memory to reserve for one instance of ``model``.

    As configured; else what ``node`` has measured of an awake one; else a guess from the model's size.
    """
    if memory_mb is not None:
        return memory_mb * _MIB
    measured = None if node is None else node.record.footprints.get(model.manifest.digest)
    return _guess(model) if measured is None else measured


def gpu_need(model: Model, node: ObservedNode) -> int:
    """Return the bytes of one GPU's memory that an instance of ``model`` takes: measured on ``node``, else a guess."""
    return node.record.device_footprints.get(model.manifest.digest, _guess(model))


def _guess(model: Model) -> int:
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
    ask = _Ask(model, variant.memory_mb, promised)
    placed = tuple(siblings)
    living = {n.record.name: n for n in nodes if n.alive(now)}
    able = {name: n for name, n in living.items() if model.engine in n.record.engines and n.open}
    wakes = list(_wakes(placed, able, ask))
    # Beside one that rests a new one is never better: it would start from a rung that the resting one has reached, and
    # the sleeper would stay behind. Two measured times of a small model may well say the opposite.
    resting = {candidate.node.record.name for candidate in wakes}
    fresh = [candidate for candidate in _new(placed, able, ask) if candidate.node.record.name not in resting]
    candidates = [*wakes, *(candidate for candidate in fresh if candidate.fits)]
    if not candidates:
        return NoFit(_why_not(living, able, ask), passing=_passing(living, able, model))
    best = min(candidates, key=_Candidate.rank)
    return Choice(
        node=best.node.record.name,
        wake=best.wake,
        from_rung=best.rung,
        seconds=best.seconds,
        need_bytes=ask.memory(best.node),
        reason=f"{best.seconds:.1f} s from {best.rung.label} on {best.node.record.name}, best of {len(candidates)}",
    )


def cheapest_seconds(model: Model, nodes: Iterable[ObservedNode], siblings: Iterable[Placed], now: float) -> float:
    """Return the fewest predicted seconds that one more instance would take, memory left aside."""
    able = {n.record.name: n for n in nodes if n.alive(now) and n.open and model.engine in n.record.engines}
    placed, ask = tuple(siblings), _Ask(model, None, {})
    costs = [c.seconds for c in (*_wakes(placed, able, ask), *_new(placed, able, ask))]
    return min(costs, default=DEFAULT_COSTS_S[Rung.COLD])


@dataclass(frozen=True, slots=True)
class _Ask:
    """What is to be placed; ``promised`` as in ``choose``."""

    model: Model
    memory_mb: int | None
    promised: Mapping[str, int]

    def memory(self, node: ObservedNode) -> int:
        return memory_need(self.memory_mb, self.model, node)

    def free(self, node: ObservedNode) -> int:
        return max(0, node.record.memory.free - self.promised.get(node.record.name, 0))

    def on_gpu(self, node: ObservedNode) -> bool:
        return node.needs_gpu(self.model.engine)

    def gpu_fits(self, node: ObservedNode) -> bool:
        """Whether as many GPUs there as it computes on take equal shares of it; not asked of what the processors compute."""
        if not self.on_gpu(node):
            return True
        count = gpus_of(self.model.engine_options)
        share = math.ceil(gpu_need(self.model, node) / count)
        return sum(device.memory_free >= share for device in node.fit_gpus) >= count

    def rung(self, node: ObservedNode, rung: Rung) -> Rung:
        """Return the rung from which a climb really begins there: bytes beside a ready zygote are as good as resting on it."""
        ready = rung is Rung.STAGED and node.zygote_ready(self.model.engine)
        return Rung.ZYGOTE if ready else rung

    def seconds(self, node: ObservedNode, rung: Rung) -> float:
        return seconds_to_ready(node, self.model.manifest.digest, rung, self.model.manifest.total_bytes)


def _wakes(placed: tuple[Placed, ...], able: Mapping[str, ObservedNode], ask: _Ask) -> Iterable[_Candidate]:
    for sibling in placed:
        node = able.get(sibling.assignment.node)
        if node is None or sibling.wants_ready or sibling.failed:
            continue
        rests = sibling.assignment.rung if sibling.instance is None else sibling.instance.record.rung
        if ask.on_gpu(node) and rests < Rung.ASLEEP and not node.fit_gpus:
            continue  # what has no process yet has no GPU yet, and a cordoned one gets nothing new
        held = 0 if sibling.instance is None else sibling.instance.record.resident_bytes
        rung, free = ask.rung(node, rests), ask.free(node)
        yield _Candidate(
            node=node,
            wake=sibling,
            rung=rung,
            seconds=ask.seconds(node, rung),
            free=free,
            # A sleeper's own GPU is not known here; its node knows whether there is room on it.
            fits=ask.memory(node) - held <= free and (rests >= Rung.ASLEEP or ask.gpu_fits(node)),
            neighbours=_neighbours(placed, node, but=sibling),
        )


def _new(placed: tuple[Placed, ...], able: Mapping[str, ObservedNode], ask: _Ask) -> Iterable[_Candidate]:
    digest = ask.model.manifest.digest
    for node in able.values():
        staged = any(artifact.digest == digest for artifact in node.record.artifacts)
        rung, free = ask.rung(node, Rung.STAGED if staged else Rung.COLD), ask.free(node)
        yield _Candidate(
            node=node,
            wake=None,
            rung=rung,
            seconds=ask.seconds(node, rung),
            free=free,
            fits=ask.memory(node) <= free and ask.gpu_fits(node),
            neighbours=_neighbours(placed, node, but=None),
        )


def _neighbours(placed: tuple[Placed, ...], node: ObservedNode, but: Placed | None) -> int:
    return sum(1 for p in placed if p.assignment.node == node.record.name and p.wants_ready and p is not but)


def _passing(living: Mapping[str, ObservedNode], able: Mapping[str, ObservedNode], model: Model) -> bool:
    leaving = [node for node in living.values() if node.record.mode is NodeMode.LEAVING and model.engine in node.record.engines]
    return not able and bool(leaving)


def _by(node: Node) -> str:
    return f" ({node.mode_reason})" if node.mode_reason else ""


def _why_not(living: Mapping[str, ObservedNode], able: Mapping[str, ObservedNode], ask: _Ask) -> str:
    model = ask.model
    if not living:
        return "no node is alive: start one with `standby node`"
    closed = [n.record for n in living.values() if not n.open and model.engine in n.record.engines]
    if not able and closed:
        return f"no node takes anything new: {'; '.join(f'{one.name} is {one.mode}{_by(one)}' for one in closed)}"
    if not able:
        return f"no living node runs the engine {model.engine.value} ({len(living)} alive)"
    roomy = [node for node in able.values() if ask.memory(node) <= ask.free(node)]
    if roomy:
        return _why_no_gpu(roomy, ask)
    closest = min(able.values(), key=lambda node: (ask.memory(node) - ask.free(node), node.record.name))
    need = _megabytes(ask.memory(closest))
    return (
        f"no node has {need} of memory free: model {model.name} needs {need}, "
        f"largest free {_megabytes(ask.free(closest))} ({len(able)} alive with engine {model.engine.value})"
    )


def _why_no_gpu(nodes: Iterable[ObservedNode], ask: _Ask) -> str:
    """Say what each GPU lacks; all of these nodes have the host memory."""
    told = []
    for node in nodes:
        fit = {device.id: device for device in node.fit_gpus}
        told += [f"{device.id} {_megabytes(device.memory_free)} free" for device in fit.values()]
        told += [f"{device.id} cordoned: {device.cordoned}" for device in node.record.devices if device.cordoned]
    need = _megabytes(min(gpu_need(ask.model, node) for node in nodes))
    has = "; ".join(told) or "none is known"
    return f"no GPU takes model {ask.model.name}, which needs {need} of its memory: {has}"


def _megabytes(count: int) -> str:
    return f"{count / _MIB:.0f} MiB"
