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
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from standby.domain.ask import NOTHING, Ask
from standby.domain.demand import Demand
from standby.domain.errors import StandbyError
from standby.domain.instance import Instance
from standby.domain.priority import Priority
from standby.gateway import sessions
from standby.gateway.admission import Admission, Verdict
from standby.gateway.alarm import Alarm
from standby.gateway.grants import Grant, grant_of, in_session
from standby.gateway.outlook import Outlook
from standby.gateway.ready_instances import ReadyInstance, ReadyInstances
from standby.gateway.results import Result
from standby.gateway.route import Route
from standby.gateway.tally import Speaker, Tally, demands_of
from standby.gateway.waiting_room import AllRooms, Lane, Waiter, WaitingRoom, Wish
from standby.telemetry import metrics

FULL_PAUSE_S = 0.02
CONNECT_PAUSE_S = 1.0

__all__ = ["CONNECT_PAUSE_S", "FULL_PAUSE_S", "AllRooms", "Desk", "Grant", "Route"]

_DELETED: Final = Admission(Verdict.GONE, "the endpoint was deleted")


@dataclass(slots=True)
class Desk:
    """See the module's docstring. ``monotonic`` and ``wall`` are clocks in seconds.

    ``climb_s`` returns how long a climb of one of the route's instances takes from where they are now, as far as it was
    ever measured.
    """

    route: Route
    rooms: AllRooms
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    on_demand: Callable[[Desk, bool], None]
    climb_s: Callable[[Route], float | None] = lambda _route: None
    in_flight: int = 0
    granted: int = 0
    last_activity: float = 0.0
    _room: WaitingRoom = field(init=False)
    _outlook: Outlook = field(init=False)
    _tally: Tally = field(init=False)
    _alarm: Alarm = field(init=False)
    _instances: ReadyInstances = field(default_factory=ReadyInstances)
    _closed: bool = False
    _successor: Desk | None = None
    _provisioned: int | None = None

    def __post_init__(self) -> None:
        self._room = WaitingRoom(self.rooms)
        now = self.monotonic()
        self._tally, self._alarm = Tally(now), Alarm(self.monotonic, self._pump)
        self._outlook = Outlook(self.route, self._room, self._instances, self.climb_s, self.wall, now)
        self._instances.on_open = self._breaker_opened
        self._take_up(self.route)

    # ---- what the directory tells ------------------------------------------------------------------------------

    def instance_changed(self, record: Instance, seen: float, *, removed: bool = False) -> None:
        """Take up what a node says of one of the variant's instances; ``seen``: when this epoch was first heard of."""
        self._instances.changed(record, seen, removed=removed)
        self._pump()

    def route_changed(self, route: Route) -> None:
        """Take up a new version of the endpoint's record; ends the wait of those who wait in vain."""
        self._take_up(route)
        refusal = self._outlook.hopeless()
        if refusal is not None:
            self._refuse_all(self._outlook.error(refusal))
        self._pump()

    def moved_to(self, successor: Desk) -> None:
        """The endpoint has no such variant any more: who waits goes on waiting at ``successor``, as do all who come."""
        self._successor = successor
        for waiter in self._room.everybody():
            self._room.leave(waiter)
            waiter.desk = successor
            waiter.lane = successor._lane(waiter.wish)
            successor.join(waiter, first=False)
        successor._pump()

    def endpoint_removed(self) -> None:
        """The endpoint is no more: what is in flight may end, nothing waits here again, no demand is told.

        Another endpoint of the same name gets a desk of its own, and this one must not speak in its name.
        """
        self._closed = True
        self._refuse_all(self._outlook.error(_DELETED))

    # ---- what a request does -----------------------------------------------------------------------------------

    def enter(self) -> Desk:
        """Return itself: a ``with`` statement counts a request as in flight from its begin to its end, whatever that is."""
        return self

    def __enter__(self) -> None:
        self.in_flight += 1
        self.touch(urgent=False)

    def __exit__(self, *_ended_by: object) -> None:
        self.in_flight -= 1
        self.touch(urgent=False)

    async def acquire(
        self,
        *,
        arrived: float,
        arrived_at: float,
        body_bytes: int,
        again: bool,
        session: str | None = None,
        ask: Ask = NOTHING,
        priority: Priority | None = None,
        tried: frozenset[str] = frozenset(),
    ) -> Grant:
        """Return leave to send, at once or after waiting.

        ``again`` marks a request that a door refused or that is tried once more: it goes to the head of its priority and is
        not refused for want of room. ``session`` is ``NEW_SESSION`` or the id of one, whose instance is preferred as long as
        it is ready. ``priority``: None is the endpoint's default. ``tried``: instances where it has failed; others are
        preferred.

        Raises QueueFull, Overloaded, Throttled, EndpointFailed, EndpointNotFound, ColdWaitExceeded, WaitExceeded.
        """
        if priority is None:
            priority = self.route.traffic.priority.default
        wanted = None if session is None else sessions.instance_of(session, self.wall())
        wish = Wish(arrived, arrived_at, body_bytes, ask, priority, again, wanted, tried)
        granted = self.at_once(wish)
        if granted is None:
            granted = await self.wait(wish)
        return granted if session is None else in_session(granted, session, secrets.token_hex(8), self.wall())

    def release(self, grant: Grant, result: Result | None = None) -> None:
        """Give the slot back, saying how the request ended where that is known; call exactly once for each grant."""
        if grant.desk is not self:
            grant.desk.release(grant, result)
            grant.desk.touch(urgent=False)
            return
        now = self.monotonic()
        if grant.unread is not None:
            grant.unread.read()
        self.granted -= 1
        self._tally.gave_back(grant.backend, now)
        self._instances.gave_back(grant.instance, grant.epoch, result, now, probe=grant.probe, prompt_bytes=grant.prompt_bytes)
        self._outlook.ended(grant, result, now)
        if self._room.total.requests:
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

    async def wait(self, wish: Wish) -> Grant:
        """Return leave to send, for which there was none at once; see ``acquire``."""
        if self._successor is not None:
            return await self._successor.wait(wish)
        admitted, future = self._admit(wish), asyncio.get_running_loop().create_future()
        return await self._wait(Waiter(wish, future, self, self._lane(wish), admitted), first=wish.again)

    def join(self, waiter: Waiter, *, first: bool) -> None:
        """Let a request wait here."""
        self._room.join(waiter, first=first)
        backend = waiter.lane.backend
        self._tally.wanted(backend, self.monotonic())
        # The first waiter is the demand that wakes an engine; the others only change a count.
        self.touch(urgent=self._room.of(backend).requests == 1)

    def leave(self, waiter: Waiter) -> None:
        """A request waits here no more; nothing, if it does not."""
        if self._room.leave(waiter):
            self._tally.wanted(waiter.lane.backend, self.monotonic())
            self.touch(urgent=False)

    def gave_up(self, waiter: Waiter) -> None:
        """A request waits no more and got no answer; a grant may have arrived in the very moment in which it gave up."""
        granted = waiter.granted
        if granted.done() and not granted.cancelled() and granted.exception() is None:
            self.release(granted.result())
        else:
            self._outlook.gave_up(waiter.wish, self.monotonic())

    def too_late(self, wish: Wish, limit_s: float) -> StandbyError:
        """Return what a request is told that has waited here for ``limit_s``."""
        return self._outlook.too_long(wish, limit_s, self.granted, self.monotonic())

    def touch(self, *, urgent: bool) -> None:
        """Something has happened; tells the demand, at once where it is ``urgent``."""
        self.last_activity = self.monotonic()
        if not self._closed and self._successor is None:
            self.on_demand(self, urgent)

    def want(self) -> None:
        """Somebody asks for an instance and does not wait for it."""
        self._tally.turned_away.add(self._backend(NOTHING, self.route.traffic.priority.default))
        self.touch(urgent=not self.has_ready)

    # ---- what others read --------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the endpoint was deleted; another one of its name has another desk."""
        return self._closed or (self._successor is not None and self._successor.closed)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._room.total.requests

    @property
    def queued_bytes(self) -> int:
        """Body bytes of those that wait."""
        return self._room.total.body_bytes

    @property
    def outstanding(self) -> dict[str, int]:
        """Grants that were not released, by instance."""
        return self._instances.outstanding

    @property
    def has_ready(self) -> bool:
        """Whether any instance is ready in this gateway's eyes."""
        return bool(self._instances.usable) if self._successor is None else self._successor.has_ready

    @property
    def usable(self) -> Iterable[ReadyInstance]:
        """The instances that get requests here."""
        return self._instances.usable.values()

    def demands(self, gateway: str, boot_id: str, sequence: int) -> tuple[Demand, ...]:
        """Return the desk's state as the messages that the controller reads, one for each engine of the variant."""
        self._tally.forget(self._instances)
        by, now = Speaker(gateway, boot_id, sequence), self.monotonic()
        told = demands_of(by, self.route, self._tally, self._room, self.in_flight, self.last_activity, now)
        self._tally.turned_away.clear()
        return told

    # ---- inside ------------------------------------------------------------------------------------------------

    def _take_up(self, route: Route) -> None:
        self.route = route
        self._provisioned = route.variant.provisioned
        self._room.serve(route.traffic.priority)
        self._outlook.serve(route, self.monotonic())
        self._instances.serve(route)

    def at_once(self, wish: Wish) -> Grant | None:
        """Return a grant for a request that need not wait; nobody whose turn it would be is overtaken.

        After each change those who can be served have been, so that whoever still waits cannot use what is free now.
        """
        if self._successor is not None:
            return self._successor.at_once(wish)
        now = self.monotonic()
        if self._room.total.requests:
            if self._alarm.at <= now:
                self._pump()
            if not wish.again and self._room.waits(wish.priority, self._lane(wish)):
                return None
        return self._choose(now, wish)

    async def _wait(self, waiter: Waiter, *, first: bool) -> Grant:
        limit_s = self._outlook.longest_wait_s(waiter.wish.priority)
        self.join(waiter, first=first)
        try:
            async with asyncio.timeout(max(0.0, waiter.wish.arrived + limit_s - self.monotonic())):
                return await waiter.granted
        except TimeoutError:
            waiter.desk.gave_up(waiter)
            raise waiter.desk.too_late(waiter.wish, limit_s) from None
        except asyncio.CancelledError:
            waiter.desk.gave_up(waiter)
            raise
        finally:
            waiter.desk.leave(waiter)

    def _choose(self, now: float, wish: Wish, queue_reason: str = "") -> Grant | None:
        instances = self._instances
        choice = instances.choose(now, wish.wanted, wish.ask, wish.priority, wish.tried, max(0.0, now - wish.arrived))
        if choice.instance is None:
            if choice.retry_at is not None:
                self._alarm.set(choice.retry_at)
            return None
        if self.route.hybrid and self._tally.misses(instances, wish, now):
            self.touch(urgent=False)
        ready = instances.usable[choice.instance]
        instances.took(choice.instance, probe=choice.probe)
        self.granted += 1
        self._tally.took(ready.record.backend, now)
        climbed = ready.record.activation if ready.seen > wish.arrived else None
        spillover = self._provisioned is not None and self.granted > self._provisioned
        board = instances.unread
        return grant_of(ready.record, climbed, self, choice, wish, now, board, spillover=spillover, queue_reason=queue_reason)

    def _breaker_opened(self) -> None:
        endpoint = self.route.endpoint
        if not self.closed:
            metrics.BREAKERS_OPENED.labels(endpoint.tenant, endpoint.name).inc()

    def _full(self, ready: ReadyInstance) -> None:
        """A door has no slot left. Where the limit is what keeps it full, the request has its answer."""
        now = self.monotonic()
        refusal = None
        if not self._instances.has_free(now, but=ready):
            refusal = self._outlook.beyond(self.granted, now, again=True, room=False)
        if refusal is not None:
            raise self._outlook.error(refusal)
        ready.blocked_until = now + FULL_PAUSE_S

    def _backend(self, ask: Ask, priority: Priority) -> str:
        """Return which engine the request would wake."""
        return self._instances.wanted_backend(ask, priority, self.monotonic()) if self.route.hybrid else ""

    def _lane(self, wish: Wish) -> Lane:
        return Lane(wish.wanted, self._backend(wish.ask, wish.priority), wish.ask.adapter)

    def _admit(self, wish: Wish) -> str:
        """Return why the request may wait; raises what is said of ``acquire``."""
        refusal = _DELETED if self._closed else self._outlook.admission(wish, self.granted, self.monotonic())
        if refusal.verdict is Verdict.WAIT:
            return refusal.reason
        turned_away = refusal.verdict in (Verdict.QUEUE_FULL, Verdict.THROTTLED)
        if turned_away:
            self._tally.turned_away.add(self._backend(wish.ask, wish.priority))
        self.touch(urgent=turned_away and not self.queued and not self.has_ready)
        raise self._outlook.error(refusal)

    def _pump(self) -> None:
        """Serve those who wait, as many as can be."""
        before = self._room.total.requests
        if not before:
            return
        now = self.monotonic()
        for waiter, grant in self._room.turns(now, self._instances, partial(self._choose, now)):
            self._tally.wanted(waiter.lane.backend, now)
            waiter.granted.set_result(grant)
        if self.queued != before:
            self.touch(urgent=False)
        # Every slot within the limit may have come and be taken: who still waits is beyond it.
        refusal = self._outlook.beyond(self.granted, now, again=True) if self.queued else None
        if refusal is not None:
            self._refuse_all(self._outlook.error(refusal))

    def _refuse_all(self, error: StandbyError) -> None:
        self._room.refuse_all(error)
        self.touch(urgent=False)
