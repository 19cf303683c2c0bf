"""Where an instance should climb: the node and the rung with the fewest predicted seconds until ready. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from standby.controller.sites import Sites
from standby.controller.topology import Seat, seat
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
# What a node takes to push out somebody idle, and by how much a climb that needs this must beat one that needs nobody's
# memory: a wake gives back soon what it cost others, a load does not.
RECLAIM_S: Final = 3.0
RECLAIM_TO_WAKE: Final = 1.5
RECLAIM_TO_LOAD: Final = 2.0
# Two climbs whose seconds differ by less are as good as each other: what else differs decides.
ALIKE: Final = 1.2
_MIB: Final = 1024 * 1024
_ON_PROCESSORS: Final = Seat(0, 0)


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
    """``price``: ``seconds``, weighed where somebody else's memory has to be taken."""

    node: ObservedNode
    wake: Placed | None
    rung: Rung
    seconds: float
    price: float
    free: int
    fits: bool
    neighbours: int
    seat: Seat

    def among_alike(self) -> tuple[int, float, bool, Seat, int, str, str]:
        """Smaller is better: fewest of the same beside it, soonest, a wake, near and used devices, most free memory."""
        return (
            self.neighbours,
            round(self.price, 3),
            self.wake is None,
            self.seat,
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
    costs = node.record.costs.get(digest)
    if costs and rung in costs:
        return costs[rung]
    guess = DEFAULT_COSTS_S[rung] + (size / DOWNLOAD_BYTES_PER_S if rung is Rung.COLD else 0.0)
    return min([guess, *(seconds for lower, seconds in costs.items() if lower < rung)]) if costs else guess


def choose(variant: Variant, model: Model, sites: Sites, siblings: Iterable[Placed], tenant: str) -> Choice | NoFit:
    """Return where the next instance of ``variant`` should climb.

    ``siblings`` are the variant's assignments: those below ready may be woken. A resting instance is woken even where the
    ledger looks full, because its node may make room; a new one must fit. Nodes not yet seen alive come last. Of climbs
    that take about as long (within a fifth) the one with fewest siblings on its node is taken, so that the loss of a node
    costs as few as it can; then see ``_Candidate.among_alike``.
    """
    placed = tuple(siblings)
    ask = _Ask(model, variant.memory_mb, sites, tenant, variant.policy.isolate, _beside(placed))
    wakes = list(_wakes(placed, ask))
    # Beside one that rests a new one is never better: it would start from a rung that the resting one has reached, and
    # the sleeper would stay behind. Two measured times of a small model may well say the opposite.
    taken = {candidate.node.record.name for candidate in wakes}
    # What cannot be started where it is, for want of memory or for another reason, cannot be started beside itself.
    taken.update(one.assignment.node for one in placed if one.failed)
    candidates = [*wakes, *(one for one in _new(ask, but=taken) if one.fits)]
    if not candidates:
        return NoFit(_why_not(ask), passing=_passing(ask))
    best = _best(candidates)
    return Choice(
        node=best.node.record.name,
        wake=best.wake,
        from_rung=best.rung,
        seconds=best.seconds,
        need_bytes=ask.memory(best.node),
        reason=f"{best.seconds:.1f} s from {best.rung.label} on {best.node.record.name}, the least of all that can take it",
    )


def cheapest_seconds(variant: Variant, model: Model, sites: Sites, siblings: Iterable[Placed], tenant: str) -> float:
    """Return the fewest predicted seconds that one more instance would take, memory left aside."""
    placed = tuple(siblings)
    ask = _Ask(model, None, sites, tenant, variant.policy.isolate, {})
    costs = [ask.seconds(one.node, one.rung) for one in (*_wakes(placed, ask), *_new(ask, but=()))]
    return min(costs, default=DEFAULT_COSTS_S[Rung.COLD])


def _beside(placed: Sequence[Placed]) -> Mapping[str, int]:
    return Counter(one.assignment.node for one in placed if one.wants_ready)


def _best(candidates: Sequence[_Candidate]) -> _Candidate:
    doubtful = all(not one.node.confirmed for one in candidates)
    able = [one for one in candidates if one.node.confirmed or doubtful]
    enough = ALIKE * min(one.price for one in able)
    return min((one for one in able if one.price <= enough), key=_Candidate.among_alike)


@dataclass(frozen=True, slots=True)
class _Ask:
    """What is to be placed; ``beside`` has, by node, how many of the same are up or climbing there."""

    model: Model
    memory_mb: int | None
    sites: Sites
    tenant: str
    isolate: bool
    beside: Mapping[str, int]

    @property
    def digest(self) -> str:
        return self.model.manifest.digest

    def memory(self, node: ObservedNode) -> int:
        return memory_need(self.memory_mb, self.model, node)

    def able(self) -> Mapping[str, ObservedNode]:
        return self.sites.able(self.model.engine)

    def admitted(self, node: str) -> bool:
        return self.sites.admits(node, self.tenant, isolate=self.isolate)

    def on_gpu(self, node: ObservedNode) -> bool:
        return node.needs_gpu(self.model.engine)

    def seat(self, node: ObservedNode) -> Seat | None:
        """Return the best devices there, None where too few take their share of it; not asked of what processors compute."""
        if not self.on_gpu(node):
            return _ON_PROCESSORS
        count = gpus_of(self.model.engine_options)
        return seat(node.fit_gpus, count, math.ceil(gpu_need(self.model, node) / count))

    def rung(self, node: ObservedNode, rung: Rung) -> Rung:
        """Return the rung from which a climb really begins there: bytes beside a ready zygote are as good as resting on it."""
        ready = rung is Rung.STAGED and node.zygote_ready(self.model.engine)
        return Rung.ZYGOTE if ready else rung

    def seconds(self, node: ObservedNode, rung: Rung) -> float:
        return seconds_to_ready(node, self.digest, rung, self.model.manifest.total_bytes)


def _wakes(placed: tuple[Placed, ...], ask: _Ask) -> Iterator[_Candidate]:
    able = ask.able()
    for sibling in placed:
        node = able.get(sibling.assignment.node)
        if node is None or sibling.wants_ready or sibling.failed or not ask.admitted(sibling.assignment.node):
            continue
        rests = sibling.assignment.rung if sibling.instance is None else sibling.instance.record.rung
        if ask.on_gpu(node) and rests < Rung.ASLEEP and not node.fit_gpus:
            continue  # what has no process yet has no GPU yet, and a cordoned one gets nothing new
        held = 0 if sibling.instance is None else sibling.instance.record.resident_bytes
        free = ask.sites.free(node)
        # A sleeper's own GPU is not known here; its node knows whether there is room on it.
        its = _ON_PROCESSORS if rests >= Rung.ASLEEP else ask.seat(node)
        yield _candidate(ask, node, rests, fits=ask.memory(node) - held <= free and its is not None, its=its, wake=sibling)


def _new(ask: _Ask, but: Iterable[str]) -> Iterator[_Candidate]:
    """Yield new instances on nodes outside ``but``: of those nodes that are alike, one that no other of them beats."""
    left_out = set(but)
    for node in _worth_asking(ask, left_out):
        name = node.record.name
        if name not in left_out and ask.admitted(name):
            staged = ask.sites.has_staged(name, ask.digest)
            its = ask.seat(node)
            fits = ask.memory(node) <= ask.sites.free(node) and its is not None
            yield _candidate(ask, node, Rung.STAGED if staged else Rung.COLD, fits=fits, its=its, wake=None)


def _worth_asking(ask: _Ask, but: set[str]) -> Iterable[ObservedNode]:
    """Return the nodes of which one can be the best for a new instance.

    Nodes that know nothing of the model and have none of the same differ by their free memory alone, unless devices or
    tenants make a difference.
    """
    able, engine = ask.able(), ask.model.engine
    if ask.isolate or not ask.sites.shared or ask.sites.on_gpu(engine):
        return able.values()
    known = {*ask.sites.knowing(ask.digest), *ask.beside}
    special = [able[name] for name in known if name in able]
    return [*special, *ask.sites.most_free(engine, known | but)]


def _candidate(ask: _Ask, node: ObservedNode, rests: Rung, *, fits: bool, its: Seat | None, wake: Placed | None) -> _Candidate:
    rung = ask.rung(node, rests)
    seconds = price = ask.seconds(node, rung)
    if not fits:
        seconds += RECLAIM_S
        price = seconds * (RECLAIM_TO_WAKE if rung is Rung.ASLEEP else RECLAIM_TO_LOAD)
    name = node.record.name
    neighbours = ask.beside.get(name, 0)
    return _Candidate(node, wake, rung, seconds, price, ask.sites.free(node), fits, neighbours, its or _ON_PROCESSORS)


def _passing(ask: _Ask) -> bool:
    engine = ask.model.engine
    living = ask.sites.living.values()
    leaving = any(node.record.mode is NodeMode.LEAVING and engine in node.record.engines for node in living)
    return leaving and not ask.able()


def _by(node: Node) -> str:
    return f" ({node.mode_reason})" if node.mode_reason else ""


def _why_not(ask: _Ask) -> str:
    engine, able, living = ask.model.engine, ask.able(), ask.sites.living
    if not living:
        return "no node is alive: start one with `standby node`"
    if not able:
        closed = [n.record for n in living.values() if not n.open and engine in n.record.engines]
        if closed:
            return f"no node takes anything new: {'; '.join(f'{one.name} is {one.mode}{_by(one)}' for one in closed)}"
        return f"no living node runs the engine {engine.value} ({len(living)} alive)"
    admitted = [node for node in _worth_asking(ask, set()) if ask.admitted(node.record.name)]
    if not admitted:
        return f"no node is free of other tenants' instances ({len(able)} alive with engine {engine.value})"
    return _why_none_of(admitted, ask)


def _why_none_of(nodes: Sequence[ObservedNode], ask: _Ask) -> str:
    model, free = ask.model, ask.sites.free
    roomy = [node for node in nodes if ask.memory(node) <= free(node)]
    if any(ask.seat(node) is not None for node in roomy):
        names = ", ".join(sorted(node.record.name for node in roomy))
        return f"an instance failed on each node that has the memory for another one: {names}"
    if roomy:
        return _why_no_gpu(roomy, ask)
    closest = min(nodes, key=lambda node: (ask.memory(node) - free(node), node.record.name))
    need = _megabytes(ask.memory(closest))
    return (
        f"no node has {need} of memory free: model {model.name} needs {need}, "
        f"largest free {_megabytes(free(closest))} ({len(ask.able())} alive with engine {model.engine.value})"
    )


def _why_no_gpu(nodes: Iterable[ObservedNode], ask: _Ask) -> str:
    """Say what each GPU lacks; all of these nodes have the host memory."""
    told, needs = [], []
    for node in nodes:
        needs.append(gpu_need(ask.model, node))
        fit = {device.id: device for device in node.fit_gpus}
        told += [f"{device.id} {_megabytes(device.memory_free)} free" for device in fit.values()]
        told += [f"{device.id} cordoned: {device.cordoned}" for device in node.record.devices if device.cordoned]
    has = "; ".join(told) or "none is known"
    return f"no GPU takes model {ask.model.name}, which needs {_megabytes(min(needs))} of its memory: {has}"


def _megabytes(count: int) -> str:
    return f"{count / _MIB:.0f} MiB"
