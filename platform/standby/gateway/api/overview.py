"""The console's feed: everything that a caller may see as one object, and a stream of what changes in it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response, StreamingResponse

from standby.console.feed import FASTEST_S, SLOWEST_S, Feed
from standby.console.values import Scope
from standby.domain.errors import Forbidden, InvalidInput, Unavailable
from standby.gateway.api.context import ApiRoute, Call
from standby.gateway.api.responses import JSON_TYPE

EVERY_S: Final = 1.0


async def show(call: Call) -> Response:
    """All of it, as it is now. ``?tenants=all`` is every tenant's, for administrators. Raises Forbidden, InvalidInput."""
    return Response(_feed(call).text(_scope(call)), media_type=JSON_TYPE, headers={"cache-control": "no-store"})


async def stream(call: Call) -> Response:
    """``event: overview`` with all of it, then ``event: change`` with what has changed, at most one each ``?every=`` seconds.

    A comment line shows that the stream is alive where nothing changes. It ends with the key that opened it, or its tenant.
    Raises Forbidden, InvalidInput.
    """
    pieces = _pieces(call, _feed(call), _scope(call), _every_s(call))
    return StreamingResponse(pieces, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _pieces(call: Call, feed: Feed, scope: Scope, every_s: float) -> AsyncIterator[str]:
    context = call.context
    stopping = asyncio.create_task(context.stopping.wait())
    stopping.add_done_callback(lambda _: feed.wake())

    def still() -> bool:
        # A stream outlives the moment in which its key was checked: it ends with the key (field case B44).
        return not context.stopping.is_set() and context.still_lets_in(call.key.id)

    watching = feed.watch(scope, every_s, still, heartbeat_s=context.heartbeat_s)
    try:
        async for piece in watching:
            yield piece
    finally:
        stopping.cancel()
        await watching.aclose()


def _feed(call: Call) -> Feed:
    if call.context.feed is None:
        raise Unavailable("this gateway keeps no overview", remedy="ask another one")
    return call.context.feed


def _scope(call: Call) -> Scope:
    wanted = call.request.query_params.get("tenants", "")
    if wanted not in ("", "all"):
        raise InvalidInput(f"tenants={wanted[:40]!r} is not understood", remedy="leave it out, or say ?tenants=all")
    if wanted and not call.is_admin:
        raise Forbidden("?tenants=all needs an administrator's key", remedy="leave it out to see your own")
    return Scope("" if wanted else call.tenant, call.is_admin)


def _every_s(call: Call) -> float:
    text = call.request.query_params.get("every", str(EVERY_S))
    try:
        every_s = float(text)
    except ValueError:
        every_s = math.nan
    if not FASTEST_S <= every_s <= SLOWEST_S:
        raise InvalidInput(
            f"every={text[:40]!r} is not a number of seconds from {FASTEST_S:g} to {SLOWEST_S:g}", remedy="e.g. ?every=1"
        )
    return every_s


ROUTES: Final = (
    ApiRoute("GET", "/api/v1/overview", show),
    ApiRoute("GET", "/api/v1/overview/stream", stream),
)
