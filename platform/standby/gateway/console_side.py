"""The gateway's side of the console: its copies, counters and desks as facts, sampled once a second while it runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.bus.subjects import ALL_BEATS
from standby.bus.subscription import Subscription
from standby.console import savings
from standby.console.counts import NOTHING, Count, Rates, Windows
from standby.console.feed import Feed
from standby.console.news import Rings
from standby.console.savings import Account, Ledger, Memory
from standby.console.settings import ConsoleSettings
from standby.console.silence import Silence
from standby.console.values import EndpointKey, Facts, Moment, Percentiles, Row, Scope, Traffic
from standby.domain import errors
from standby.domain.endpoint import Endpoint
from standby.domain.errors import BusUnavailable
from standby.domain.instance import Instance, Rung
from standby.domain.names import key
from standby.domain.node import Node
from standby.gateway.accounts import Accounts
from standby.gateway.api.context import Copies
from standby.gateway.desk import Desk
from standby.gateway.other_gateways import Elsewhere, OtherGateways
from standby.host import tasks
from standby.telemetry import metrics, reading

_log = logging.getLogger(__name__)

SAMPLE_S: Final = 1.0
_NOWHERE: Final = Elsewhere()
# What an endpoint has saved changes with every second; its row does so every ten.
SAVED_S: Final = 10.0
REPLAYED: Final = 1000
# Its caller's own doing: no error of the endpoint's.
_NO_ERRORS: Final = frozenset(
    {
        "ok",
        "client_gone",
        "joined",
        "engine_4xx",
        "ValidationError",
        *(kind.code for kind in (errors.InvalidInput, errors.MalformedJson, errors.PayloadTooLarge, errors.EndpointNotFound)),
    }
)


@dataclass
class ConsoleSide:
    """``desks`` are those that had traffic, ``gateway`` is this one's name; ``clock`` is monotonic, ``now`` since the epoch."""

    bus: Bus
    events: EventLog
    copies: Copies
    accounts: Accounts
    desks: Callable[[], Iterable[Desk]]
    gateway: str
    prices: ConsoleSettings
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    feed: Feed = field(init=False)
    _rates: Rates = field(default_factory=Rates)
    _windows: Windows = field(init=False)
    _silence: Silence = field(default_factory=Silence)
    _ledger: Ledger = field(init=False)
    _since: float = field(init=False)
    # Rates and sparklines since the last sample, of those that somebody looked at.
    _flows: dict[EndpointKey, tuple[float, float, tuple[int, ...]]] = field(default_factory=dict)
    _to_measure: set[EndpointKey] = field(default_factory=set)
    # Those that had traffic since the percentiles' window began.
    _busy: set[EndpointKey] = field(default_factory=set)
    _measured: dict[EndpointKey, Percentiles] = field(default_factory=dict)
    _sampled_at: float | None = None
    _counts: dict[EndpointKey, Count] = field(default_factory=dict)
    _saved: tuple[float, dict[EndpointKey, float]] | None = None
    _saved_rows: tuple[float, dict[EndpointKey, Account]] | None = None
    _others: OtherGateways = field(init=False)
    _task: asyncio.Task[None] | None = None
    _following: list[Subscription] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._since = self.now()
        self._windows = Windows(reading.bounds(metrics.TIME_TO_FIRST_TOKEN))
        self._ledger = Ledger(self.prices)
        self._others = OtherGateways(self.gateway, self.clock)
        self.feed = Feed(self.facts, self.saved, Rings(), self.clock)

    async def start(self) -> None:
        """Follow the events, the last ones first, and begin to sample. A bus that is away is no reason not to."""
        self._task = asyncio.create_task(self._run())
        try:
            self._following.append(await self.bus.subscribe(ALL_BEATS, self._others.take))
            self._following.append(await self.events.follow(self.feed.rings.put, replay_last=REPLAYED))
        except BusUnavailable as error:
            _log.warning("the console shows this gateway alone: %s", error)

    async def stop(self) -> None:
        """End both. Idempotent."""
        if self._task is not None:
            await tasks.end([self._task])
            self._task = None
        for subscription in self._following:
            await subscription.unsubscribe()
        self._following.clear()

    def sample(self) -> None:
        """Take down this second's traffic and what was held in it."""
        now = self.clock()
        self.accounts.settle()
        self._counts = self._counted()
        added = self._rates.take(self._counts, now)
        self._flows.clear()
        seconds = 0.0 if self._sampled_at is None else now - self._sampled_at
        self._sampled_at = now
        self._silence.listen(self._nodes().values(), now, connected=self.bus.connected)
        self._ledger.take(self._endpoints(), self._instances(), self._nodes(), added, seconds)
        # Only where there was traffic: a thousand endpoints have forty thousand buckets.
        self._busy.update(added)
        self._to_measure.update(added)
        if self._windows.turn(lambda: _first_tokens(self._busy), now):
            self._to_measure.update(self._busy)
            self._busy.clear()

    def facts(self) -> Facts:
        """Return the platform as this gateway knows it now."""
        away_s = self.bus.disconnected_for()
        moment = Moment(round(self.now(), 3), self._since, f"gateway/{self.gateway}", self.bus.connected, round(away_s))
        endpoints = tuple(self._endpoints())
        return Facts(
            moment,
            endpoints,
            tuple(self._instances()),
            tuple(self._nodes().values()),
            self._traffic(),
            self._saved_by_endpoint(endpoints),
            self._silence.nodes,
        )

    def saved(self, scope: Scope) -> Row:
        """Return what a scope has saved until now."""
        total = self._ledger.total(scope, self._accounts_of(self._endpoints()))
        return savings.row(total, self._since, self.prices)

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_S)

    def _counted(self) -> dict[EndpointKey, Count]:
        """Return the counters of all endpoints that have any, read again where they have grown, and nowhere else.

        Ten thousand endpoints have some hundred thousand of them, which would take a tenth of each second.
        """
        counts = dict(self._counts)
        for gone in counts.keys() - self.accounts.endpoints:
            del counts[gone]
            self._measured.pop(gone, None)
            self._to_measure.discard(gone)
            self._busy.discard(gone)
            self._windows.forget(gone)
        for name, outcomes in self.accounts.moved().items():
            counts[name] = _count(name, outcomes)
        return counts

    def _endpoints(self) -> Iterable[Endpoint]:
        return [entry.value for entry in self.copies.endpoints.entries.values()]

    def _instances(self) -> Iterable[Instance]:
        """Return those that may be there: what is recorded of a node that nobody hears of is held by nobody."""
        silent = self._silence.nodes
        every = (entry.value for entry in self.copies.instances.entries.values())
        return [one for one in every if one.node not in silent]

    def _nodes(self) -> dict[str, Node]:
        return {entry.value.name: entry.value for entry in self.copies.nodes.entries.values()}

    def _traffic(self) -> dict[EndpointKey, Traffic]:
        self._measured.update(self._windows.of(_first_tokens(self._to_measure)))
        self._to_measure.clear()
        busy = self._others.traffic()
        for desk in self.desks():
            name = (desk.route.endpoint.tenant, desk.route.endpoint.name)
            others = busy.get(name, _NOWHERE)
            # A desk's own count has those who wait in it, too.
            running = max(0, desk.in_flight - desk.queued)
            busy[name] = Elsewhere(others.in_flight + running, others.queued + desk.queued, others.rps)
        return {
            name: self._traffic_of(name, busy.get(name, _NOWHERE), self._measured.get(name, NOTHING))
            for name in self._counts.keys() | busy.keys()
        }

    def _traffic_of(self, name: EndpointKey, busy: Elsewhere, first_token: Percentiles) -> Traffic:
        count = self._counts.get(name, Count())
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = (*self._rates.rates(name), self._rates.spark(name))
        rps, tokens_per_s, spark = flow
        return Traffic(
            busy.in_flight,
            busy.queued,
            count.requests,
            count.errors,
            round(rps + busy.rps, 2),
            tokens_per_s,
            first_token,
            spark,
        )

    def _accounts_of(self, endpoints: Iterable[Endpoint]) -> dict[EndpointKey, Account]:
        now = self.clock()
        if self._saved_rows is None or now - self._saved_rows[0] >= SAMPLE_S / 2:
            self._saved_rows = (now, self._ledger.by_endpoint(endpoints, self._guess))
        return self._saved_rows[1]

    def _saved_by_endpoint(self, endpoints: Iterable[Endpoint]) -> dict[EndpointKey, float]:
        now = self.clock()
        if self._saved is None or now - self._saved[0] >= SAVED_S:
            accounts = self._accounts_of(endpoints)
            self._saved = (now, {name: savings.saved_usd(account, self.prices) for name, account in accounts.items()})
        return self._saved[1]

    def _guess(self, endpoint: Endpoint) -> Memory:
        """Return what an endpoint's first variant needs awake: as measured anywhere, else at least its weights."""
        config = self.copies.endpoint_configs.entries.get(key(endpoint.tenant, endpoint.config))
        if config is None or not config.value.variants:
            return Memory()
        model = self.copies.models.entries.get(key(endpoint.tenant, config.value.variants[0].model))
        if model is None:
            return Memory()
        digest, weights = model.value.manifest.digest, model.value.manifest.total_bytes
        nodes = self._nodes().values()
        host = max((node.footprints[digest] for node in nodes if digest in node.footprints), default=weights)
        return Memory(host, max((node.device_footprints.get(digest, 0) for node in nodes), default=0))


def _count(name: EndpointKey, outcomes: Iterable[str]) -> Count:
    """Return what this gateway has counted of one endpoint, whose requests have ended with these ``outcomes``."""
    ended = {one: int(reading.value_of(metrics.REQUESTS, (*name, one))) for one in outcomes if one != "joined"}
    tokens = sum(reading.value_of(metrics.COMPLETION_TOKENS, (*name, estimated)) for estimated in ("0", "1"))
    lasted, waited = (
        sum(reading.sum_of(histogram, (*name, rung.label)) for rung in Rung)
        for histogram in (metrics.DURATION, metrics.QUEUE_WAIT)
    )
    errors = sum(count for one, count in ended.items() if one not in _NO_ERRORS)
    return Count(sum(ended.values()), errors, tokens, max(0.0, lasted - waited))


def _first_tokens(names: Iterable[EndpointKey]) -> dict[EndpointKey, list[float]]:
    """Return the times to the first token, over all rungs; for an endpoint whose answers do not stream, to the first byte."""
    found = {}
    for name in names:
        for histogram in (metrics.TIME_TO_FIRST_TOKEN, metrics.FIRST_BYTE):
            of_rungs = (reading.buckets_of(histogram, (*name, rung.label)) for rung in Rung)
            parts = [counts for counts in of_rungs if counts is not None]
            if parts:
                found[name] = [sum(bucket) for bucket in zip(*parts, strict=True)]
                break
    return found
