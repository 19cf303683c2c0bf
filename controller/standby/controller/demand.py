"""The book of demand: what each gateway last said, added up per endpoint and per variant."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from standby.controller.arrivals import GapModel
from standby.controller.asked import Bucket, EndpointDemand
from standby.controller.dispersion import Clusters, LookAhead
from standby.domain.demand import Demand, GatewayBeat
from standby.domain.names import key
from standby.domain.serving import part_label

GATEWAY_LEASE_S: Final = 10.0
_SHORTEST_BUCKET_S: Final = 0.25
_BUCKETS_PER_WINDOW: Final = 240
_LONGEST_WINDOW_S: Final = 3600.0

# Under which label the gaps of an endpoint as a whole are kept.
WHOLE: Final = ""
# A gateway that is heard again after its lease ran out: what it says happened later than this after what was known is new.
_NEWS_S: Final = 1.0

# ``tenant.name`` of the endpoint, and the variant, or the variant and its backend as ``part_label`` writes them.
Part: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class _Counts:
    in_flight: int
    queued: int
    active_at: float
    oldest_arrival_at: float | None
    arrivals: int | None = None


@dataclass(slots=True)
class _Gateway:
    boot_id: str
    sequence: int
    heard_at: float
    counts: dict[Part, _Counts] = field(default_factory=dict)


@dataclass(slots=True)
class _Series:
    """Concurrency of one endpoint, or of one variant of it, over its window.

    ``horizon_s`` is over how many seconds its changes are learned; None: nobody asks for that.
    """

    window_s: float = 60.0
    active_at: float = -math.inf
    buckets: deque[Bucket] = field(default_factory=deque)
    clusters: Clusters = field(default_factory=Clusters)
    horizon_s: float | None = None

    def copy(self) -> _Series:
        """Return the same, to go its own way."""
        return replace(self, buckets=deque(self.buckets), clusters=replace(self.clusters))

    @property
    def width(self) -> float:
        return max(_SHORTEST_BUCKET_S, min(self.window_s, _LONGEST_WINDOW_S) / _BUCKETS_PER_WINDOW)

    @property
    def idle(self) -> bool:
        """Whether nothing ran or waited when it was last heard of."""
        return not self.buckets or self.buckets[-1].last == 0

    @property
    def dispersion(self) -> float | None:
        """What was learned of it; None: nothing, or nobody asks."""
        return None if self.horizon_s is None or not self.clusters.levels else self.clusters.value

    def record(self, value: int, now: float) -> None:
        if self.horizon_s is not None:
            self.clusters.observe(value, self.horizon_s, now)
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


@dataclass(slots=True)
class _Book:
    """What is remembered of one endpoint: as a whole, and by variant or backend once there are several.

    ``gaps`` has under ``""`` those of the whole. ``ahead_s``: for how long scaling ahead of demand needs it at least.
    """

    whole: _Series = field(default_factory=_Series)
    parts: dict[str, _Series] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    gaps: dict[str, GapModel] = field(default_factory=dict)
    ahead_s: float = 0.0

    def of(self, variant: str) -> _Series:
        """Return the series of a variant. While it is the only one that was ever heard of, that is the whole."""
        if variant not in self.labels:
            self.labels.append(variant)
            if len(self.labels) == 2:
                self.parts[self.labels[0]] = self.whole.copy()
                if WHOLE in self.gaps and self.labels[0] not in self.gaps:
                    self.gaps[self.labels[0]] = GapModel.from_json(self.gaps[WHOLE].to_json())
            if len(self.labels) > 1:
                self.parts[variant] = _Series(self.whole.window_s)
        return self.parts.get(variant, self.whole)

    def part(self, variant: str) -> _Series | None:
        """Return what is known of a variant."""
        return self.parts.get(variant, self.whole) if variant in self.labels else None

    def gaps_of(self, variant: str | None) -> GapModel | None:
        """Return what was learned of a variant; while it is the only one, that is what was learned of the whole."""
        if variant in self.parts:
            return self.gaps.get(variant)
        return self.gaps.get(WHOLE) if variant is None or len(self.labels) <= 1 else None

    def came(self, variant: str, at: float) -> bool:
        """Learn from a request that ended an idle time, of the whole or of its variant alone; return whether it ended one."""
        learned = False
        for label in (WHOLE, variant) if variant in self.parts else (WHOLE,):
            series = self.parts.get(label, self.whole) if label else self.whole
            if series.idle and series.active_at > -math.inf:
                self.gaps.setdefault(label, GapModel()).observe(max(0.0, at - series.active_at), at)
                learned = True
        return learned

    def look_ahead(self, parts: Mapping[str, LookAhead]) -> None:
        """Learn over each part's climb how its requests cluster, and over the longest of them those of the whole."""
        self.ahead_s = max((look.window_s for look in parts.values()), default=0.0)
        self.whole.horizon_s = max((look.horizon_s for look in parts.values()), default=None)
        for label, series in self.parts.items():
            look = parts.get(label)
            series.horizon_s = None if look is None else look.horizon_s

    def all(self) -> Iterable[_Series]:
        return (self.whole, *self.parts.values())


class DemandBook:
    """Collects demand and beats; owned by the controller's one event loop.

    A gateway's counts are a lease: ten seconds after it was last heard they no longer count, so that a gateway
    killed with requests in flight does not pin an endpoint for ever (field case B20). Counts are kept by endpoint,
    variant and backend; a gateway that names no backend speaks of the variant, one that names no variant of the endpoint
    as a whole.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._gateways: dict[str, _Gateway] = {}
        self._books: dict[str, _Book] = {}
        self._learned: set[str] = set()
        self._ahead: set[str] = set()
        self._valid_since: float | None = None

    def take_demand(self, demand: Demand) -> bool:
        """Take one variant's counts in. Return True when they changed; older messages are dropped."""
        now = self._clock()
        gateway = self._admit(demand.gateway, demand.boot_id, demand.sequence, now)
        return gateway is not None and self._store(gateway, demand, now)

    def take_beat(self, beat: GatewayBeat) -> tuple[str, ...]:
        """Take all of a gateway's counts in. Return the endpoints whose counts changed.

        What the gateway does not mention has nothing running or waiting there.
        """
        now = self._clock()
        gateway = self._admit(beat.gateway, beat.boot_id, beat.sequence, now)
        if gateway is None:
            return ()
        mentioned = {_part_of(demand): demand for demand in beat.demands}
        changed = {part[0]: None for part, demand in mentioned.items() if self._store(gateway, demand, now)}
        for part in [part for part in gateway.counts if part not in mentioned]:
            counts = gateway.counts.pop(part)
            if counts.in_flight or counts.queued:
                self._active(part, now)
                changed[part[0]] = None
        for name in self._books.keys() - {name for name, _ in mentioned}:
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
        book = self._book(endpoint)
        for series in book.all():
            series.window_s = max(window_s, book.ahead_s)

    def look_ahead(self, planned: Iterable[str], horizons: Mapping[str, Mapping[str, LookAhead]]) -> None:
        """Remember of each of the ``planned`` endpoints what scaling ahead of demand needs: by endpoint and part, ``horizons``.

        Of those that do not ask any more nothing new is learned; what was is kept.
        """
        for name in self._ahead.intersection(planned).difference(horizons):
            self._ahead.discard(name)
            self._book(name).look_ahead({})
        for name, parts in horizons.items():
            self._ahead.add(name)
            self._book(name).look_ahead(parts)

    def forget_endpoints(self, known: Iterable[str]) -> None:
        """Drop what is remembered of every endpoint that is not in ``known`` and has nothing running or waiting."""
        held = {name for gateway in self._gateways.values() for name, _ in gateway.counts}
        for name in self._books.keys() - set(known) - held:
            del self._books[name]
            self._ahead.discard(name)

    def demand(self, endpoint: str) -> EndpointDemand:
        """Return what is known of ``endpoint`` (``tenant.name``) as a whole."""
        book = self._books.get(endpoint)
        return self._sum(endpoint, None, None if book is None else book.whole)

    def by_variant(self, endpoint: str, variants: Iterable[str]) -> Mapping[str, EndpointDemand]:
        """Return the same for each of ``variants``; under ``""`` what a gateway says that does not tell them apart.

        A variant's backend is asked for by its ``part_label``; under the variant's name alone is then what a gateway says
        that does not tell backends apart.
        """
        book = self._books.get(endpoint)
        labels = [*variants]
        if any((endpoint, WHOLE) in gateway.counts for gateway in self._gateways.values()):
            labels.append(WHOLE)
        return {label: self._sum(endpoint, label, None if book is None else book.part(label)) for label in labels}

    # ---- what was learned ------------------------------------------------------------------------------

    def take_learned(self) -> set[str]:
        """Return the endpoints of which something was learned since this was last asked."""
        learned, self._learned = self._learned, set()
        return learned

    def habits(self, endpoint: str) -> dict[str, dict[str, Any]]:
        """Return what was learned of ``endpoint``, by variant or backend, ``""`` for the whole, as JSON values."""
        book = self._books.get(endpoint)
        return {} if book is None else {label: model.to_json() for label, model in book.gaps.items()}

    def restore(self, endpoint: str, habits: Mapping[str, GapModel]) -> None:
        """Take over what another controller learned of ``endpoint``, where it has seen more."""
        gaps = self._book(endpoint).gaps
        for label, model in habits.items():
            mine = gaps.get(label)
            if mine is None or mine.count < model.count:
                gaps[label] = model

    # ---- inside ----------------------------------------------------------------------------------------

    def _sum(self, endpoint: str, variant: str | None, series: _Series | None) -> EndpointDemand:
        now = self._clock()
        book = self._books.get(endpoint)
        in_flight = queued = 0
        active_at = -math.inf if series is None else series.active_at
        oldest: float | None = None
        valid = False
        for gateway in self._gateways.values():
            if now - gateway.heard_at >= GATEWAY_LEASE_S:
                continue
            valid = True
            for counts in self._counts(gateway, endpoint, variant):
                in_flight += counts.in_flight
                queued += counts.queued
                active_at = max(active_at, counts.active_at)
                if counts.oldest_arrival_at is not None:
                    oldest = min(oldest or math.inf, counts.oldest_arrival_at)
        return EndpointDemand(
            in_flight=in_flight,
            queued=queued,
            active_at=active_at,
            oldest_arrival_at=oldest,
            valid=valid,
            valid_since=math.inf if self._valid_since is None or not valid else self._valid_since,
            history=tuple(series.buckets) if series else (),
            bucket_s=series.width if series else _SHORTEST_BUCKET_S,
            gaps=None if book is None else book.gaps_of(variant),
            dispersion=None if series is None else series.dispersion,
        )

    def _counts(self, gateway: _Gateway, endpoint: str, variant: str | None) -> Iterable[_Counts]:
        """Yield what a gateway says of a variant, or of all of them."""
        book = self._books.get(endpoint)
        labels = () if book is None else book.labels if variant is None else (variant,)
        return (counts for label in labels if (counts := gateway.counts.get((endpoint, label))) is not None)

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
        part = _part_of(demand)
        before = gateway.counts.get(part)
        active_at = now if demand.in_flight or demand.queued else now - demand.idle
        self._learn(part, demand, before, active_at)
        gateway.counts[part] = _Counts(demand.in_flight, demand.queued, active_at, demand.oldest_arrival_at, demand.arrivals)
        self._active(part, active_at)
        self._record(part[0], now)
        seen = (0, 0) if before is None else (before.in_flight, before.queued)
        return seen != (demand.in_flight, demand.queued)

    def _learn(self, part: Part, demand: Demand, before: _Counts | None, active_at: float) -> None:
        """Note the gap that a request ended, also of one that came and went between two messages.

        Only a gateway's count of requests tells one that was short from a message that was late.
        """
        name, variant = part
        book = self._book(name)
        series = book.of(variant)
        if not (demand.in_flight or demand.queued):
            if not demand.arrivals:
                return
            if before is None and active_at <= series.active_at + _NEWS_S:
                return
            if before is not None and (before.arrivals is None or demand.arrivals <= before.arrivals):
                return
        if book.came(variant, active_at):
            self._learned.add(name)

    def _forget(self, gateway: str) -> list[str]:
        """Remove a gateway; whatever it had running counts as activity until it was last heard."""
        gone = self._gateways.pop(gateway)
        changed = [part for part, counts in gone.counts.items() if counts.in_flight or counts.queued]
        for part in changed:
            self._active(part, gone.heard_at)
        return list(dict.fromkeys(name for name, _ in changed))

    def _active(self, part: Part, at: float) -> None:
        name, variant = part
        book = self._book(name)
        for series in (book.whole, book.of(variant)):
            series.active_at = max(series.active_at, at)

    def _record(self, endpoint: str, now: float) -> None:
        book = self._book(endpoint)
        totals = dict.fromkeys(book.labels, 0)
        for gateway in self._gateways.values():
            for label in book.labels:
                counts = gateway.counts.get((endpoint, label))
                if counts is not None:
                    totals[label] += counts.in_flight + counts.queued
        book.whole.record(sum(totals.values()), now)
        for label, series in book.parts.items():
            series.record(totals[label], now)

    def _book(self, endpoint: str) -> _Book:
        book = self._books.get(endpoint)
        if book is None:
            book = self._books[endpoint] = _Book()
        return book


def _part_of(demand: Demand) -> Part:
    return key(demand.tenant, demand.endpoint), part_label(demand.variant, demand.backend if demand.variant else "")
