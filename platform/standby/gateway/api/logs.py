"""Why an endpoint's engine failed, and the ends of its instances' logs, asked of their nodes now."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from standby.bus.subjects import logs_subject
from standby.domain.engine_logs import DEFAULT_LINES, MOST_LINES, EngineLog, LogAnswer, LogOrder
from standby.domain.errors import NotFound
from standby.gateway.api.context import ApiRoute, Call
from standby.gateway.api.endpoints import instances_of, require_endpoint
from standby.gateway.api.node_answers import answer_of, answers_of, failures_view
from standby.gateway.api.responses import json_response
from standby.gateway.api.views import by_name, endpoint_view


async def logs(call: Call) -> Response:
    """The endpoint's failure and the last lines of each of its instances' logs; the tenant's own only.

    ``?instance=`` one of them, ``?lines=`` how many (50), ``?previous=1`` of the lives before. A node that does not answer
    is named in ``failures``. Raises EndpointNotFound, NotFound for the instance, InvalidInput.
    """
    endpoint, wanted = require_endpoint(call), call.request.query_params.get("instance")
    instances = instances_of(call, endpoint)
    if wanted is not None and wanted not in {one.id for one in instances}:
        known = ", ".join(one.id for one in instances[:20]) or "none"
        raise NotFound(f"endpoint {endpoint.name!r} has no instance {wanted[:80]!r}", remedy=f"it has: {known}")
    order = LogOrder(
        tenant=call.tenant,
        endpoint=endpoint.name,
        instance=wanted or "",
        lines=call.number("lines", DEFAULT_LINES, MOST_LINES),
        previous=bool(call.number("previous", 0, 1)),
    )
    nodes_meant = sorted({one.node for one in instances if wanted in {None, one.id}})
    answers, failures = await answers_of(nodes_meant, lambda node: _ask(call, node, order))
    found = {log.instance: log for answer in answers for log in answer.logs}
    nodes = by_name(one.value for one in call.context.copies.nodes.entries.values())
    shown = endpoint_view(endpoint, None, instances, call.context.now(), nodes)
    return json_response(
        {
            "endpoint": endpoint.name,
            **{name: shown[name] for name in ("status", "state", "failure")},
            "instances": [
                _log_view(view, found.get(view["id"])) for view in shown["instances"] if wanted in {None, view["id"]}
            ],
            "failures": failures_view(failures),
        }
    )


async def _ask(call: Call, node: str, order: LogOrder) -> LogAnswer:
    raw = await answer_of(call, node, logs_subject(node), order.encode(), again="ask again")
    return LogAnswer.model_validate_json(raw)


def _log_view(view: dict[str, Any], log: EngineLog | None) -> dict[str, Any]:
    told = {"lines": (), "cut": False, "missing": "its node did not tell"}
    if log is not None:
        told = log.model_dump(include={"lines", "cut", "missing"})
    return {**{name: view[name] for name in ("id", "node", "variant", "backend", "state", "words", "failure")}, **told}


ROUTES: Final = (ApiRoute("GET", "/api/v1/endpoints/{name}/logs", logs),)
