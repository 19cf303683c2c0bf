"""Why an endpoint's engine failed, and the ends of its instances' logs, asked of their nodes now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from starlette.responses import Response

from standby.bus.subjects import logs_subject
from standby.domain.engine_logs import DEFAULT_LINES, MOST_LINES, EngineLog, LogAnswer, LogOrder
from standby.domain.errors import EndpointNotFound, NotFound, StandbyError
from standby.domain.instance import Instance
from standby.gateway.api.context import ApiRoute, Call, missing
from standby.gateway.api.node_answers import answer_of
from standby.gateway.api.responses import json_response
from standby.gateway.api.views import by_name, endpoint_view


async def logs(call: Call) -> Response:
    """The endpoint's failure and the last lines of each of its instances' logs; the tenant's own only.

    ``?instance=`` one of them, ``?lines=`` how many (50), ``?previous=1`` of the lives before. A node that does not answer
    is named in ``failures``. Raises EndpointNotFound, NotFound for the instance, InvalidInput.
    """
    entry = call.context.copies.endpoints.entries.get(call.record_key(EndpointNotFound, "endpoint"))
    if entry is None:
        raise missing(EndpointNotFound, "endpoint", call.request.path_params["name"])
    endpoint, wanted = entry.value, call.request.query_params.get("instance")
    instances = _of(call, endpoint.name)
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
    meant = [one for one in instances if wanted in {None, one.id}]
    found, failures = await _asked(call, meant, order)
    nodes = by_name(one.value for one in call.context.copies.nodes.entries.values())
    shown = endpoint_view(endpoint, None, instances, call.context.now(), nodes)
    return json_response(
        {
            "endpoint": endpoint.name,
            **{name: shown[name] for name in ("status", "state", "failure")},
            "instances": [
                _log_view(view, found.get(view["id"])) for view in shown["instances"] if wanted in {None, view["id"]}
            ],
            "failures": failures,
        }
    )


def _of(call: Call, endpoint: str) -> list[Instance]:
    held = (entry.value for entry in call.context.copies.instances.entries.values())
    return sorted((one for one in held if (one.tenant, one.endpoint) == (call.tenant, endpoint)), key=lambda one: one.id)


async def _asked(
    call: Call, instances: Iterable[Instance], order: LogOrder
) -> tuple[dict[str, EngineLog], list[dict[str, Any]]]:
    """Ask each node at the same time; return the logs by instance, and which nodes did not answer and why."""
    nodes = sorted({one.node for one in instances})
    results = await asyncio.gather(*(_ask(call, node, order) for node in nodes), return_exceptions=True)
    found: dict[str, EngineLog] = {}
    failures: list[dict[str, Any]] = []
    for node, result in zip(nodes, results, strict=True):
        if isinstance(result, LogAnswer):
            found.update({log.instance: log for log in result.logs})
        elif isinstance(result, StandbyError):
            failures.append({"node": node, "code": result.code, "message": result.message, "remedy": result.remedy})
        else:
            raise result
    return found, failures


async def _ask(call: Call, node: str, order: LogOrder) -> LogAnswer:
    raw = await answer_of(call, node, logs_subject(node), order.encode(), again="ask again")
    return LogAnswer.model_validate_json(raw)


def _log_view(view: dict[str, Any], log: EngineLog | None) -> dict[str, Any]:
    told = {"lines": (), "cut": False, "missing": "its node did not tell"}
    if log is not None:
        told = log.model_dump(include={"lines", "cut", "missing"})
    return {**{name: view[name] for name in ("id", "node", "variant", "backend", "state", "words", "failure")}, **told}


ROUTES: Final = (ApiRoute("GET", "/api/v1/endpoints/{name}/logs", logs),)
