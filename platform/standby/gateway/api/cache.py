"""The nodes' artifact caches: what lies there, and orders to pin, unpin and evict."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final

from pydantic import Field, model_validator
from starlette.responses import Response

from standby.bus.subjects import command_subject
from standby.domain.cache_orders import CacheAction, CacheAnswer, CacheOrder
from standby.domain.errors import BusUnavailable, ModelNotFound, NotFound, StandbyError
from standby.domain.names import check_name, key
from standby.domain.values import Value
from standby.gateway.api.context import ApiRoute, Call, missing
from standby.gateway.api.node_answers import Failures, answer_of, answers_of, failures_view
from standby.gateway.api.responses import json_response, read_body
from standby.gateway.api.usage import require_weights
from standby.gateway.api.views import artifact_view, models_by_digest


class Wish(StrEnum):
    """What an order may ask for."""

    PIN = "pin"
    UNPIN = "unpin"
    EVICT = "evict"


class OrderBody(Value):
    """Body of an order; without a node it goes to every node that has the artifact.

    ``artifact`` is a digest or a unique beginning of one; or ``model`` with, if need be, ``weights``. The same ``intent``
    again is carried out once.
    """

    action: Wish
    node: str | None = None
    artifact: str | None = Field(default=None, pattern=r"^[0-9a-f]{4,64}$")
    model: str | None = None
    weights: str | None = None
    intent: str = Field(default_factory=lambda: uuid.uuid4().hex, min_length=1, max_length=128)

    @model_validator(mode="after")
    def _one_artifact(self) -> OrderBody:
        if (self.artifact is None) == (self.model is None):
            msg = "give either 'artifact' or 'model'"
            raise ValueError(msg)
        if self.weights is not None and self.model is None:
            msg = "'weights' are those of a 'model'"
            raise ValueError(msg)
        return self


async def list_cache(call: Call) -> Response:
    """What each node's cache holds, asked of the nodes now; ``?node=`` asks one. A node that does not answer is named."""
    order = CacheOrder(intent=uuid.uuid4().hex, action=CacheAction.LIST)
    node = call.request.query_params.get("node")
    answers, failures = await _ask_all(call, _nodes(call, node), order)
    if node is not None and failures:
        raise failures[0][1]
    return json_response(_view(call, answers, failures))


async def give_order(call: Call) -> Response:
    """Carry out one order. Raises what the node says (NotFound, Conflict, InvalidInput), and Unavailable for its silence.

    An order to all nodes succeeds where one of them has carried it out; what others say against it is told beside that.
    """
    body = await read_body(call.request, OrderBody)
    artifact = body.artifact if body.artifact is not None else await _digest(call, body)
    by = f"{call.key.name} ({call.key.id})"
    order = CacheOrder(intent=body.intent, action=CacheAction(body.action.value), artifact=artifact, by=by)
    answers, failures = await _ask_all(call, _nodes(call, body.node), order)
    told = [(node, error) for node, error in failures if body.node is not None or not isinstance(error, NotFound)]
    if not answers:
        raise told[0][1] if told else _nowhere(body, failures)
    return json_response(_view(call, answers, told))


def _nodes(call: Call, node: str | None) -> list[str]:
    known = sorted(entry.value.name for entry in call.context.copies.nodes.entries.values())
    if node is None:
        return known
    if node not in known:
        raise NotFound(
            f"there is no node {node[:80]!r}",
            remedy=f"known are: {', '.join(known[:20])}" if known else "no node has been seen",
        )
    return [node]


async def _digest(call: Call, body: OrderBody) -> str:
    assert body.model is not None
    check_name("model", body.model)
    entry = await call.context.tables.models.get(key(call.tenant, body.model))
    if entry is None:
        raise missing(ModelNotFound, "model", body.model)
    if body.weights is None:
        return entry.value.manifest.digest
    return require_weights(entry.value, body.weights).digest


async def _ask_all(call: Call, nodes: Sequence[str], order: CacheOrder) -> tuple[list[CacheAnswer], Failures]:
    """Return who has carried it out, and who did not answer or refused. Raises BusUnavailable."""
    answers, failures = await answers_of(nodes, lambda node: _ask(call, node, order))
    for _, error in failures:
        if isinstance(error, BusUnavailable):
            raise error
    return answers, failures


async def _ask(call: Call, node: str, order: CacheOrder) -> CacheAnswer:
    again = "repeat the order with the same intent, it is carried out once"
    raw = await answer_of(call, node, command_subject(node), order.encode(), again=again)
    return CacheAnswer.model_validate_json(raw)


def _nowhere(body: OrderBody, failures: Iterable[tuple[str, StandbyError]]) -> NotFound:
    what = f"model {body.model!r}" if body.model is not None else f"artifact {body.artifact!r}"
    asked = sum(1 for _ in failures)
    return NotFound(f"no cache holds {what}: {asked} nodes were asked", remedy="`standby cache ls` shows what is there")


def _view(call: Call, answers: Iterable[CacheAnswer], failures: Iterable[tuple[str, StandbyError]]) -> dict[str, Any]:
    names = models_by_digest(entry.value for entry in call.context.copies.models.entries.values())
    return {
        "nodes": [
            {
                "node": answer.node,
                "changed": answer.changed,
                "freed_bytes": answer.freed_bytes,
                "used_bytes": answer.used_bytes,
                "capacity_bytes": answer.capacity_bytes,
                "artifacts": [artifact_view(item, names) for item in answer.artifacts],
            }
            for answer in answers
        ],
        "failures": failures_view(failures),
    }


ROUTES: Final = (
    ApiRoute("GET", "/api/v1/cache", list_cache, admin=True),
    ApiRoute("POST", "/api/v1/cache/orders", give_order, admin=True),
)
