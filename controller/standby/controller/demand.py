"""The book of demand: what each gateway last said, added up per endpoint."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from standby.controller.view import Bucket, EndpointDemand
from standby.domain.demand import Demand, GatewayBeat
from standby.domain.names import key

GATEWAY_LEASE_S: Final = 10.0
_SHORTEST_BUCKET_S: Final = 0.25
_BUCKETS_PER_WINDOW: Final = 240
_LONGEST_WINDOW_S: Final = 3600.0


@dataclass(slots=True)
class _Counts:
    in_flight: int
    queued: int
    active_at: float
    oldest_arrival_at: float | None


@dataclass(slots=True)
class _Gateway:
    boot_id: str
    sequence: int
    heard_at: float
    counts: dict[str, _Counts] = field(default_factory=dict)


@dataclass(slots=True)
class _Series:
    """Concurrency of one endpoint over its window."""

    window_s: float = 60.0
    active_at: float = -math.inf
    buckets: deque[Bucket] = field(default_factory=deque)

    @property
    def width(self) -> float:
        return max(_SHORTEST_BUCKET_S, min(self.window_s, _LONGEST_WINDOW_S) / _BUCKETS_PER_WINDOW)

    def record(self, value: int, now: float) -> None:
        last = self.buckets[-1] if self.buckets else None
        if last is None:
            self.buckets.append(Bucket(now, value, value, value))
        elif now - last.start < self.width:
            self.buckets[-1] = Bucket(last.start, min(last.low, value), max(last.high, value), value)
        else:
            # the old value held until now, so it belongs to the new bucket as well
            self.buckets.append(Bucket(now, min(last.last, value), max(last.last, value), value))
        oldest = now - min(self.window_s, _LONGEST_WINDOW_S) - 2 * self.width
        while len(self.buckets) > 1 and self.buckets[1].start < oldest:
            self.buckets.popleft()


class DemandBook:
    """Collects demand and beats; owned by the controller's one event loop.

    A gateway's counts are a lease: ten seconds after it was last heard they no longer count, so that a gateway
    killed with requests in flight does not pin an endpoint for ever (field case B20).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._gateways: dict[str, _Gateway] = {}
        self._series: dict[str, _Series] = {}
        self._valid_since: float | None = None

    def take_demand(self, demand: Demand) -> bool:
        """Take one endpoint's counts in. Return True when they changed; older messages are dropped."""
        now = self._clock()
        gateway = self._admit(demand.gateway, demand.boot_id, demand.sequence, now)
        return gateway is not None and self._store(gateway, demand, now)

    def take_beat(self, beat: GatewayBeat) -> tuple[str, ...]:
        """Take all of a gateway's counts in. Return the endpoints whose counts changed.

        An endpoint that the gateway does not mention has nothing running or waiting there.
        """
        now = self._clock()
        gateway = self._admit(beat.gateway, beat.boot_id, beat.sequence, now)
        if gateway is None:
            return ()
        mentioned = {key(demand.tenant, demand.endpoint): demand for demand in beat.demands}
        changed = [name for name, demand in mentioned.items() if self._store(gateway, demand, now)]
        for name in [name for name in gateway.counts if name not in mentioned]:
            counts = gateway.counts.pop(name)
            if counts.in_flight or counts.queued:
                self._series_of(name).active_at = now
                changed.append(name)
        for name in self._series.keys() - mentioned.keys():
            self._record(name, now)
        return tuple(changed)

    def expire(self) -> tuple[str, ...]:
        """Drop gateways whose lease ran out. Return the endpoints whose counts changed."""
        now = self._clock()
        changed: list[str] = []
        for name in [n for n, g in self._gateways.items() if now - g.heard_at >= GATEWAY_LEASE_S]:
            changed += self._forget(name)
        if not self._gateways:
            self._valid_since = None
        for endpoint in changed:
            self._record(endpoint, now)
        return tuple(changed)

    def next_expiry(self) -> float:
        """Return when the first lease runs out if nothing more is heard; infinity when there is none."""
        return min((g.heard_at for g in self._gateways.values()), default=math.inf) + GATEWAY_LEASE_S

    @property
    def valid(self) -> bool:
        """At least one gateway has been heard within its lease."""
        now = self._clock()
        return any(now - gateway.heard_at < GATEWAY_LEASE_S for gateway in self._gateways.values())

    def keep_window(self, endpoint: str, window_s: float) -> None:
        """Remember the concurrency of ``endpoint`` (``tenant.name``) for ``window_s`` seconds."""
        self._series_of(endpoint).window_s = window_s

    def forget_endpoints(self, known: Iterable[str]) -> None:
        """Drop what is remembered of every endpoint that is not in ``known`` and has nothing running or waiting."""
        held = {name for gateway in self._gateways.values() for name in gateway.counts}
        for name in self._series.keys() - set(known) - held:
            del self._series[name]

    def demand(self, endpoint: str) -> EndpointDemand:
        """Return what is known of ``endpoint`` (``tenant.name``)."""
        now = self._clock()
        in_flight = queued = 0
        active_at = -math.inf
        oldest: float | None = None
        valid = False
        for gateway in self._gateways.values():
            if now - gateway.heard_at >= GATEWAY_LEASE_S:
                continue
            valid = True
            counts = gateway.counts.get(endpoint)
            if counts is None:
                continue
            in_flight += counts.in_flight
            queued += counts.queued
            active_at = max(active_at, counts.active_at)
            if counts.oldest_arrival_at is not None:
                oldest = min(oldest or math.inf, counts.oldest_arrival_at)
        series = self._series.get(endpoint)
        return EndpointDemand(
            in_flight=in_flight,
            queued=queued,
            active_at=max(active_at, series.active_at) if series else active_at,
            oldest_arrival_at=oldest,
            valid=valid,
            valid_since=math.inf if self._valid_since is None or not valid else self._valid_since,
            history=tuple(series.buckets) if series else (),
            bucket_s=series.width if series else _SHORTEST_BUCKET_S,
        )

    def _admit(self, name: str, boot_id: str, sequence: int, now: float) -> _Gateway | None:
        gateway = self._gateways.get(name)
        if gateway is not None and gateway.boot_id != boot_id:
            for endpoint in self._forget(name):
                self._record(endpoint, now)
            gateway = None
        if gateway is None:
            gateway = self._gateways[name] = _Gateway(boot_id=boot_id, sequence=sequence, heard_at=now)
            if self._valid_since is None:
                self._valid_since = now
            return gateway
        if sequence <= gateway.sequence:
            return None
        gateway.sequence = sequence
        gateway.heard_at = now
        return gateway

    def _store(self, gateway: _Gateway, demand: Demand, now: float) -> bool:
        name = key(demand.tenant, demand.endpoint)
        before = gateway.counts.get(name)
        active_at = now if demand.in_flight or demand.queued else now - demand.idle
        gateway.counts[name] = _Counts(demand.in_flight, demand.queued, active_at, demand.oldest_arrival_at)
        series = self._series_of(name)
        series.active_at = max(series.active_at, active_at)
        self._record(name, now)
        seen = (0, 0) if before is None else (before.in_flight, before.queued)
        return seen != (demand.in_flight, demand.queued)

    def _forget(self, gateway: str) -> list[str]:
        """Remove a gateway; whatever it had running counts as activity until it was last heard."""
        gone = self._gateways.pop(gateway)
        changed = [name for name, counts in gone.counts.items() if counts.in_flight or counts.queued]
        for name in changed:
            series = self._series_of(name)
            series.active_at = max(series.active_at, gone.heard_at)
        return changed

    def _record(self, endpoint: str, now: float) -> None:
        total = 0
        for gateway in self._gateways.values():
            counts = gateway.counts.get(endpoint)
            if counts is not None:
                total += counts.in_flight + counts.queued
        self._series_of(endpoint).record(total, now)

    def _series_of(self, endpoint: str) -> _Series:
        series = self._series.get(endpoint)
        if series is None:
            series = self._series[endpoint] = _Series()
        return series
