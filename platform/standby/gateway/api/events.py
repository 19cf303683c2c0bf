"""The tenant's events as a server-sent event stream: what the CLI's progress bars and the console live on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, get_args

from starlette.responses import Response, StreamingResponse

from standby.domain.errors import InvalidInput
from standby.domain.events import AnyEvent
from standby.domain.names import check_name
from standby.gateway.api.context import ApiRoute, Call

MAX_REPLAY: Final = 1000
# A reader that falls this far behind loses the oldest events and is told how many: it must not hold the gateway's memory.
MAX_BEHIND: Final = 1000
AUDIT: Final = "audit"
KINDS: Final = frozenset(one.model_fields["kind"].default for one in get_args(get_args(AnyEvent)[0]))


async def follow(call: Call) -> Response:
    """Events of the tenant from now on, after the last ``?replay=`` ones; ``?endpoint=`` and ``?kind=`` narrow, and
    ``?follow=0`` ends the stream after the replayed ones. Audit events are for administrators, of all tenants.

    Each is ``event: <kind>``, ``id:`` and ``data:`` with the event's JSON; a comment line every 10 s shows that the
    stream is alive. It ends with the key that opened it, or its tenant. Raises InvalidInput.
    """
    replay = call.number("replay", 0, MAX_REPLAY)
    endpoint = call.request.query_params.get("endpoint", "")
    if endpoint:
        check_name("endpoint", endpoint)
    stream = _stream(call, endpoint, replay)
    if call.request.query_params.get("kind", "audit") not in KINDS:
        raise InvalidInput(
            f"there is no kind of event {call.request.query_params['kind'][:40]!r}",
            remedy=f"known are: {', '.join(sorted(KINDS))}",
        )
    if call.request.method == "HEAD":
        # The server would hide an endless stream's body, and go on with it.
        return Response(media_type="text/event-stream", headers={"cache-control": "no-store"})
    # The first line is sent only once the subscription stands, so that a caller who has seen it misses nothing.
    first = await anext(stream)
    return StreamingResponse(_chain(first, stream), media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _chain(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for piece in rest:
        yield piece


async def _stream(call: Call, endpoint: str, replay: int) -> AsyncIterator[str]:
    kind = call.request.query_params.get("kind", "")
    inbox = Inbox(call.tenant, endpoint, kind=kind, everything_of_the_platform=call.is_admin)
    # The bus filters by tenant already, except for an administrator, who is also told what has no tenant.
    tenant = "" if call.is_admin and not endpoint else call.tenant
    subscription = await call.context.events.follow(inbox.put, replay_last=replay, tenant=tenant, endpoint=endpoint, kind=kind)
    if call.number("follow", 1, 1) == 0:
        inbox.close()
    stopping = asyncio.create_task(call.context.stopping.wait())
    stopping.add_done_callback(lambda _: inbox.close())
    try:
        yield ": following\n\n"
        while (piece := await _next(inbox, call.context.heartbeat_s)) is not None and call.context.still_lets_in(call.key.id):
            # A stream outlives the moment in which its key was checked: it ends with the key (field case B44).
            yield piece
    finally:
        stopping.cancel()
        await subscription.unsubscribe()


async def _next(inbox: Inbox, heartbeat_s: float) -> str | None:
    try:
        async with asyncio.timeout(heartbeat_s):
            return await inbox.get()
    except TimeoutError:
        return ": alive\n\n"


class Inbox:
    """The events of one follower that were not sent yet: bounded, the oldest go first."""

    def __init__(
        self, tenant: str, endpoint: str, *, everything_of_the_platform: bool, kind: str = "", limit: int = MAX_BEHIND
    ) -> None:
        self._tenant = tenant
        self._endpoint = endpoint
        self._kind = kind
        self._platform = everything_of_the_platform
        self._queue: asyncio.Queue[AnyEvent | None] = asyncio.Queue(limit)
        self._lost = 0

    def put(self, event: AnyEvent) -> None:
        """Take an event in if it belongs to the follower."""
        if self._is_ours(event):
            self._add(event)

    def close(self) -> None:
        """End it: after what is in it, ``get`` returns None."""
        self._add(None)

    async def get(self) -> str | None:
        """Return the next event in the stream's format, with a comment about the ones lost before it."""
        event = await self._queue.get()
        if event is None:
            return None
        lost, self._lost = self._lost, 0
        comment = f": {lost} events lost\n" if lost else ""
        return f"{comment}id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"

    def _add(self, item: AnyEvent | None) -> None:
        if self._queue.full():
            self._queue.get_nowait()
            self._lost += 1
        self._queue.put_nowait(item)

    def _is_ours(self, event: AnyEvent) -> bool:
        if self._kind and event.kind != self._kind:
            return False
        if event.kind == AUDIT:
            return self._platform and not self._endpoint
        # Events without a tenant are about the platform itself: nodes, leaders.
        if event.tenant != self._tenant and not (self._platform and not event.tenant):
            return False
        return not self._endpoint or event.endpoint == self._endpoint


ROUTES: Final = (ApiRoute("GET", "/api/v1/events", follow),)
