"""What a desk tells whoever would wait: whether there is room, for how long it would be, and when to come again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Final

from standby.domain.errors import StandbyError
from standby.domain.priority import Priority
from standby.gateway.admission import Admission, Bounds, Flow, Room, UnderWay, Verdict, hopeless, may_wait, place_of, throttled
from standby.gateway.grants import Grant
from standby.gateway.queue_watch import QueueWatch
from standby.gateway.ready_instances import ReadyInstances
from standby.gateway.refusals import cold_wait_exceeded, refusal_error, wait_exceeded
from standby.gateway.results import Result
from standby.gateway.route import Route
from standby.gateway.waiting_room import WaitingRoom, Wish

_AGAIN: Final = Admission(Verdict.WAIT, "asked again")


@dataclass(slots=True)
class Outlook:
    """Reads the desk's room and instances, and owns the depth that adapts. ``now`` is always by the monotonic clock.

    ``climb_s`` returns how long a climb of the route's next instance takes, where that was ever measured.
    """

    route: Route
    room: WaitingRoom
    instances: ReadyInstances
    climb_s: Callable[[Route], float | None]
    wall: Callable[[], float]
    now: InitVar[float]
    watch: QueueWatch = field(init=False)

    def __post_init__(self, now: float) -> None:
        self.watch = QueueWatch(self.route.traffic, self.route.policy.queue_requests, now)

    def serve(self, route: Route, now: float) -> None:
        """Take up a new version of the route."""
        self.route = route
        self.watch.serve(route.traffic, route.policy.queue_requests, now)

    def longest_wait_s(self, priority: Priority) -> float:
        """Return for how long a request of this priority may wait."""
        return self.route.traffic.priority.max_waits.get(priority, self.route.policy.max_cold_wait)

    def hopeless(self) -> Admission | None:
        """Return a refusal if waiting cannot help."""
        return hopeless(self.route.endpoint, self.route.variant.name, self.wall())

    def beyond(self, granted: int, now: float, *, again: bool, room: bool | None = None) -> Admission | None:
        """Return a refusal for what goes beyond the concurrency limit; ``room``: whether a slot is free, None: look."""
        limit = self.route.variant.limit
        if limit is None:
            return None
        room = self.instances.has_room if room is None else room
        refusal = throttled(limit, UnderWay(granted, self.room.total.requests, self.instances.slots, room), again=again)
        if refusal is None:
            return None
        # The next slot within the limit is free after one gap between ends, or when the climb is over.
        flow = self._flow(self.route.traffic.priority.default, None, granted, now)
        return refusal.until(flow.until_left_s(1))

    def admission(self, wish: Wish, granted: int, now: float) -> Admission:
        """Return whether a request that found no slot may wait; ``granted`` counts those that run.

        One that had its turn before is not refused for want of room.
        """
        refusal = self.hopeless() or self.beyond(granted, now, again=wish.again)
        if refusal is not None:
            return refusal
        return _AGAIN if wish.again else self._with_room(wish, granted, now)

    def error(self, refusal: Admission) -> StandbyError:
        """Return what a refused request is told."""
        return refusal_error(self.route.endpoint, self.route.variant, refusal)

    def ended(self, grant: Grant, result: Result | None, now: float) -> None:
        """Take up how a request ended; those for which something climbed say nothing of the queue."""
        if self.watch.depth is None or result is None or grant.activation is not None:
            return
        if result.first_byte_s is not None:
            self.watch.began(grant.priority, grant.arrived, grant.waited_s, result.first_byte_s, now)

    def gave_up(self, wish: Wish, now: float) -> None:
        """Take up that somebody has left without a grant."""
        if self.instances.usable:
            self.watch.gave_up(wish.priority, wish.arrived, now)

    def too_long(self, wish: Wish, limit_s: float, granted: int, now: float) -> StandbyError:
        """Return what a request is told that has waited for ``limit_s``."""
        endpoint, variant = self.route.endpoint, self.route.variant
        own = wish.priority in self.route.traffic.priority.max_waits
        if not own and not self.instances.usable:
            return cold_wait_exceeded(endpoint, variant, self._rest_of_climb_s())
        flow = self._flow(wish.priority, None, granted, now)
        limit = f"max_waits.{wish.priority.value}" if own else "max_cold_wait"
        return wait_exceeded(endpoint, wish.priority, limit_s, limit, flow.wait_s or flow.climb_s)

    def _with_room(self, wish: Wish, granted: int, now: float) -> Admission:
        priority, watch = wish.priority, self.watch
        flow = self._flow(priority, wish.wanted, granted, now)
        total, rooms = self.room.total, self.room.rooms
        room = Room(total.requests, total.body_bytes, rooms.body_bytes, rooms.limit)
        share = self.route.traffic.slo_violations
        bounds = Bounds(self.longest_wait_s(priority), watch.target_s(priority), watch.bound(priority), share)
        admission = may_wait(self.route.policy, room, wish.body_bytes, flow, bounds)
        if admission.verdict is Verdict.WAIT:
            watch.joined(flow.place)
        elif admission.verdict is Verdict.QUEUE_FULL:
            watch.turned_away()
        return admission

    def _flow(self, priority: Priority, wanted: str | None, granted: int, now: float) -> Flow:
        place = place_of(self.room.counts, priority, self.route.traffic.priority.weights)
        instances, policy = self.instances, self.route.policy
        if not instances.usable:
            return Flow(place, climb_s=self._rest_of_climb_s())
        service_s = instances.service_s(now)
        if service_s is None or wanted in instances.usable:
            # Who waits for one certain instance is not in this queue.
            return Flow(place)
        slots = instances.slots
        # Other gateways may hold some of them: what this one has while somebody must wait is its share.
        share = max(1, min(slots, granted) or slots)
        missing = policy.max_instances - len(instances.usable)
        if missing <= 0:
            return Flow(place, service_s / share)
        best = service_s / (share + missing * max(part.slots for part in self.route.parts))
        return Flow(place, service_s / share, best, self._rest_of_climb_s())

    def _rest_of_climb_s(self) -> float | None:
        """Return how much of a climb is left that began when the first of those who wait came."""
        climb_s = self.climb_s(self.route)
        if climb_s is None:
            return None
        oldest = self.room.oldest_arrival_at()
        return climb_s if oldest is None else max(1.0, climb_s - max(0.0, self.wall() - oldest))
