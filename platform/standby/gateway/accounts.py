"""Accounting of one variant's requests: metric children looked up once, not for each request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Counter, Histogram

from standby.domain.instance import Rung
from standby.gateway import cloudwatch
from standby.gateway.cloudwatch import VariantSeries
from standby.gateway.desk import Desk, Grant
from standby.gateway.metering import Meter
from standby.telemetry import metrics

OTHER = "other"

_OF_ENDPOINTS: Final = (
    metrics.REQUESTS,
    metrics.IN_FLIGHT,
    metrics.QUEUED,
    metrics.QUEUED_BYTES,
    metrics.QUEUE_WAIT,
    metrics.FIRST_BYTE,
    metrics.DURATION,
    metrics.PROMPT_TOKENS,
    metrics.COMPLETION_TOKENS,
    metrics.BILLED_REQUESTS,
)


@dataclass(slots=True)
class Account:
    """The metric children of one variant; ``series`` are those under CloudWatch's names."""

    tenant: str
    endpoint: str
    series: VariantSeries | None = None
    closed: bool = False
    _outcomes: dict[str, list[Counter]] = field(default_factory=dict)
    _waits: dict[Rung, Histogram] = field(default_factory=dict)
    _first_bytes: dict[Rung, Histogram] = field(default_factory=dict)
    _durations: dict[Rung, Histogram] = field(default_factory=dict)
    _used: dict[tuple[bool, bool], list[int]] = field(default_factory=dict)

    def ended(self, outcome: str) -> None:
        """Count a request by how it ended."""
        if self.closed:
            return
        children = self._outcomes.get(outcome)
        if children is None:
            others = [] if self.series is None else self.series.counters(outcome)
            children = self._outcomes[outcome] = [metrics.REQUESTS.labels(self.tenant, self.endpoint, outcome), *others]
        for child in children:
            child.inc()

    def served(self, grant: Grant, waited_s: float, lasted_s: float) -> None:
        """Note an answered request: the times from its arrival to its dispatch and to the end of its answer, in seconds."""
        if self.closed:
            return
        rung = grant.rung
        (self._waits.get(rung) or self._child(self._waits, metrics.QUEUE_WAIT, rung)).observe(waited_s)
        (self._durations.get(rung) or self._child(self._durations, metrics.DURATION, rung)).observe(lasted_s)
        if self.series is not None:
            self.series.served(grant, waited_s, lasted_s)

    def metered(self, meter: Meter) -> None:
        """Note what a request used, once, when it has ended in whatever way; nothing where no engine had begun."""
        prompt, completion, estimated = meter.usage()
        if prompt or completion:
            sums = self._used.get((estimated, meter.whole))
            if sums is None:
                sums = self._used[estimated, meter.whole] = [0, 0, 0]
            sums[0] += prompt
            sums[1] += completion
            sums[2] += 1

    def settle(self) -> None:
        """Add what was metered since the last time to the counters."""
        used, self._used = self._used, {}
        if self.closed:
            return
        place = (self.tenant, self.endpoint)
        for (estimated, whole), (prompt, completion, requests) in used.items():
            label = "1" if estimated else "0"
            metrics.PROMPT_TOKENS.labels(*place, label).inc(prompt)
            metrics.COMPLETION_TOKENS.labels(*place, label).inc(completion)
            metrics.BILLED_REQUESTS.labels(*place, "whole" if whole else "partial").inc(requests)

    def first_byte(self, seconds: float, rung: Rung) -> None:
        """Note the time from arrival to the first byte of the answer."""
        if not self.closed:
            (self._first_bytes.get(rung) or self._child(self._first_bytes, metrics.FIRST_BYTE, rung)).observe(seconds)

    def _child(self, children: dict[Rung, Histogram], histogram: Histogram, rung: Rung) -> Histogram:
        child = children[rung] = histogram.labels(self.tenant, self.endpoint, rung.label)
        return child


@dataclass
class Accounts:
    """The accounts of all variants that had traffic; what belongs to none of them is counted as ``other``."""

    _accounts: dict[tuple[str, str], dict[str, Account]] = field(default_factory=dict)
    nobody: Account = field(default_factory=lambda: Account(OTHER, OTHER))
    _gauged: frozenset[cloudwatch.Dimensions] = frozenset()

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

    def refresh(self, desks: Iterable[Desk]) -> None:
        """Set the gauges from the desks and settle the meters; called when somebody scrapes.

        Several desks may be of one endpoint.
        """
        self.nobody.settle()
        for accounts in self._accounts.values():
            for account in accounts.values():
                account.settle()
        totals: dict[tuple[str, str], list[int]] = {}
        every = list(desks)
        self._gauged = cloudwatch.refresh(every, self._gauged)
        for desk in every:
            of_endpoint = totals.setdefault((desk.route.endpoint.tenant, desk.route.endpoint.name), [0, 0, 0])
            for at, count in enumerate((desk.in_flight, desk.queued, desk.queued_bytes)):
                of_endpoint[at] += count
        for labels, (in_flight, queued, queued_bytes) in totals.items():
            metrics.IN_FLIGHT.labels(*labels).set(in_flight)
            metrics.QUEUED.labels(*labels).set(queued)
            metrics.QUEUED_BYTES.labels(*labels).set(queued_bytes)
