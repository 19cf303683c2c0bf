"""What runs: instances, nodes, and the state of the whole."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Final

from starlette.responses import Response

from standby.bus.subjects import mode_subject
from standby.domain.endpoint import Endpoint
from standby.domain.errors import BusUnavailable, NotFound
from standby.domain.instance import Instance
from standby.domain.node_orders import NodeAction, NodeAnswer, NodeOrder
from standby.domain.values import Value
from standby.gateway.api.context import ApiRoute, Call
from standby.gateway.api.node_answers import answer_of
from standby.gateway.api.responses import json_response, read_body
from standby.gateway.api.views import by_name, instance_view, models_by_digest, node_view

_MOST_FAILED: Final = 20


class OrderBody(Value):
    """Body of an order to a node."""

    action: NodeAction


async def list_instances(call: Call) -> Response:
    """The tenant's instances; ``?endpoint=`` narrows."""
    endpoint = call.request.query_params.get("endpoint")
    mine = [item for item in _instances(call) if endpoint in {None, item.endpoint}]
    now, nodes = call.context.now(), by_name(entry.value for entry in call.context.copies.nodes.entries.values())
    mine.sort(key=lambda item: (item.endpoint, item.id))
    return json_response({"instances": [instance_view(item, now, nodes) for item in mine]})


async def list_nodes(call: Call) -> Response:
    """All nodes with their memory, cache, number of instances, and what they take."""
    copies, now = call.context.copies, call.context.now()
    there: dict[str, list[Instance]] = defaultdict(list)
    for entry in copies.instances.entries.values():
        there[entry.value.node].append(entry.value)
    nodes = sorted((entry.value for entry in copies.nodes.entries.values()), key=lambda item: item.name)
    models = models_by_digest(entry.value for entry in copies.models.entries.values())
    return json_response({"nodes": [node_view(node, there[node.name], models, now) for node in nodes]})


async def order(call: Call) -> Response:
    """Tell a node to cordon, drain or uncordon itself. Raises NotFound, Unavailable for its silence, BusUnavailable."""
    body = await read_body(call.request, OrderBody)
    name = require_node(call, str(call.request.path_params["name"]))
    wish = NodeOrder(action=body.action, by=f"{call.key.name} ({call.key.id})")
    raw = await answer_of(call, name, mode_subject(name), wish.encode(), again="the order can be repeated")
    return json_response(NodeAnswer.model_validate_json(raw).model_dump(exclude={"schema_version"}))


def require_node(call: Call, name: str) -> str:
    """Return ``name`` where a node has it. Raises NotFound."""
    known = sorted(entry.value.name for entry in call.context.copies.nodes.entries.values())
    if name not in known:
        raise NotFound(f"there is no node {name[:80]!r}", remedy=f"known are: {', '.join(known[:20]) or 'none'}")
    return name


async def status(call: Call) -> Response:
    """The state of the whole: bus, age of the local copies, leader, and the tenant's counts. Works while the bus is away."""
    context, copies = call.context, call.context.copies
    clock = context.clock()
    endpoints = [entry.value for entry in copies.endpoints.entries.values() if entry.value.tenant == call.tenant]
    content: dict[str, Any] = {
        "version": version("standby"),
        "gateway": context.source,
        "tenant": call.tenant,
        "role": call.key.role,
        "bus": {"connected": context.bus.connected, "disconnected_for_s": context.bus.disconnected_for()},
        "staleness_s": {
            "endpoints": _age(copies.endpoints.staleness(clock)),
            "instances": _age(copies.instances.staleness(clock)),
            "keys": _age(copies.keys.staleness(clock)),
            "models": _age(copies.models.staleness(clock)),
            "nodes": _age(copies.nodes.staleness(clock)),
        },
        "models": sum(entry.value.tenant == call.tenant for entry in copies.models.entries.values()),
        "endpoints": dict(Counter(item.status.value for item in endpoints)),
        "instances": dict(Counter(item.state.value for item in _instances(call))),
        "failed": _failed(endpoints),
    }
    if call.is_admin:
        content["leader"] = await _leaders(call)
        content["nodes"] = len(copies.nodes.entries)
        content["keys"] = sum(entry.value.revoked_at is None for entry in copies.keys.entries.values())
    return json_response(content)


def _failed(endpoints: Iterable[Endpoint]) -> list[dict[str, Any]]:
    """Return what does not start and why, the latest first; the ends of the logs are told with each endpoint."""
    failed = [(one.failure.at, one.name, one.failure) for one in endpoints if one.failure is not None]
    failed.sort(key=lambda one: one[:2], reverse=True)
    return [{"endpoint": name, **failure.model_dump(exclude={"log_tail"})} for _, name, failure in failed[:_MOST_FAILED]]


def _instances(call: Call) -> list[Instance]:
    return [entry.value for entry in call.context.copies.instances.entries.values() if entry.value.tenant == call.tenant]


def _age(seconds: float) -> float | None:
    return None if math.isinf(seconds) else seconds


async def _leaders(call: Call) -> dict[str, Any] | None:
    """Return who holds each lease; None where the bus cannot be asked. A lease read is news, never proof of leadership."""
    if not call.context.bus.connected:
        return None
    try:
        leases = await call.context.tables.leases.list()
    except BusUnavailable:
        return None
    return {name: {"holder": entry.value.holder, "epoch": entry.value.epoch} for name, entry in sorted(leases.items())}


ROUTES: Final = (
    ApiRoute("GET", "/api/v1/instances", list_instances),
    ApiRoute("GET", "/api/v1/nodes", list_nodes, admin=True),
    ApiRoute("POST", "/api/v1/nodes/{name}/orders", order, admin=True),
    ApiRoute("GET", "/api/v1/status", status),
)
