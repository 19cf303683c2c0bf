"""What each rung costs: the nodes' measured prices, by model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from starlette.responses import Response

from standby.domain.errors import ModelNotFound, NotFound
from standby.domain.model import EngineKind, Manifest, Model
from standby.domain.node import Node
from standby.domain.prices import ModelPrices, NodePrices
from standby.gateway.api.context import ApiRoute, Call, missing
from standby.gateway.api.responses import json_response
from standby.gateway.api.views import models_by_digest

Named = Mapping[str, list[str]]


async def list_prices(call: Call) -> Response:
    """What was measured of the tenant's models; an administrator sees all. ``?node=`` and ``?model=`` narrow.

    Raises ModelNotFound, and to an administrator NotFound for a node that there is not.
    """
    copies = call.context.copies
    node, model = call.request.query_params.get("node"), call.request.query_params.get("model")
    named = _named(call)
    if model is not None:
        named = _only(named, model, call)
    nodes = {entry.value.name: entry.value for entry in copies.nodes.entries.values()}
    measured = [entry.value for entry in copies.prices.entries.values() if node in {None, entry.value.node}]
    # A tenant is not told which nodes there are: to it, one that measured nothing of its models is like none.
    if call.is_admin and node is not None and not measured and node not in nodes:
        raise NotFound(f"there is no node {node[:80]!r}", remedy="leave out the node to see all that measured something")
    everything = call.is_admin and model is None
    return json_response(prices_view(measured, nodes, named, everything=everything))


def prices_view(measured: Iterable[NodePrices], nodes: Mapping[str, Node], named: Named, *, everything: bool) -> dict[str, Any]:
    """Return the prices of the models in ``named`` (names by digest), or of ``everything``, in the order of nodes and names.

    ``zygotes`` is what hatching one costs, of the engines that serve these models.
    """
    prices: list[dict[str, Any]] = []
    zygotes: list[dict[str, Any]] = []
    for record in sorted(measured, key=lambda record: record.node):
        shown = [(key, item) for key, item in record.models.items() if everything or item.digest in named]
        rows = [_model_view(record.node, key, item, nodes.get(record.node), named) for key, item in shown]
        prices += sorted(rows, key=lambda row: (row["models"], row["digest"], row["options"]))
        engines = {item.engine for _key, item in shown}
        zygotes += [
            {"node": record.node, "engine": engine, "hatch": price}
            for engine, price in sorted(record.hatch.items())
            if everything or engine in engines
        ]
    return {"prices": prices, "zygotes": zygotes}


def _model_view(node: str, key: str, item: ModelPrices, record: Node | None, named: Named) -> dict[str, Any]:
    return {
        "node": node,
        "models": named.get(item.digest, []),
        "engine": item.engine,
        "digest": item.digest,
        "options": key.rpartition("-")[2],
        "has_zygote": _has_zygote(record, item.engine),
        "transitions": dict(item.transitions),
        "footprint": item.footprint,
    }


def _has_zygote(record: Node | None, engine: EngineKind) -> bool:
    """Whether the engine has that rung there; a node that is gone measured what it measured, and says no more."""
    return record is not None and engine in record.zygotes


def _named(call: Call) -> Named:
    """Return by digest the models that the caller may see: its own by their names, an administrator all with tenants."""
    models = [entry.value for entry in call.context.copies.models.entries.values()]
    if call.is_admin:
        return models_by_digest(models)
    mine = [model for model in models if model.tenant == call.tenant]
    prefix = len(call.tenant) + 1
    return {digest: [name[prefix:] for name in names] for digest, names in models_by_digest(mine).items()}


def _only(named: Named, name: str, call: Call) -> Named:
    """Keep the versions of one model of the tenant, whatever its weights. Raises ModelNotFound."""
    entries = call.context.copies.models.entries.values()
    model = next((entry.value for entry in entries if (entry.value.tenant, entry.value.name) == (call.tenant, name)), None)
    if model is None:
        raise missing(ModelNotFound, "model", name)
    digests = {manifest.digest for manifest in _versions(model)}
    return {digest: names for digest, names in named.items() if digest in digests}


def _versions(model: Model) -> Iterable[Manifest]:
    return (model.manifest, *model.weights.values())


ROUTES: Final = (ApiRoute("GET", "/api/v1/prices", list_prices),)
