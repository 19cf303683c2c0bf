"""Why an endpoint's engine failed, and the ends of its instances' logs, asked of their nodes now."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from starlette.responses import Response

from standby.bus.subjects import logs_subject
from standby.domain.engine_logs import DEFAULT_LINES, MOST_LINES, EngineLog, LogAnswer, LogOrder
from standby.domain.errors import InvalidInput, NotFound
from standby.gateway.api.context import ApiRoute, Call
from standby.gateway.api.endpoints import instances_of, require_endpoint
from standby.gateway.api.node_answers import answer_of, answers_of, failures_view
from standby.gateway.api.responses import json_response
from standby.gateway.api.views import by_name, endpoint_view

_NOTHING: Final = MappingProxyType(
    {"lines": (), "cut": False, "missing": "its node did not tell", "mark": "", "renewed": False}
)


async def logs(call: Call) -> Response:
    """The endpoint's failure and the last lines of each of its instances' logs; the tenant's own only.

    ``?instance=`` one of them, ``?lines=`` how many (50), ``?previous=1`` of the lives before. ``?after=ID:MARK,…`` with an
    earlier answer's marks: what was written since, and everything of other instances. A node that does not answer is named
    in ``failures``. Raises EndpointNotFound, NotFound for the instance, InvalidInput.
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
        after=_marks(call.request.query_params.get("after")),
    )
    nodes_meant = sorted({one.node for one in instances if wanted in {None, one.id}})
    answers, failures = await answers_of(nodes_meant, lambda node: _ask(call, node, order))
    found = {log.instance: _told(log, answer, order) for answer in answers for log in answer.logs}
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


def _marks(text: str | None) -> dict[str, str] | None:
    """Return marks by instance, None where nothing is followed. Raises InvalidInput."""
    if text is None:
        return None
    pairs = [pair.split(":") for pair in text.split(",") if pair]
    if not all(len(pair) == 2 for pair in pairs):
        raise InvalidInput(f"after={text[:80]!r} is not ID:MARK,…", remedy="give back the marks of an earlier answer")
    return {pair[0]: pair[1] for pair in pairs}


def _told(log: EngineLog, answer: LogAnswer, order: LogOrder) -> dict[str, Any]:
    mark = answer.marks.get(log.instance, "")
    if order.after is not None and log.lines and not mark:
        return {**_NOTHING, "missing": "its node is of an earlier version: its log cannot be followed"}
    return {**log.model_dump(include={"lines", "cut", "missing"}), "mark": mark, "renewed": log.instance in answer.renewed}


def _log_view(view: dict[str, Any], told: Mapping[str, Any] | None) -> dict[str, Any]:
    own = {name: view[name] for name in ("id", "node", "variant", "backend", "state", "words", "failure")}
    return {**own, **(_NOTHING if told is None else told)}


ROUTES: Final = (ApiRoute("GET", "/api/v1/endpoints/{name}/logs", logs),)
