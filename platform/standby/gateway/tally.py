"""What a desk has under way, by the engine of its variant, and what it tells the controller of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from standby.domain.demand import Demand
from standby.gateway.ready_instances import ReadyInstances
from standby.gateway.route import Route
from standby.gateway.waiting_room import WaitingRoom, Wish

# For two beats: the word of one message may be overtaken by the next one before anybody decides.
MISSED_FOR_S: Final = 2.0


@dataclass(slots=True)
class Tally:
    """``granted`` counts open grants by backend, ``began`` all; a variant without backends has the one whose name is empty.

    ``turned_away``: wanted by requests that found no room. Times are by the desk's monotonic clock.
    """

    opened_at: float
    granted: dict[str, int] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)
    turned_away: set[str] = field(default_factory=set)
    _active: dict[str, float] = field(default_factory=dict)
    _missed: dict[str, float] = field(default_factory=dict)

    def took(self, backend: str, now: float) -> None:
        """A request goes to an instance of the backend."""
        self.granted[backend] = self.granted.get(backend, 0) + 1
        self.began[backend] = self.began.get(backend, 0) + 1
        self._active[backend] = now

    def gave_back(self, backend: str, now: float) -> None:
        """A request of the backend has ended."""
        self.granted[backend] -= 1
        self._active[backend] = now

    def wanted(self, backend: str, now: float) -> None:
        """Somebody waits for the backend, or did."""
        self._active[backend] = now

    def misses(self, instances: ReadyInstances, wish: Wish, now: float) -> bool:
        """Note an engine that sleeps and should have this request, which is served without it; whether there is one."""
        if wish.wanted is not None or wish.tried:
            return False
        backend = instances.better_asleep(wish.ask, wish.priority, now)
        if backend:
            self._missed[backend] = now + MISSED_FOR_S
            self.wanted(backend, now)
        return bool(backend)

    def in_vain(self, backend: str, now: float) -> bool:
        """Whether the backend was asked for by somebody who does not wait for it."""
        return backend in self.turned_away or self._missed.get(backend, now) > now

    def forget(self, instances: ReadyInstances) -> None:
        """Keep only what was asked for in vain of engines that sleep still."""
        self.turned_away = {backend for backend in self.turned_away if instances.sleeps(backend)}
        self._missed = {backend: until for backend, until in self._missed.items() if instances.sleeps(backend)}

    def active_at(self, backend: str) -> float:
        """Return when the backend was last used or wanted; if it never was, since when nobody did."""
        return self._active.get(backend, self.opened_at)


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who speaks: a gateway, of which life, and the number of its first message."""

    gateway: str
    boot_id: str
    sequence: int


def demands_of(
    by: Speaker, route: Route, tally: Tally, room: WaitingRoom, in_flight: int, last_activity: float, now: float
) -> tuple[Demand, ...]:
    """Return one message for each engine of the variant; ``last_activity`` is the whole desk's.

    A request that found nothing ready and no room, or was served by an engine that is not the best for it, counts as waiting
    once for the one that it wanted: it, too, wants that awake. What is in
    flight without a grant and does not wait is between two steps, and counts for the preferred engine.
    """
    known = {part.backend for part in route.parts}
    # Instances may outlive the backend whose they were; their requests are under way all the same.
    strangers = sum(count for backend, count in tally.granted.items() if backend not in known)
    gone = [backend for backend in tally.began if backend not in known]
    stranded = [count for backend, count in room.backends.items() if backend not in known]
    between = max(0, in_flight - room.total.requests - sum(tally.granted.values()))
    told = []
    for at, part in enumerate(route.parts):
        waiting = room.of(part.backend)
        running = tally.granted.get(part.backend, 0) + (0 if at else strangers + between)
        active_at = tally.active_at(part.backend) if route.hybrid else last_activity
        queued = waiting.requests + (0 if at else sum(count.requests for count in stranded))
        told.append(
            Demand(
                gateway=by.gateway,
                boot_id=by.boot_id,
                sequence=by.sequence + at,
                tenant=route.endpoint.tenant,
                endpoint=route.endpoint.name,
                variant=route.variant.name,
                backend=part.backend,
                in_flight=running,
                queued=queued or int(tally.in_vain(part.backend, now)),
                queued_bytes=waiting.body_bytes + (0 if at else sum(count.body_bytes for count in stranded)),
                idle=0.0 if running or queued else max(0.0, now - active_at),
                oldest_arrival_at=room.oldest_arrival_at(part.backend if route.hybrid else None),
                arrivals=tally.began.get(part.backend, 0) + (0 if at else sum(tally.began.get(one, 0) for one in gone)),
            )
        )
    return tuple(told)
