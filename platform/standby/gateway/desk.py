"""The desk of one variant of an endpoint in one gateway: who waits, who is being served, where the next request goes.

All methods run in the gateway's event loop and none of them awaits between reading and changing the state, so the
desk needs no lock. Invariants, whatever way a request ends (field case B20):

* ``in_flight`` counts requests between ``enter`` and its exit, and returns to zero;
* ``outstanding[i]`` counts grants of instance ``i`` that were not released, ``granted`` those of all instances;
* a waiter is in the room of one desk or has been granted, refused or has left: never two of them.

A desk whose variant an update has taken away hands everything on to its successor, waiters first: whoever came to it keeps
using it and does not notice.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from standby.domain.demand import Demand
from standby.domain.errors import StandbyError
from standby.domain.instance import Instance, Rung
from standby.gateway import sessions
from standby.gateway.admission import Admission, Room, UnderWay, Verdict, hopeless, may_wait, throttled
from standby.gateway.grants import Grant, Route
from standby.gateway.ready_instances import ReadyInstance, ReadyInstances
from standby.gateway.refusals import cold_wait_exceeded, refusal_error
from standby.gateway.waiting_room import AllRooms, Waiter, WaitingRoom

FULL_PAUSE_S = 0.02
CONNECT_PAUSE_S = 1.0

__all__ = ["CONNECT_PAUSE_S", "FULL_PAUSE_S", "AllRooms", "Desk", "Grant", "Route"]

_DELETED: Final = Admission(Verdict.GONE, "the endpoint was deleted")


@dataclass(slots=True)
class Desk:
    """See the module's docstring. ``monotonic`` and ``wall`` are clocks in seconds."""

    route: Route
    rooms: AllRooms
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    on_demand: Callable[[Desk, bool], None]
    in_flight: int = 0
    granted: int = 0
    last_activity: float = 0.0
    _room: WaitingRoom = field(init=False)
    _instances: ReadyInstances = field(default_factory=ReadyInstances)
    _turned_away: bool = False
    _closed: bool = False
    _successor: Desk | None = None
    _timer: asyncio.TimerHandle | None = None
    _timer_at: float = math.inf
    _limit: int | None = None
    _provisioned: int | None = None

    def __post_init__(self) -> None:
        self._room = WaitingRoom(self.rooms)
        self._take_up(self.route)

    # ---- what the directory tells ------------------------------------------------------------------------------

    def instance_changed(self, record: Instance, seen: float, *, removed: bool = False) -> None:
        """Take up what a node says of one of the variant's instances; ``seen``: when this epoch was first heard of."""
        self._instances.changed(record, seen, removed=removed)
        self._pump()

    def route_changed(self, route: Route) -> None:
        """Take up a new version of the endpoint's record; ends the wait of those who wait in vain."""
        self._take_up(route)
        refusal = hopeless(route.endpoint, route.variant.name, self.wall())
        if refusal is not None:
            self._refuse_all(self._error(refusal))
        self._pump()

    def moved_to(self, successor: Desk) -> None:
        """The endpoint has no such variant any more: who waits goes on waiting at ``successor``, as do all who come."""
        self._successor = successor
        while self._room.queue:
            waiter = self._room.take()
            waiter.desk = successor
            successor.join(waiter, first=False)
        successor._pump()

    def endpoint_removed(self) -> None:
        """The endpoint is no more: what is in flight may end, nothing waits here again, no demand is told.

        Another endpoint of the same name gets a desk of its own, and this one must not speak in its name.
        """
        self._closed = True
        self._refuse_all(self._error(_DELETED))

    # ---- what a request does -----------------------------------------------------------------------------------

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count a request as in flight from here to its end, whatever the end."""
        self.in_flight += 1
        self.touch(urgent=False)
        try:
            yield
        finally:
            self.in_flight -= 1
            self.touch(urgent=False)

    async def acquire(
        self, *, arrived: float, arrived_at: float, body_bytes: int, again: bool, session: str | None = None
    ) -> Grant:
        """Return leave to send, at once or after waiting.

        ``again`` marks a request that a door refused: it goes to the head of the queue and is not refused for want of
        room. ``session`` is ``NEW_SESSION`` or the id of one, whose instance is preferred as long as it is ready.
        Raises QueueFull, Throttled, EndpointFailed, EndpointNotFound, ColdWaitExceeded.
        """
        if self._successor is not None:
            return await self._successor.acquire(
                arrived=arrived, arrived_at=arrived_at, body_bytes=body_bytes, again=again, session=session
            )
        wanted = None if session is None else self._instance_of(session)
        # Those who wait for the instance of their session keep nobody else back.
        if again or self._room.bound == len(self._room.queue):
            grant = self._choose(arrived, wanted)
            if grant is not None:
                return grant if session is None else self._in_session(grant, session)
        self._admit(body_bytes, again=again)
        waiter = Waiter(arrived, arrived_at, body_bytes, asyncio.get_running_loop().create_future(), self, wanted)
        self.join(waiter, first=again)
        try:
            async with asyncio.timeout(max(0.0, arrived + self.route.policy.max_cold_wait - self.monotonic())):
                grant = await waiter.granted
        except TimeoutError:
            self._give_back(waiter)
            raise cold_wait_exceeded(waiter.desk.route.endpoint, waiter.desk.route.variant) from None
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        finally:
            waiter.desk.leave(waiter)
        return grant if session is None else self._in_session(grant, session)

    def release(self, grant: Grant) -> None:
        """Give the slot back; call exactly once for each grant."""
        if grant.desk is not self:
            grant.desk.release(grant)
            grant.desk.touch(urgent=False)
            return
        self.granted -= 1
        self._instances.gave_back(grant.instance)
        self._pump()

    def refused(self, grant: Grant, reason: str) -> None:
        """A door refused before the engine saw anything; called before ``release``.

        ``full`` pauses the instance for a moment, since other gateways hold its slots; anything else means that this
        epoch is over: it is ignored until the node announces the next one. Raises Throttled where the variant has a
        concurrency limit and no slot within it is free anywhere.
        """
        if grant.desk is not self:
            grant.desk.refused(grant, reason)
            return
        ready = self._instances.find(grant.instance, grant.epoch)
        if ready is None:
            return
        if reason == "full":
            self._full(ready)
        else:
            self._instances.eject(grant.instance, grant.epoch)

    def unreachable(self, grant: Grant) -> None:
        """The door or the engine behind it failed: pause it, whatever the records say (field case B35).

        Only a pause: one broken connection or one request that hit a limit does not end the epoch of an engine that goes
        on living, and the node would never announce another one. When the engine has died, its record says so.
        """
        if grant.desk is not self:
            grant.desk.unreachable(grant)
            return
        ready = self._instances.find(grant.instance, grant.epoch)
        if ready is not None:
            ready.blocked_until = self.monotonic() + CONNECT_PAUSE_S

    # ---- what desks tell each other ----------------------------------------------------------------------------

    def join(self, waiter: Waiter, *, first: bool) -> None:
        """Let a request wait here."""
        self._room.join(waiter, first=first)
        # The first waiter is the demand that wakes the endpoint; the others only change a count.
        self.touch(urgent=len(self._room.queue) == 1)

    def leave(self, waiter: Waiter) -> None:
        """A request waits here no more; nothing, if it does not."""
        if self._room.leave(waiter):
            self.touch(urgent=False)

    def touch(self, *, urgent: bool) -> None:
        """Something has happened; tells the demand, at once where it is ``urgent``."""
        self.last_activity = self.monotonic()
        if not self._closed and self._successor is None:
            self.on_demand(self, urgent)

    def want(self) -> None:
        """Somebody asks for an instance and does not wait for it."""
        self._turned_away = True
        self.touch(urgent=not self.has_ready)

    # ---- what others read --------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the endpoint was deleted; another one of its name has another desk."""
        return self._closed or (self._successor is not None and self._successor.closed)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._room.queue)

    @property
    def queued_bytes(self) -> int:
        """Body bytes of those that wait."""
        return self._room.body_bytes

    @property
    def outstanding(self) -> dict[str, int]:
        """Grants that were not released, by instance."""
        return self._instances.outstanding

    @property
    def has_ready(self) -> bool:
        """Whether any instance is ready in this gateway's eyes."""
        return bool(self._instances.usable) if self._successor is None else self._successor.has_ready

    def demand(self, gateway: str, boot_id: str, sequence: int) -> Demand:
        """Return the desk's state as the message that the controller reads.

        A request that found nothing ready and no room counts as waiting once: it, too, wants the endpoint awake.
        """
        turned_away, self._turned_away = self._turned_away and not self.has_ready, False
        queue = self._room.queue
        # Those that another desk has handed on were never counted as in flight here.
        in_flight = max(self.granted, self.in_flight - len(queue))
        return Demand(
            gateway=gateway,
            boot_id=boot_id,
            sequence=sequence,
            tenant=self.route.endpoint.tenant,
            endpoint=self.route.endpoint.name,
            variant=self.route.variant.name,
            in_flight=in_flight,
            queued=len(queue) or int(turned_away),
            queued_bytes=self.queued_bytes,
            idle=0.0 if in_flight or queue else max(0.0, self.monotonic() - self.last_activity),
            oldest_arrival_at=queue[0].arrived_at if queue else None,
        )

    # ---- inside ------------------------------------------------------------------------------------------------

    def _take_up(self, route: Route) -> None:
        self.route = route
        self._limit, self._provisioned = route.variant.limit, route.variant.provisioned
        self._instances.serve(route.version)

    def _choose(self, arrived: float, wanted: str | None = None) -> Grant | None:
        instances = self._instances
        choice = instances.choose(self.monotonic(), wanted)
        if choice.instance is None:
            if choice.retry_at is not None:
                self._pump_at(choice.retry_at)
            return None
        ready = instances.usable[choice.instance]
        instances.took(choice.instance)
        self.granted += 1
        climbed = ready.record.activation if ready.seen > arrived else None
        return Grant(
            choice.instance,
            ready.record.address,
            ready.record.epoch,
            Rung.READY if climbed is None else climbed.from_rung,
            climbed,
            self,
            self.route.variant.name,
            self._provisioned is not None and self.granted > self._provisioned,
        )

    def _full(self, ready: ReadyInstance) -> None:
        """A door has no slot left. Where the limit is what keeps it full, the request has its answer."""
        now = self.monotonic()
        if self._limit is not None and not self._instances.has_free(now, but=ready):
            refusal = throttled(self._limit, self._under_way(room=False), again=True)
            if refusal is not None:
                raise self._error(refusal)
        ready.blocked_until = now + FULL_PAUSE_S

    def _under_way(self, *, room: bool) -> UnderWay:
        return UnderWay(self.granted, len(self._room.queue), self._instances.slots, room)

    def _beyond(self, limit: int, *, again: bool) -> Admission | None:
        return throttled(limit, self._under_way(room=self._instances.has_room), again=again)

    def _instance_of(self, session: str) -> str | None:
        found = sessions.read(session, self.wall())
        return None if found is None else found.instance

    def _in_session(self, grant: Grant, session: str) -> Grant:
        """Return the grant with the session that it belongs to: the caller's, or a new one where that has ended."""
        if grant.instance == self._instance_of(session):
            return grant
        begun = sessions.new_id(secrets.token_hex(8), grant.instance, self.wall() + sessions.LIFETIME_S)
        closed = None if session == sessions.NEW_SESSION else session
        return grant._replace(new_session=sessions.told(begun), closed_session=closed)

    def _admit(self, body_bytes: int, *, again: bool) -> None:
        refusal: Admission | None = _DELETED
        if not self._closed:
            refusal = hopeless(self.route.endpoint, self.route.variant.name, self.wall())
        if refusal is None and self._limit is not None:
            refusal = self._beyond(self._limit, again=again)
        if refusal is None and not again:
            room = Room(self.queued, self.queued_bytes, self.rooms.body_bytes, self.rooms.limit)
            admission = may_wait(self.route.policy, room, body_bytes)
            refusal = None if admission.verdict is Verdict.WAIT else admission
        if refusal is not None:
            self._turned_away = refusal.verdict in (Verdict.QUEUE_FULL, Verdict.THROTTLED)
            self.touch(urgent=self._turned_away and not self._room.queue and not self.has_ready)
            raise self._error(refusal)

    def _give_back(self, waiter: Waiter) -> None:
        """A grant may arrive in the very moment in which its waiter gives up."""
        if waiter.granted.done() and not waiter.granted.cancelled() and waiter.granted.exception() is None:
            self.release(waiter.granted.result())

    def _pump(self) -> None:
        """Serve those who wait, in order; who wants the instance of a session keeps back only those who want the same."""
        queue = self._room.queue
        at = 0
        while at < len(queue):
            waiter = queue[at]
            # Cancelled or timed out a moment ago and not yet run: its own ``_leave`` would take it out.
            grant = None if waiter.granted.done() else self._choose(waiter.arrived, waiter.wanted)
            if grant is None and not waiter.granted.done():
                if waiter.wanted is None or waiter.wanted not in self._instances.usable:
                    break
                at += 1
                continue
            self._room.take(at)
            self.touch(urgent=False)
            if grant is not None:
                waiter.granted.set_result(grant)
        if queue and self._limit is not None:
            # Every slot within the limit may have come and be taken: who still waits is beyond it.
            refusal = self._beyond(self._limit, again=True)
            if refusal is not None:
                self._refuse_all(self._error(refusal))

    def _pump_at(self, moment: float) -> None:
        """Serve again at that moment, or at an earlier one that is due already: whoever still waits then asks anew."""
        if self._timer is not None:
            if self._timer_at <= moment:
                return
            self._timer.cancel()
        self._timer_at = moment
        delay = max(0.001, moment - self.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._timed_pump)

    def _timed_pump(self) -> None:
        self._timer = None
        self._pump()

    def _refuse_all(self, error: StandbyError) -> None:
        self._room.refuse_all(error)
        self.touch(urgent=False)

    def _error(self, refusal: Admission) -> StandbyError:
        return refusal_error(self.route.endpoint, self.route.variant, refusal)
