"""The desk of one endpoint in one gateway: who waits, who is being served, where the next request goes.

All methods run in the gateway's event loop and none of them awaits between reading and changing the state, so the
desk needs no lock. Invariants, whatever way a request ends (field case B20):

* ``in_flight`` counts requests between ``enter`` and its exit, and returns to zero;
* ``outstanding[i]`` counts grants of instance ``i`` that were not released;
* a waiter is either in ``_waiters`` or has been granted, refused or has left: never two of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from standby.domain.demand import Demand
from standby.domain.endpoint import Endpoint, ScalePolicy, Variant
from standby.domain.errors import ColdWaitExceeded, EndpointFailed, EndpointNotFound, QueueFull, StandbyError
from standby.domain.instance import Activation, Instance, InstanceState, Rung
from standby.gateway.admission import Admission, Room, Verdict, hopeless, may_wait
from standby.gateway.router import Candidate, choose

FULL_PAUSE_S = 0.02
CONNECT_PAUSE_S = 1.0

_DELETED: Final = Admission(Verdict.GONE, "the endpoint was deleted")


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint as the directory resolves it."""

    endpoint: Endpoint
    variant: Variant

    @property
    def policy(self) -> ScalePolicy:
        """The variant's scale policy."""
        return self.variant.policy


class Grant(NamedTuple):
    """Leave to send one request to one instance; must be released."""

    instance: str
    address: tuple[str, int]
    epoch: int
    rung: Rung
    activation: Activation | None


@dataclass(slots=True)
class AllRooms:
    """Body bytes in the waiting rooms of all endpoints of this gateway."""

    limit: int
    body_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Waiter:
    arrived: float
    arrived_at: float
    body_bytes: int
    granted: asyncio.Future[Grant]


@dataclass(slots=True)
class _Ready:
    """A ready instance and when this gateway learnt of its present epoch."""

    record: Instance
    seen: float
    blocked_until: float = 0.0


@dataclass(slots=True)
class Desk:
    """See the module's docstring. ``monotonic`` and ``wall`` are clocks in seconds."""

    route: Route
    rooms: AllRooms
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    on_demand: Callable[[Desk, bool], None]
    in_flight: int = 0
    queued_bytes: int = 0
    last_activity: float = 0.0
    outstanding: dict[str, int] = field(default_factory=dict)
    _waiters: deque[_Waiter] = field(default_factory=deque)
    _ready: dict[str, _Ready] = field(default_factory=dict)
    _ejected: dict[str, int] = field(default_factory=dict)
    _ticket: int = 0
    _turned_away: bool = False
    _closed: bool = False
    _timer: asyncio.TimerHandle | None = None

    # ---- what the directory tells ------------------------------------------------------------------------------

    def instance_changed(self, record: Instance, seen: float, *, removed: bool = False) -> None:
        """Take up what a node says of one of the endpoint's instances; ``seen``: when this epoch was first heard of."""
        known = self._ready.get(record.id)
        usable = not removed and record.state is InstanceState.READY and self._ejected.get(record.id) != record.epoch
        if not usable:
            self._ready.pop(record.id, None)
        elif known is None or known.record.epoch != record.epoch:
            self._ejected.pop(record.id, None)
            self._ready[record.id] = _Ready(record, seen)
        else:
            known.record = record
        if removed:
            self._ejected.pop(record.id, None)
        self._pump()

    def route_changed(self, route: Route) -> None:
        """Take up a new version of the endpoint's record; ends the wait of those who wait in vain."""
        self.route = route
        refusal = hopeless(route.endpoint, self.wall())
        if refusal is not None:
            self._refuse_all(self._error(refusal))
        self._pump()

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
        self._touch(urgent=False)
        try:
            yield
        finally:
            self.in_flight -= 1
            self._touch(urgent=False)

    async def acquire(self, *, arrived: float, arrived_at: float, body_bytes: int, again: bool) -> Grant:
        """Return leave to send, at once or after waiting.

        ``again`` marks a request that a door refused: it goes to the head of the queue and is not refused for want of
        room. Raises QueueFull, EndpointFailed, EndpointNotFound, ColdWaitExceeded.
        """
        if not self._waiters or again:
            grant = self._choose(arrived)
            if grant is not None:
                return grant
        self._admit(body_bytes, again=again)
        waiter = _Waiter(arrived, arrived_at, body_bytes, asyncio.get_running_loop().create_future())
        self._join(waiter, first=again)
        try:
            async with asyncio.timeout(max(0.0, arrived + self.route.policy.max_cold_wait - self.monotonic())):
                return await waiter.granted
        except TimeoutError:
            self._give_back(waiter)
            raise self._cold_wait_exceeded() from None
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        finally:
            self._leave(waiter)

    def release(self, grant: Grant) -> None:
        """Give the slot back; call exactly once for each grant."""
        left = self.outstanding[grant.instance] - 1
        if left:
            self.outstanding[grant.instance] = left
        else:
            del self.outstanding[grant.instance]
        self._pump()

    def refused(self, grant: Grant, reason: str) -> None:
        """A door refused before the engine saw anything; called before ``release``.

        ``full`` pauses the instance for a moment, since other gateways hold its slots; anything else means that this
        epoch is over: it is ignored until the node announces the next one.
        """
        ready = self._ready.get(grant.instance)
        if ready is None or ready.record.epoch != grant.epoch:
            return
        if reason == "full":
            ready.blocked_until = self.monotonic() + FULL_PAUSE_S
            return
        self._ejected[grant.instance] = grant.epoch
        del self._ready[grant.instance]

    def unreachable(self, grant: Grant) -> None:
        """The door or the engine behind it failed: pause it, whatever the records say (field case B35).

        Only a pause: one broken connection or one request that hit a limit does not end the epoch of an engine that goes
        on living, and the node would never announce another one. When the engine has died, its record says so.
        """
        ready = self._ready.get(grant.instance)
        if ready is not None and ready.record.epoch == grant.epoch:
            ready.blocked_until = self.monotonic() + CONNECT_PAUSE_S

    # ---- what others read --------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the endpoint was deleted; another one of its name has another desk."""
        return self._closed

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._waiters)

    @property
    def has_ready(self) -> bool:
        """Whether any instance is ready in this gateway's eyes."""
        return bool(self._ready)

    def demand(self, gateway: str, boot_id: str, sequence: int) -> Demand:
        """Return the desk's state as the message that the controller reads.

        A request that found nothing ready and no room counts as waiting once: it, too, wants the endpoint awake.
        """
        turned_away, self._turned_away = self._turned_away and not self._ready, False
        return Demand(
            gateway=gateway,
            boot_id=boot_id,
            sequence=sequence,
            tenant=self.route.endpoint.tenant,
            endpoint=self.route.endpoint.name,
            in_flight=self.in_flight - len(self._waiters),
            queued=len(self._waiters) or int(turned_away),
            queued_bytes=self.queued_bytes,
            idle=0.0 if self.in_flight else max(0.0, self.monotonic() - self.last_activity),
            oldest_arrival_at=self._waiters[0].arrived_at if self._waiters else None,
        )

    # ---- inside ------------------------------------------------------------------------------------------------

    def _choose(self, arrived: float) -> Grant | None:
        now = self.monotonic()
        self._ticket += 1
        choice = choose(
            (
                Candidate(name, self.outstanding.get(name, 0), ready.record.slots, ready.blocked_until)
                for name, ready in self._ready.items()
            ),
            now,
            self._ticket,
        )
        if choice.instance is None:
            if choice.retry_at is not None:
                self._pump_at(choice.retry_at)
            return None
        ready = self._ready[choice.instance]
        self.outstanding[choice.instance] = self.outstanding.get(choice.instance, 0) + 1
        climbed = ready.record.activation if ready.seen > arrived else None
        return Grant(
            instance=choice.instance,
            address=ready.record.address,
            epoch=ready.record.epoch,
            rung=Rung.READY if climbed is None else climbed.from_rung,
            activation=climbed,
        )

    def _admit(self, body_bytes: int, *, again: bool) -> None:
        now = self.wall()
        if self._closed:
            refusal: Admission | None = _DELETED
        elif again:
            refusal = hopeless(self.route.endpoint, now)
        else:
            room = Room(len(self._waiters), self.queued_bytes, self.rooms.body_bytes, self.rooms.limit)
            admission = may_wait(self.route.endpoint, self.route.policy, room, body_bytes, now)
            refusal = None if admission.verdict is Verdict.WAIT else admission
        if refusal is not None:
            self._turned_away = refusal.verdict is Verdict.QUEUE_FULL
            self._touch(urgent=self._turned_away and not self._waiters)
            raise self._error(refusal)

    def _join(self, waiter: _Waiter, *, first: bool) -> None:
        if first:
            self._waiters.appendleft(waiter)
        else:
            self._waiters.append(waiter)
        self.queued_bytes += waiter.body_bytes
        self.rooms.body_bytes += waiter.body_bytes
        # The first waiter is the demand that wakes the endpoint; the others only change a count.
        self._touch(urgent=len(self._waiters) == 1)

    def _leave(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self._forget_bytes(waiter)

    def _forget_bytes(self, waiter: _Waiter) -> None:
        self.queued_bytes -= waiter.body_bytes
        self.rooms.body_bytes -= waiter.body_bytes
        self._touch(urgent=False)

    def _give_back(self, waiter: _Waiter) -> None:
        """A grant may arrive in the very moment in which its waiter gives up."""
        if waiter.granted.done() and not waiter.granted.cancelled() and waiter.granted.exception() is None:
            self.release(waiter.granted.result())

    def _pump(self) -> None:
        while self._waiters:
            waiter = self._waiters[0]
            # Cancelled or timed out a moment ago and not yet run: its own ``_leave`` takes it out.
            grant = None if waiter.granted.done() else self._choose(waiter.arrived)
            if grant is None and not waiter.granted.done():
                return
            self._waiters.popleft()
            self._forget_bytes(waiter)
            if grant is not None:
                waiter.granted.set_result(grant)

    def _pump_at(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.001, moment - self.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._pump)

    def _refuse_all(self, error: StandbyError) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            self._forget_bytes(waiter)
            if not waiter.granted.done():
                waiter.granted.set_exception(error)

    def _touch(self, *, urgent: bool) -> None:
        self.last_activity = self.monotonic()
        if not self._closed:
            self.on_demand(self, urgent)

    def _error(self, refusal: Admission) -> StandbyError:
        name = self.route.endpoint.name
        match refusal.verdict:
            case Verdict.QUEUE_FULL:
                return QueueFull(
                    f"endpoint {name!r}: the waiting room is full: {refusal.reason}",
                    remedy="retry later, or raise the endpoint's max_instances or slots",
                    retry_after_s=refusal.retry_after_s,
                )
            case Verdict.GONE:
                return EndpointNotFound(f"endpoint {name!r} does not exist", remedy="list them with 'standby endpoints list'")
            case _:
                return EndpointFailed(
                    f"endpoint {name!r} failed: {refusal.reason}",
                    remedy=f"see 'standby endpoints show {name}'; retry with 'standby endpoints retry {name}'",
                    retry_after_s=refusal.retry_after_s,
                )

    def _cold_wait_exceeded(self) -> ColdWaitExceeded:
        endpoint = self.route.endpoint
        why = f"; last failure: {endpoint.failure.reason}" if endpoint.failure is not None else ""
        limit = self.route.policy.max_cold_wait
        return ColdWaitExceeded(
            f"endpoint {endpoint.name!r} was not ready within max_cold_wait ({limit:g} s); the activation goes on{why}",
            remedy="retry in a moment",
            retry_after_s=min(10.0, max(1.0, limit / 5)),
        )
