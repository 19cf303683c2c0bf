"""What is weighed when an instance is idle: the ladder of its model on its node, its endpoint's prices and limits. Pure.

On a node whose engine computes on processors their memory is the device: what an engine holds there costs the device's price.
What a node has not measured yet is guessed as placement guesses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from standby.controller.arrivals import GapModel
from standby.controller.demotion import Limits, Step, hold
from standby.controller.economics import GB, Ladder, PriceVector, measured, preset
from standby.controller.economy import Economy
from standby.controller.placement import gpu_need, memory_need, seconds_to_ready
from standby.controller.view import ObservedNode
from standby.domain.endpoint import ScalePolicy
from standby.domain.instance import Rung
from standby.domain.model import Model
from standby.domain.node import Node
from standby.domain.prices import Footprint, ModelPrices, NodePrices, Price, Transition

# Of what an awake instance holds, until its sleep was measured: on processors the residue, on a GPU what stays on it while
# the weights wait in host memory.
ASLEEP_ON_PROCESSORS: Final = 0.2
ASLEEP_ON_GPU: Final = 0.05
SLEEP_S: Final = 0.3
MOST_REMEMBERED: Final = 50_000
_CLIMBS: Final[Mapping[Transition, Rung]] = {
    Transition.START: Rung.STAGED,
    Transition.FORK: Rung.ZYGOTE,
    Transition.WAKE: Rung.ASLEEP,
}


class Weighing(NamedTuple):
    """Everything that ``demotion.hold`` reads, but for the idle time and the present rung."""

    ladder: Ladder
    gaps: GapModel
    prices: PriceVector
    limits: Limits


class Measures(NamedTuple):
    """What is known of one model on one node; equal ones give the same ladder."""

    known: ModelPrices | None
    costs: Mapping[Rung, float] | None
    footprint: int | None
    device_footprint: int | None


class _Terms(NamedTuple):
    base: PriceVector
    prices: PriceVector
    rungs: frozenset[Rung]
    with_zygote: frozenset[Rung]
    # By node, model, engine, whether there is a zygote, and memory as configured.
    ladders: dict[tuple[str, str, str, bool, int | None], _Made]


class _Made(NamedTuple):
    node: Node
    prices: NodePrices | None
    measures: Measures
    ladder: Ladder
    floor_s: float
    ahead: bool  # whether a climb ahead of demand may ever be granted there
    blank: GapModel


def prices_of(policy: ScalePolicy, economy_prices: PriceVector) -> PriceVector:
    """Return the weights for an endpoint: the controller's, unless its policy names a preset or the price of a wait."""
    prices = economy_prices
    if policy.price_preset is not None:
        prices = prices.with_wait(preset(policy.price_preset.value).wait)
    if policy.wait_price is not None:
        prices = prices.with_wait(policy.wait_price)
    return prices


def prices_in_words(policy: ScalePolicy, economy: Economy) -> str:
    """Return the name of an endpoint's weights."""
    name = (policy.price_preset or economy.preset).value
    return name if policy.wait_price is None else f"{name}, a second's wait at {policy.wait_price:g}"


def weighing(
    economy: Economy,
    node: ObservedNode,
    model: Model,
    policy: ScalePolicy,
    gaps: GapModel | None,
    memory_mb: int | None = None,
    *,
    alone: bool = True,
) -> Weighing:
    """Return what is weighed for an instance of ``model`` on ``node``.

    ``gaps`` None: nothing was learned yet. Not ``alone``: others of the endpoint answer, so that its gaps say nothing of
    this one, which is held as long as ski-rental holds it.
    """
    terms = _terms(economy, policy)
    made = _ladder(economy, node, model, terms, memory_mb)
    ahead = alone and made.ahead and policy.keep_ready is None
    limits = _limits(made.floor_s, policy.max_cold_wait, ahead, not alone)
    return Weighing(made.ladder, gaps if gaps is not None and alone else made.blank, terms.prices, limits)


def step_of(weighed: Weighing, idle_s: float, rung: Rung) -> Step:
    """Return the rung for an instance that has ``rung`` after ``idle_s`` seconds without work, until when, and why."""
    step = hold(weighed.ladder, weighed.gaps, idle_s, weighed.prices, weighed.limits, rung=rung)
    if step.rung >= rung:
        return step
    # Where it falls the way that every instance goes, the words of that way say more.
    usual = hold(weighed.ladder, weighed.gaps, idle_s, weighed.prices, weighed.limits)
    return step._replace(reason=usual.reason) if usual.rung is step.rung else step


def held_gb(node: ObservedNode, model: Model, memory_mb: int | None) -> float:
    """Return the GB of the device, which may be the processors', that an instance takes to be ready there."""
    need = gpu_need(model, node) if node.needs_gpu(model.engine) else memory_need(memory_mb, model, node)
    return need / GB


@lru_cache(maxsize=4096)
def _limits(floor_s: float, max_wait_s: float, ahead: bool, worst_case: bool) -> Limits:
    return Limits(floor_s=floor_s, max_wait_s=max_wait_s, prewarm=ahead, worst_case=worst_case)


def _terms(economy: Economy, policy: ScalePolicy) -> _Terms:
    # All of a policy that is read here. Of backends, schedules and changed capacities each plan makes policies anew, so that
    # by its identity none would be found again, and each would be kept.
    name = (
        policy.price_preset, policy.wait_price, policy.max_cold_wait,
        policy.keep_ready is None, policy.keep_asleep, policy.keep_zygote, policy.keep_staged,
    )  # fmt: skip
    known = economy.ladders.get(name)
    if isinstance(known, _Terms) and known.base is economy.prices:
        return known
    rungs = _rungs(policy, zygote=False), _rungs(policy, zygote=True)
    made = _Terms(economy.prices, prices_of(policy, economy.prices), *rungs, {})
    _remember(economy, name, made)
    return made


def _remember(economy: Economy, name: object, made: object) -> None:
    if len(economy.ladders) >= MOST_REMEMBERED:
        economy.ladders.clear()
    economy.ladders[name] = made


def _rungs(policy: ScalePolicy, *, zygote: bool) -> frozenset[Rung]:
    """Return the rungs that an instance may rest on: a time of zero skips one, without a time weights never leave the disk."""
    rungs = {Rung.READY}
    for rung, seconds in ((Rung.ASLEEP, policy.keep_asleep), (Rung.STAGED, policy.keep_staged)):
        if seconds != 0:
            rungs.add(rung)
    if zygote and policy.keep_zygote != 0:
        rungs.add(Rung.ZYGOTE)
    if policy.keep_staged is not None:
        rungs.add(Rung.COLD)
    return frozenset(rungs)


def _ladder(economy: Economy, node: ObservedNode, model: Model, terms: _Terms, memory_mb: int | None) -> _Made:
    record, digest, engine = node.record, model.manifest.digest, model.engine
    prices = economy.measured.get(record.name)
    zygote = engine in record.zygotes
    name = (record.name, digest, engine, zygote, memory_mb)
    made = terms.ladders.get(name)
    if made is not None and made.node is record and made.prices is prices:
        return made
    known = _known(economy, record.name, digest, model)
    ahead = _affordable(economy, node, model, memory_mb)
    measures = Measures(known, record.costs.get(digest), record.footprints.get(digest), record.device_footprints.get(digest))
    if made is not None and made.measures == measures:
        fresh = made._replace(node=record, prices=prices, ahead=ahead)
    else:
        ladder, floor_s = _make(known, node, model, terms.with_zygote if zygote else terms.rungs, terms.prices, memory_mb)
        if made is not None and made.ladder == ladder:
            ladder = made.ladder
        fresh = _Made(record, prices, measures, ladder, floor_s, ahead, GapModel())
    if len(terms.ladders) >= MOST_REMEMBERED:
        terms.ladders.clear()
    terms.ladders[name] = fresh
    return fresh


def _affordable(economy: Economy, node: ObservedNode, model: Model, memory_mb: int | None) -> bool:
    """Whether the budget of an empty node has room for the climb: who falls counting on one that never comes falls too far."""
    gpu = node.needs_gpu(model.engine)
    whole = sum(device.memory_total for device in node.fit_gpus) if gpu else node.record.memory.capacity
    return held_gb(node, model, memory_mb) <= economy.budget.share * whole / GB


def _make(
    known: ModelPrices | None,
    node: ObservedNode,
    model: Model,
    rungs: frozenset[Rung],
    prices: PriceVector,
    memory_mb: int | None,
) -> tuple[Ladder, float]:
    """Return the ladder, and the least time for which ready is worth leaving."""
    whole = _whole(known, node, model, memory_mb)
    if not node.needs_gpu(model.engine):
        memory = whole.footprint
        whole = whole.model_copy(
            update={"footprint": Footprint(device_awake=memory.awake, awake=0, device_asleep=memory.asleep, asleep=0)}
        )
    size_gb = model.manifest.total_bytes / GB
    found = measured(whole, size_gb, prices, zygote=Rung.ZYGOTE in rungs, cold=Rung.COLD in rungs)
    # Falling asleep and waking at once would take as long as just this.
    floor_s = whole.transitions[Transition.SLEEP].seconds + whole.transitions[Transition.WAKE].seconds
    return tuple(one for one in found if one.rung in rungs), floor_s


def _known(economy: Economy, node: str, digest: str, model: Model) -> ModelPrices | None:
    """Return what the node has measured of the model; of several options, what was measured most often."""
    record = economy.measured.get(node)
    if record is None:
        return None
    kept = economy.ladders.get(node)
    if not isinstance(kept, tuple) or kept[0] is not record:
        kept = (record, _by_model(record))
        _remember(economy, node, kept)
    found: ModelPrices | None = kept[1].get((digest, model.engine))
    return found


def _by_model(record: NodePrices) -> dict[tuple[str, str], ModelPrices]:
    found: dict[tuple[str, str], ModelPrices] = {}
    for one in sorted(record.models.values(), key=lambda item: sum(price.samples for price in item.transitions.values())):
        found[one.digest, one.engine] = one
    return found


def _whole(known: ModelPrices | None, node: ObservedNode, model: Model, memory_mb: int | None) -> ModelPrices:
    """Return the measurements with a guess in place of each one that is lacking."""
    digest, size = model.manifest.digest, model.manifest.total_bytes
    seen = {} if known is None else dict(known.transitions)
    for step, rung in _CLIMBS.items():
        seen.setdefault(step, _guess(seconds_to_ready(node, digest, rung, size)))
    cold = seconds_to_ready(node, digest, Rung.COLD, size)
    seen.setdefault(Transition.FETCH, _guess(max(cold - seen[Transition.START].seconds, 0.0)))
    seen.setdefault(Transition.SLEEP, _guess(SLEEP_S))
    return ModelPrices(
        engine=model.engine,
        digest=digest,
        transitions=seen,
        footprint=_memory(Footprint() if known is None else known.footprint, node, model, memory_mb),
    )


def _memory(seen: Footprint, node: ObservedNode, model: Model, memory_mb: int | None) -> Footprint:
    awake = seen.awake if seen.awake is not None else memory_need(memory_mb, model, node)
    if not node.needs_gpu(model.engine):
        asleep = seen.asleep if seen.asleep is not None else int(awake * ASLEEP_ON_PROCESSORS)
        return Footprint(awake=awake, asleep=min(asleep, awake))
    device = seen.device_awake if seen.device_awake is not None else gpu_need(model, node)
    return Footprint(
        awake=awake,
        asleep=seen.asleep if seen.asleep is not None else device,
        device_awake=device,
        device_asleep=seen.device_asleep if seen.device_asleep is not None else int(device * ASLEEP_ON_GPU),
    )


def _guess(seconds: float) -> Price:
    return Price(seconds=seconds, p95=seconds, samples=1, last=seconds, at=0.0)
