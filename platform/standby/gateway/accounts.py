"""Accounting of one endpoint's requests: metric children looked up once, not for each request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Counter, Histogram

from standby.domain.instance import Rung
from standby.gateway.desk import Desk
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
)


@dataclass(slots=True)
class Account:
    """The metric children of one endpoint."""

    tenant: str
    endpoint: str
    closed: bool = False
    _outcomes: dict[str, Counter] = field(default_factory=dict)
    _times: dict[tuple[int, Rung], Histogram] = field(default_factory=dict)

    def ended(self, outcome: str) -> None:
        """Count a request by how it ended."""
        if self.closed:
            return
        child = self._outcomes.get(outcome)
        if child is None:
            child = self._outcomes[outcome] = metrics.REQUESTS.labels(self.tenant, self.endpoint, outcome)
        child.inc()

    def waited(self, seconds: float, rung: Rung) -> None:
        """Note the time from arrival to dispatch."""
        self._observe(metrics.QUEUE_WAIT, seconds, rung)

    def first_byte(self, seconds: float, rung: Rung) -> None:
        """Note the time from arrival to the first byte of the answer."""
        self._observe(metrics.FIRST_BYTE, seconds, rung)

    def lasted(self, seconds: float, rung: Rung) -> None:
        """Note the time from arrival to the last byte."""
        self._observe(metrics.DURATION, seconds, rung)

    def _observe(self, histogram: Histogram, seconds: float, rung: Rung) -> None:
        if self.closed:
            return
        child = self._times.get((id(histogram), rung))
        if child is None:
            child = histogram.labels(self.tenant, self.endpoint, rung.label)
            self._times[id(histogram), rung] = child
        child.observe(seconds)


@dataclass
class Accounts:
    """The accounts of all endpoints that had traffic; what belongs to none of them is counted as ``other``."""

    _accounts: dict[tuple[str, str], Account] = field(default_factory=dict)
    nobody: Account = field(default_factory=lambda: Account(OTHER, OTHER))

    def of(self, desk: Desk) -> Account:
        """Return the endpoint's account; what ends after its deletion belongs to nobody."""
        if desk.closed:
            return self.nobody
        endpoint = desk.route.endpoint
        account = self._accounts.get((endpoint.tenant, endpoint.name))
        if account is None:
            account = self._accounts[endpoint.tenant, endpoint.name] = Account(endpoint.tenant, endpoint.name)
        return account

    def close(self, desk: Desk) -> None:
        """Forget a deleted endpoint's account and all its series: names come and go, and each has dozens of series."""
        endpoint = desk.route.endpoint
        account = self._accounts.pop((endpoint.tenant, endpoint.name), None)
        if account is not None:
            account.closed = True
        for metric in _OF_ENDPOINTS:
            metric.remove_by_labels({"tenant": endpoint.tenant, "endpoint": endpoint.name})

    def refresh(self, desks: Iterable[Desk]) -> None:
        """Set the gauges from the desks; called when somebody scrapes."""
        for desk in desks:
            labels = (desk.route.endpoint.tenant, desk.route.endpoint.name)
            metrics.IN_FLIGHT.labels(*labels).set(desk.in_flight)
            metrics.QUEUED.labels(*labels).set(desk.queued)
            metrics.QUEUED_BYTES.labels(*labels).set(desk.queued_bytes)
