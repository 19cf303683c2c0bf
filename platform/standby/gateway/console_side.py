"""The gateway's side of the console: its copies, counters and desks as facts, sampled once a second while it runs."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
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
from standby.console.slices import sliced
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
# What more endpoints than these have saved is reckoned by turns: of each of them within SAVED_S.
AT_ONCE: Final = 1000
_TURNS: Final = 10
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
    # What was told last of each endpoint, and of which it may not be true any more. Who has something under way is looked at
    # each time.
    _told: dict[EndpointKey, Traffic] = field(default_factory=dict)
    _stale: set[EndpointKey] = field(default_factory=set)
    _were_busy: frozenset[EndpointKey] = frozenset()
    _to_measure: set[EndpointKey] = field(default_factory=set)
    # Those that had traffic since the percentiles' window began.
    _busy: set[EndpointKey] = field(default_factory=set)
    _measured: dict[EndpointKey, Percentiles] = field(default_factory=dict)
    _sampled_at: float | None = None
    _counts: dict[EndpointKey, Count] = field(default_factory=dict)
    _saved: dict[EndpointKey, float] = field(default_factory=dict)
    _saved_at: float = -math.inf
    _reckoned: dict[EndpointKey, Account] = field(default_factory=dict)
    _reckoned_at: float = -math.inf
    _turn: int = 0
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

    def sample(self) -> Generator[None, None, None]:
        """Take down, in slices, this second's traffic and what was held in it."""
        now = self.clock()
        self.accounts.settle()
        grown = self._counted()
        self._stale.update(grown, self._rates.lively)
        added = self._rates.take(grown, now)
        self._stale.update(self._rates.lively)
        seconds = 0.0 if self._sampled_at is None else now - self._sampled_at
        self._sampled_at = now
        self._silence.listen(self._nodes().values(), now, connected=self.bus.connected)
        yield
        endpoints = self._endpoints()
        if len(endpoints) > AT_ONCE:
            self._turn = (self._turn + 1) % _TURNS
            self._reckon(endpoints[self._turn :: _TURNS], endpoints, shown=True)
            yield
        yield from self._ledger.take(endpoints, self._instances(), self._nodes(), added, seconds)
        # Only where there was traffic: a thousand endpoints have forty thousand buckets.
        self._busy.update(added)
        self._to_measure.update(added)
        if self._windows.turn(lambda: _first_tokens(self._busy), now):
            self._to_measure.update(self._busy)
            self._busy.clear()

    def facts(self) -> Generator[None, None, Facts]:
        """Return, in slices, the platform as this gateway knows it now."""
        yield from self._measure()
        traffic = yield from self._traffic()
        away_s = self.bus.disconnected_for()
        moment = Moment(round(self.now(), 3), self._since, f"gateway/{self.gateway}", self.bus.connected, round(away_s))
        endpoints = tuple(self._endpoints())
        self._reckon_few(endpoints)
        return Facts(
            moment,
            endpoints,
            tuple(self._instances()),
            tuple(self._nodes().values()),
            traffic,
            dict(self._saved),
            self._silence.nodes,
        )

    def lost_nodes(self) -> frozenset[str]:
        """Return the nodes of which nothing was heard for so long that what they have recorded counts no more."""
        return self._silence.nodes

    def saved(self, scope: Scope) -> Row:
        """Return what a scope has saved until now."""
        self._reckon_few(self._endpoints())
        return savings.row(self._ledger.total(scope, self._reckoned), self._since, self.prices)

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await tasks.by_turns(self.sample(), self.clock)
            await asyncio.sleep(SAMPLE_S)

    def _counted(self) -> dict[EndpointKey, Count]:
        """Read the counters again of those that have grown, and of nobody else, and return them.

        Ten thousand endpoints have some hundred thousand of them, which would take a tenth of each second.
        """
        for gone in self._counts.keys() - self.accounts.endpoints:
            del self._counts[gone]
            for kept in (self._measured, self._told):
                kept.pop(gone, None)
            for marked in (self._to_measure, self._busy, self._stale):
                marked.discard(gone)
            self._windows.forget(gone)
            self._rates.forget(gone)
        grown = {name: _count(name, outcomes) for name, outcomes in self.accounts.moved().items()}
        self._counts.update(grown)
        return grown

    def _endpoints(self) -> Sequence[Endpoint]:
        return [entry.value for entry in self.copies.endpoints.entries.values()]

    def _instances(self) -> Sequence[Instance]:
        """Return those that may be there: what is recorded of a node that nobody hears of is held by nobody."""
        silent = self._silence.nodes
        every = (entry.value for entry in self.copies.instances.entries.values())
        return [one for one in every if one.node not in silent]

    def _nodes(self) -> dict[str, Node]:
        return {entry.value.name: entry.value for entry in self.copies.nodes.entries.values()}

    def _measure(self) -> Generator[None, None, None]:
        for some in sliced(tuple(self._to_measure)):
            self._to_measure.difference_update(some)
            self._measured.update(self._windows.of(_first_tokens(some)))
            self._stale.update(some)
            yield

    def _traffic(self) -> Generator[None, None, dict[EndpointKey, Traffic]]:
        """Return the traffic of whoever has had any: made anew only where it may have changed."""
        busy = self._under_way()
        self._stale.update(busy, self._were_busy)
        self._were_busy = frozenset(busy)
        for some in sliced(tuple(self._stale)):
            # Before: what moves between two slices is looked at the next time.
            self._stale.difference_update(some)
            for name in some:
                if name in self._counts or name in busy:
                    self._told[name] = self._traffic_of(name, busy.get(name, _NOWHERE), self._measured.get(name, NOTHING))
                else:
                    self._told.pop(name, None)
            yield
        return dict(self._told)

    def _under_way(self) -> dict[EndpointKey, Elsewhere]:
        """Return what all gateways have under way, of those that have anything."""
        busy = self._others.traffic()
        for desk in self.desks():
            in_flight, queued = desk.in_flight, desk.queued
            if in_flight or queued:
                name = (desk.route.endpoint.tenant, desk.route.endpoint.name)
                others = busy.get(name, _NOWHERE)
                # A desk's own count has those who wait in it, too.
                running = max(0, in_flight - queued)
                busy[name] = Elsewhere(others.in_flight + running, others.queued + queued, others.rps)
        return busy

    def _traffic_of(self, name: EndpointKey, busy: Elsewhere, first_token: Percentiles) -> Traffic:
        count = self._counts.get(name, Count())
        rps, tokens_per_s = self._rates.rates(name)
        return Traffic(
            busy.in_flight,
            busy.queued,
            count.requests,
            count.errors,
            round(rps + busy.rps, 2),
            tokens_per_s,
            first_token,
            self._rates.spark(name),
        )

    def _reckon_few(self, endpoints: Sequence[Endpoint]) -> None:
        """Bring what was saved up to date; of many endpoints the sampler does so by turns, so that the loop is not held."""
        now = self.clock()
        if len(endpoints) <= AT_ONCE and now - self._reckoned_at >= SAMPLE_S / 2:
            self._reckoned_at = now
            shown = now - self._saved_at >= SAVED_S
            self._saved_at = now if shown else self._saved_at
            self._reckon(endpoints, endpoints, shown=shown)

    def _reckon(self, some: Sequence[Endpoint], every: Sequence[Endpoint], *, shown: bool) -> None:
        fresh = self._ledger.by_endpoint(some, self._guess)
        self._reckoned.update(fresh)
        if shown:
            self._saved.update({name: savings.saved_usd(account, self.prices) for name, account in fresh.items()})
        if len(self._reckoned) > len(every):
            there = {(endpoint.tenant, endpoint.name) for endpoint in every}
            for kept in (self._reckoned, self._saved):
                for gone in kept.keys() - there:
                    del kept[gone]

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
