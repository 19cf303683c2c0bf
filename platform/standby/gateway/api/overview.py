"""The console's feed: everything that a caller may see as one object, and a stream of what changes in it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator
from typing import ClassVar, Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Connection

from standby.console.feed import FASTEST_S, SLOWEST_S, Feed
from standby.console.values import Scope
from standby.domain.errors import Forbidden, InvalidInput, Unavailable
from standby.gateway.api.context import ApiRoute, Call
from standby.gateway.api.responses import JSON_TYPE

_log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
_EVENTS: Final = "text/event-stream"
_NOT_KEPT: Final = {"cache-control": "no-store"}


async def show(call: Call) -> Response:
    """All of it, as it is now. ``?tenants=all`` is every tenant's, for administrators. Raises Forbidden, InvalidInput."""
    return Response(await _feed(call).text(_scope(call)), media_type=JSON_TYPE, headers=_NOT_KEPT)


async def stream(call: Call) -> Response:
    """``event: overview`` with all of it, then ``event: change`` with what has changed, at most one each ``?every=`` seconds.

    A comment line shows that the stream is alive where nothing changes. It ends with the key that opened it, or its tenant.
    Raises Forbidden, InvalidInput.
    """
    feed, scope, every_s = _feed(call), _scope(call), _every_s(call)
    if call.request.method == "HEAD":
        # Its answer ends with the head, and whoever asked would never be told that a stream without a body goes on.
        return Response(media_type=_EVENTS, headers=_NOT_KEPT)
    return Stream(_pieces(call, feed, scope, every_s))


class Stream(StreamingResponse):
    """Ends where its reader has taken nothing for ``patience_s``: what it was told last is kept for it, and may be large."""

    patience_s: ClassVar[float] = 30.0

    def __init__(self, pieces: AsyncGenerator[str, None]) -> None:
        super().__init__(pieces, media_type=_EVENTS, headers=_NOT_KEPT)
        self._pieces = pieces

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """Send the pieces as they come, and close what they come from in any case (ASGI)."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self.patience_s):
                await send(message)

        try:
            await super().__call__(connection, receive, send_in_time)
        except* TimeoutError:
            _log.info("a stream of the overview was ended: nobody has read it for %g s", self.patience_s)
        finally:
            await self._pieces.aclose()


async def _pieces(call: Call, feed: Feed, scope: Scope, every_s: float) -> AsyncGenerator[str, None]:
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
