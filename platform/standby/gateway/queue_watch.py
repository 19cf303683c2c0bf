"""Keeps the depth of one desk's queue: gathers what ``queue_depth`` judges, and how long answers take to begin."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field

from standby.domain.priority import Priority
from standby.domain.traffic import TrafficPolicy
from standby.gateway.queue_depth import Depth, Window, adapt, adapts, due, first_depth

_SMOOTH = 0.1


@dataclass(slots=True)
class QueueWatch:
    """``ceiling`` is the most that may wait, whatever the target bears. Batch has no latency target: it only waits.

    Nothing is gathered where the depth does not adapt, so that such requests cost nothing here.
    """

    traffic: TrafficPolicy
    ceiling: int
    now: InitVar[float]
    first_byte_s: float | None = None
    depth: Depth | None = field(init=False)
    _window: Window = field(default_factory=Window)

    def __post_init__(self, now: float) -> None:
        self.depth = first_depth(self.ceiling, now) if adapts(self.traffic) else None

    def serve(self, traffic: TrafficPolicy, ceiling: int, now: float) -> None:
        """Take up another policy; what was learnt stays where the target is the same."""
        same = adapts(traffic) and (traffic.latency_target, traffic.slo_violations) == (
            self.traffic.latency_target,
            self.traffic.slo_violations,
        )
        if not same or self.depth is None or ceiling != self.ceiling:
            self.depth = first_depth(ceiling, now) if adapts(traffic) else None
            self._window = Window()
        self.traffic, self.ceiling = traffic, ceiling

    def bound(self, priority: Priority) -> Depth | None:
        """Return the depth that a request of this priority must find a place in; None: the ceiling alone."""
        return None if priority is Priority.BATCH else self.depth

    def target_s(self, priority: Priority) -> float | None:
        """Return how long a request may wait for a slot if its answer is to begin within the target; None: no target."""
        target = self.traffic.latency_target
        if self.depth is None or target is None or priority is Priority.BATCH:
            return None
        return max(0.0, target - (self.first_byte_s or 0.0))

    def joined(self, place: float) -> None:
        """Somebody has taken this place."""
        if self.depth is not None and place > self._window.deepest:
            self._window = self._window._replace(deepest=place)

    def turned_away(self) -> None:
        """Somebody found no place."""
        if self.depth is not None:
            self._window = self._window._replace(turned_away=self._window.turned_away + 1)

    def began(self, priority: Priority, arrived: float, waited_s: float, first_byte_s: float, now: float) -> None:
        """An answer began so long after its dispatch, the request having waited before that."""
        self.first_byte_s = (
            first_byte_s if self.first_byte_s is None else self.first_byte_s + _SMOOTH * (first_byte_s - self.first_byte_s)
        )
        self._note(priority, arrived, waited_s + first_byte_s, now)

    def gave_up(self, priority: Priority, arrived: float, now: float) -> None:
        """Somebody left without an answer; that counts if the target had passed."""
        if self.depth is not None and now - arrived > (self.traffic.latency_target or 0.0):
            self._note(priority, arrived, now - arrived, now)

    def _note(self, priority: Priority, arrived: float, latency_s: float, now: float) -> None:
        depth, window, target = self.depth, self._window, self.traffic.latency_target
        if depth is None or target is None or priority is Priority.BATCH or arrived < depth.since:
            return
        window = window._replace(requests=window.requests + 1, missed=window.missed + (latency_s > target))
        if due(window, self.traffic):
            self.depth = adapt(depth, window, self.traffic, self.ceiling, now)
            window = Window()
        self._window = window
