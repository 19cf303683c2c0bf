"""Past requests: where each went, why there, how it ended. A tenant's own only; those of other gateways are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from starlette.responses import Response

from standby.domain.errors import NotFound
from standby.domain.names import check_name
from standby.gateway.api.context import ApiContext, ApiRoute, Call
from standby.gateway.api.responses import json_response
from standby.gateway.neighbours import known

LAST: Final = 50
# Of each gateway: an answer over the bus has an upper limit of its own.
MOST: Final = 200


async def list_requests(call: Call) -> Response:
    """The tenant's last requests on all gateways, the newest first; ``?endpoint=`` and ``?limit=`` narrow.

    Raises InvalidInput.
    """
    endpoint = call.request.query_params.get("endpoint") or None
    if endpoint is not None:
        check_name("endpoint", endpoint)
    limit = call.number("limit", LAST, MOST)
    question = {"tenant": call.tenant, "endpoint": endpoint, "limit": limit}
    found = known(call.context.traces, question) + await _asked(call.context, question)
    found.sort(key=lambda trace: trace["arrived_at"], reverse=True)
    return json_response({"requests": _placed(call.context, found[:limit])})


async def show_request(call: Call) -> Response:
    """One request by its id, ours or the one that its caller gave; of several the newest. Raises NotFound."""
    name = str(call.request.path_params["id"])
    question = {"tenant": call.tenant, "id": name}
    found = known(call.context.traces, question)
    # An id of ours is of one request; what a caller has named may have come to others, too.
    if not any(trace["id"] == name for trace in found):
        found += await _asked(call.context, question)
    if not found:
        raise NotFound(
            f"no gateway remembers a request {name[:80]!r}",
            remedy="each keeps the last STANDBY_REQUEST_TRACES; see `standby requests list`",
        )
    newest = max(found, key=lambda trace: trace["arrived_at"])
    return json_response(_placed(call.context, [newest])[0])


async def _asked(context: ApiContext, question: dict[str, Any]) -> list[dict[str, Any]]:
    return [] if context.neighbours is None else await context.neighbours.ask(question)


def _placed(context: ApiContext, traces: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the traces with the nodes of their instances, as far as these still exist."""
    nodes = {entry.value.id: entry.value.node for entry in context.copies.instances.entries.values()}
    return [
        {**trace, "attempts": [{**attempt, "node": nodes.get(attempt["instance"])} for attempt in trace["attempts"]]}
        for trace in traces
    ]


ROUTES: Final = (
    ApiRoute("GET", "/api/v1/requests", list_requests),
    ApiRoute("GET", "/api/v1/requests/{id}", show_request),
)
