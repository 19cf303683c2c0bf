"""Whole clusters as the controller sees them, of any size, made at once: for measuring plans and comparing them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from standby.controller.asked import Bucket, EndpointDemand
from standby.controller.view import ClusterView, EndpointView, ObservedInstance, ObservedNode, Placed
from standby.domain.assignment import Assignment
from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.instance import Instance, InstanceState, Rung
from standby.domain.model import Model
from standby.domain.serving import version_of
from support.cluster_records import GIB, TENANT, cached, make_config, make_endpoint, make_model, make_node

NOW: Final = 1000.0
_SLOTS: Final = 4
_TIMES: Final = {"keep_ready": 300.0, "keep_asleep": 3600.0, "keep_zygote": 3600.0, "keep_staged": "forever"}


class State(StrEnum):
    """What is to be done: nothing, a little, much, or everything."""

    STEADY = "steady"
    LIVE = "live"
    CLIMBING = "climbing"
    WAKING = "waking"


def a_cluster(endpoints: int, nodes: int, each: int, state: State) -> ClusterView:
    """Return a cluster whose endpoints have a model and ``each`` instances of their own, the last two of them asleep."""
    artifacts: dict[int, list[Model]] = {number: [] for number in range(nodes)}
    views = {}
    for number in range(endpoints):
        model = make_model(f"m{number}")
        on = [(number * 7 + at * 13) % nodes for at in range(each)]
        for node in on:
            artifacts[node].append(model)
        view = _endpoint(number, model, on, state)
        views[view.key] = view
    observed = {}
    for number, models in artifacts.items():
        record = make_node(f"n{number}", capacity=8192 * GIB, artifacts=tuple(cached(model) for model in models))
        observed[record.name] = ObservedNode(record, NOW, confirmed=True)
    return ClusterView(endpoints=views, nodes=observed, assignment_count=endpoints * each)


def _endpoint(number: int, model: Model, on: list[int], state: State) -> EndpointView:
    name = f"e{number}"
    policy = ScalePolicy.model_validate({**_TIMES, "max_instances": len(on) + 3, "slots": _SLOTS})
    variant = Variant(model=model.name, policy=policy)
    up = max(0, len(on) - 2)
    level, idle_at = _level(number, up, state)
    placed = tuple(_placed(name, at, node, variant, model, ready=at < up, idle_at=idle_at) for at, node in enumerate(on))
    return EndpointView(
        key=f"{TENANT}.{name}",
        record=make_endpoint(name),
        revision=1,
        config=make_config(name, variant),
        models={model.name: model},
        demand=_demand(level, idle_at),
        placed=placed,
    )


def _level(number: int, up: int, state: State) -> tuple[int, float]:
    """Return how many requests there are, and since when there are none."""
    short = up * _SLOTS + 6
    if state is State.WAKING:
        return 3, NOW
    if state is State.CLIMBING and number % 10 == 0:
        return short, NOW
    if state is State.LIVE and number % 50 == 0:
        return short, NOW
    if state is State.LIVE and number % 50 == 1:
        return 0, NOW - 400.0
    if number % 3 == 0:
        return 0, NOW - 20.0
    return up * _SLOTS - (number % 3), NOW


def _demand(level: int, idle_at: float) -> EndpointDemand:
    """Return what the gateways say: so many for a minute, with what moves from second to second."""
    history = tuple(Bucket(NOW - 60 + at * 0.25, level - (level > 2 and at % 7 == 0), level, level) for at in range(240))
    if level == 0:
        history = (Bucket(idle_at - 60, 9, 9, 9), Bucket(idle_at, 0, 9, 0))
    oldest = NOW if level else None
    return EndpointDemand(level, 0, idle_at, oldest, valid=True, valid_since=0.0, history=history)


def _placed(endpoint: str, at: int, node: int, variant: Variant, model: Model, *, ready: bool, idle_at: float) -> Placed:
    name = f"{endpoint}-{at}"
    assignment = Assignment(
        node=f"n{node}",
        instance=name,
        tenant=TENANT,
        endpoint=endpoint,
        variant=variant.name,
        served_name=endpoint,
        model=model,
        rung=Rung.READY if ready else Rung.ASLEEP,
        slots=_SLOTS,
        version=version_of(model, variant),
        intent="x",
        leader_epoch=1,
    )
    record = Instance(
        node=assignment.node,
        id=name,
        tenant=TENANT,
        endpoint=endpoint,
        variant=variant.name,
        served_name=endpoint,
        model_digest=model.manifest.digest,
        version=assignment.version,
        state=InstanceState.READY if ready else InstanceState.ASLEEP,
        epoch=1,
        door="127.0.0.1:1",
        slots=_SLOTS,
        idle_since=0.0,
        rung_since=0.0,
        assignment_intent="x",
        updated_at=NOW,
    )
    seen = ObservedInstance(record, rung_at=NOW - 500.0, idle_at=idle_at, state_at=NOW - 500.0)
    return Placed(f"n{node}.{name}", assignment, 1, NOW - 500.0, seen)
