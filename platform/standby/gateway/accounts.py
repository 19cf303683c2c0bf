"""Accounting of one variant's requests: noted by each of them, told in metrics together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from prometheus_client import Counter, Gauge

from standby.domain.instance import Rung
from standby.gateway import cloudwatch
from standby.gateway.breaker import Phase
from standby.gateway.cloudwatch import VariantSeries
from standby.gateway.desk import Desk, Grant
from standby.gateway.metering import Meter
from standby.telemetry import metrics
from standby.telemetry.lean import LeanHistogram

OTHER = "other"

_OF_ENDPOINTS: Final = (
    metrics.REQUESTS,
    metrics.IN_FLIGHT,
    metrics.QUEUED,
    metrics.QUEUED_BYTES,
    metrics.QUEUE_WAIT,
    metrics.FIRST_BYTE,
    metrics.TIME_TO_FIRST_TOKEN,
    metrics.TIME_PER_OUTPUT_TOKEN,
    metrics.DURATION,
    metrics.PROMPT_TOKENS,
    metrics.COMPLETION_TOKENS,
    metrics.BILLED_REQUESTS,
    metrics.SHADOW_REQUESTS,
    metrics.SLOTS,
    metrics.BREAKERS,
    metrics.BREAKERS_OPENED,
    metrics.POISON_CONVICTIONS,
)
_OF_ALL: Final = (metrics.IN_FLIGHT, metrics.QUEUED, metrics.QUEUED_BYTES, metrics.SLOTS)

# A counter that appears with its first event shows no increase.
_FROM_ZERO: Final = (metrics.BREAKERS_OPENED, metrics.POISON_CONVICTIONS)
_PHASES: Final = MappingProxyType({phase: phase.value.replace("-", "_") for phase in Phase})

# Of each kind of time: told before somebody asks, so that they take no memory, and no request waits long for those before it.
_MOST_TIMES: Final = 256
_OF_TIMES: Final = (metrics.QUEUE_WAIT, metrics.DURATION, metrics.FIRST_BYTE)

EndpointKey = tuple[str, str]


class _Times(NamedTuple):
    """What answers of one rung took, in seconds, since it was last told: until they were sent to an engine, until they were
    over, and until their first byte."""

    waited: list[float]
    lasted: list[float]
    first_byte: list[float]


@dataclass(slots=True)
class Account:
    """What requests of one variant have come to, and the metric children it is told in; ``series`` are those under
    CloudWatch's names.

    A request only leaves its numbers here: added to the metrics together they cost less, and whoever reads those has ``settle``
    called before. ``moved``: any of its counters has grown since somebody took that down.
    """

    tenant: str
    endpoint: str
    series: VariantSeries | None = None
    closed: bool = False
    moved: bool = False
    _ended: dict[str, int] = field(default_factory=dict)
    _outcomes: dict[str, list[Counter]] = field(default_factory=dict)
    _times: dict[Rung, _Times] = field(default_factory=dict)
    _told: tuple[dict[Rung, LeanHistogram], ...] = field(default_factory=lambda: tuple({} for _ in _OF_TIMES))
    _first_tokens: dict[Rung, LeanHistogram] = field(default_factory=dict)
    _pace: LeanHistogram | None = None
    _used: dict[tuple[bool, bool], list[int]] = field(default_factory=dict)
    _unsettled: bool = False

    def ended(self, outcome: str) -> None:
        """Count a request by how it ended."""
        if not self.closed:
            self.moved = self._unsettled = True
            self._ended[outcome] = self._ended.get(outcome, 0) + 1

    def served(self, grant: Grant, waited_s: float, lasted_s: float) -> None:
        """Note an answered request: the times from its arrival to its dispatch and to the end of its answer, in seconds."""
        if self.closed:
            return
        self._unsettled = True
        times = self._times.get(grant.rung) or self._new_times(grant.rung)
        times.waited.append(waited_s)
        times.lasted.append(lasted_s)
        if len(times.lasted) >= _MOST_TIMES:
            self._tell(grant.rung, times)
        if self.series is not None:
            self.series.served(grant)

    def metered(self, meter: Meter) -> None:
        """Note what a request used, once, when it has ended in whatever way; nothing where no engine had begun."""
        if self.closed:
            return
        prompt, completion, estimated = meter.usage()
        if prompt or completion:
            self.moved = self._unsettled = True
            sums = self._used.get((estimated, meter.whole))
            if sums is None:
                sums = self._used[estimated, meter.whole] = [0, 0, 0]
            sums[0] += prompt
            sums[1] += completion
            sums[2] += 1

    @property
    def outcomes(self) -> Iterable[str]:
        """How its requests have ended so far."""
        return self._ended.keys()

    def settle(self) -> None:
        """Add what was noted since the last time to the metrics."""
        if self.closed or not self._unsettled:
            return
        self._unsettled = False
        for outcome, count in self._ended.items():
            if count:
                self._ended[outcome] = 0
                self._count(outcome, count)
        for rung, times in self._times.items():
            self._tell(rung, times)
        used, self._used = self._used, {}
        place = (self.tenant, self.endpoint)
        for (estimated, whole), (prompt, completion, requests) in used.items():
            label = "1" if estimated else "0"
            metrics.PROMPT_TOKENS.labels(*place, label).inc(prompt)
            metrics.COMPLETION_TOKENS.labels(*place, label).inc(completion)
            metrics.BILLED_REQUESTS.labels(*place, "whole" if whole else "partial").inc(requests)

    def first_byte(self, seconds: float, rung: Rung) -> None:
        """Note the time from arrival to the first byte of the answer."""
        if self.closed:
            return
        self._unsettled = True
        times = self._times.get(rung) or self._new_times(rung)
        times.first_byte.append(seconds)
        if len(times.first_byte) >= _MOST_TIMES:
            self._tell(rung, times)

    def streamed(self, rung: Rung, meter: Meter, arrived: float) -> None:
        """Note a stream, once it has ended; nothing where no event came. ``arrived`` is by the meter's clock."""
        if self.closed or meter.first_event_at is None:
            return
        first = self._first_tokens.get(rung) or self._child(self._first_tokens, metrics.TIME_TO_FIRST_TOKEN, rung)
        first.observe(meter.first_event_at - arrived)
        pace = meter.pace()
        if pace is not None:
            if self._pace is None:
                self._pace = metrics.TIME_PER_OUTPUT_TOKEN.labels(self.tenant, self.endpoint)
            self._pace.observe(pace)

    def _child(self, children: dict[Rung, LeanHistogram], histogram: LeanHistogram, rung: Rung) -> LeanHistogram:
        child = children[rung] = histogram.labels(self.tenant, self.endpoint, rung.label)
        return child

    def _new_times(self, rung: Rung) -> _Times:
        times = self._times[rung] = _Times([], [], [])
        return times

    def _count(self, outcome: str, count: int) -> None:
        children = self._outcomes.get(outcome)
        if children is None:
            others = [] if self.series is None else self.series.counters(outcome)
            children = self._outcomes[outcome] = [metrics.REQUESTS.labels(self.tenant, self.endpoint, outcome), *others]
        for child in children:
            child.inc(count)

    def _tell(self, rung: Rung, times: _Times) -> None:
        if self.series is not None and times.lasted:
            self.series.told(times.waited, times.lasted)
        for histogram, children, seconds in zip(_OF_TIMES, self._told, times, strict=True):
            if seconds:
                (children.get(rung) or self._child(children, histogram, rung)).observe_all(seconds)
                seconds.clear()


@dataclass
class Accounts:
    """The accounts of all variants that had traffic; what belongs to none of them is counted as ``other``.

    ``shadow`` is that of all tests: it counts nothing.
    """

    _accounts: dict[EndpointKey, dict[str, Account]] = field(default_factory=dict)
    nobody: Account = field(default_factory=lambda: Account(OTHER, OTHER))
    shadow: Account = field(default_factory=lambda: Account(OTHER, OTHER, closed=True))
    _gauged: frozenset[cloudwatch.Dimensions] = frozenset()
    _known: frozenset[EndpointKey] = frozenset()

    def shadow_of(self, desk: Desk) -> Account:
        """Count a test by its number alone, where its endpoint is still there, and return what counts nothing else."""
        if not desk.closed:
            metrics.SHADOW_REQUESTS.labels(desk.route.endpoint.tenant, desk.route.endpoint.name).inc()
        return self.shadow

    def of(self, desk: Desk) -> Account:
        """Return the variant's account; what ends after its deletion belongs to nobody."""
        if desk.closed:
            return self.nobody
        endpoint = desk.route.endpoint
        accounts = self._accounts.get((endpoint.tenant, endpoint.name))
        if accounts is None:
            accounts = self._accounts[endpoint.tenant, endpoint.name] = {}
        variant = desk.route.variant.name
        account = accounts.get(variant)
        if account is None:
            series = VariantSeries(cloudwatch.dimensions_of(endpoint, variant))
            account = accounts[variant] = Account(endpoint.tenant, endpoint.name, series)
        return account

    def close(self, desk: Desk) -> None:
        """Forget a deleted endpoint's accounts and all its series: names come and go, and each has dozens of series."""
        endpoint = desk.route.endpoint
        for account in self._accounts.pop((endpoint.tenant, endpoint.name), {}).values():
            account.closed = True
        cloudwatch.forget(endpoint)
        for metric in _OF_ENDPOINTS:
            metric.remove_by_labels({"tenant": endpoint.tenant, "endpoint": endpoint.name})

    def convicted(self, tenant: str, endpoint: str) -> None:
        """Count a request that has killed its engine; nothing where the endpoint is no more."""
        if (tenant, endpoint) in self._accounts:
            metrics.POISON_CONVICTIONS.labels(tenant, endpoint).inc()

    @property
    def endpoints(self) -> Set[EndpointKey]:
        """Those that have had traffic and are there still."""
        return self._accounts.keys()

    def moved(self) -> dict[EndpointKey, set[str]]:
        """Return the endpoints whose counters have grown since the last call, with all outcomes that each has had."""
        found: dict[EndpointKey, set[str]] = {}
        for where, accounts in self._accounts.items():
            moved = [account for account in accounts.values() if account.moved]
            for account in moved:
                account.moved = False
            if moved:
                found[where] = {outcome for account in accounts.values() for outcome in account.outcomes}
        return found

    def settle(self) -> None:
        """Add what was metered since the last time to the counters."""
        self.nobody.settle()
        for accounts in self._accounts.values():
            for account in accounts.values():
                account.settle()

    def refresh(self, desks: Iterable[Desk], slots: Mapping[EndpointKey, int] = MappingProxyType({})) -> None:
        """Set the gauges from the desks and settle the meters; called when somebody scrapes.

        Several desks may be of one endpoint. ``slots``: those of the ready instances of every endpoint that there is, with or
        without a desk: what is at zero has series all the same, or nothing could be told from its absence.
        """
        self.settle()
        every = list(desks)
        self._gauged = cloudwatch.refresh(every, self._gauged)
        totals: dict[EndpointKey, list[int]] = {where: [0, 0, 0] for where in slots}
        breakers: dict[EndpointKey, dict[Phase, int]] = {}
        for desk in every:
            where = (desk.route.endpoint.tenant, desk.route.endpoint.name)
            of_endpoint = totals.setdefault(where, [0, 0, 0])
            for at, count in enumerate((desk.in_flight, desk.queued, desk.queued_bytes)):
                of_endpoint[at] += count
            by_phase = breakers.setdefault(where, dict.fromkeys(Phase, 0))
            for ready in desk.usable:
                by_phase[ready.breaker.phase] += 1
        for gone in self._known - totals.keys():
            _forget(_OF_ALL, gone)
        self._known = frozenset(totals)
        for where, counts in totals.items():
            for gauge, count in zip(_OF_ALL, (*counts, slots.get(where, 0)), strict=True):
                gauge.labels(*where).set(count)
        for where, by_phase in breakers.items():
            for counter in _FROM_ZERO:
                counter.labels(*where)
            for phase, count in by_phase.items():
                metrics.BREAKERS.labels(*where, _PHASES[phase]).set(count)


def _forget(gauges: Iterable[Gauge], where: EndpointKey) -> None:
    for gauge in gauges:
        with contextlib.suppress(KeyError):  # its desk was closed before
            gauge.remove(*where)
