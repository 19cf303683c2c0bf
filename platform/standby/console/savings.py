"""What was held so far, against the same endpoints always on, and against SageMaker Serverless's published price.

One loop feeds a ledger with the instances as they are; all else is reckoned when somebody looks. GB are 10^9 bytes, but for
SageMaker's memory sizes, which are whole GB of 2^30 bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from standby.console.counts import Count
from standby.console.settings import ConsoleSettings
from standby.console.slices import sliced
from standby.console.values import EndpointKey, Row, Scope
from standby.domain.endpoint import Endpoint
from standby.domain.instance import HAS_PROCESS, Instance, InstanceState, Rung
from standby.domain.node import DeviceKind, Node

GB: Final = 1e9
HOUR_S: Final = 3600.0
SERVERLESS_GB: Final = 2**30
WORDS: Final = (
    "Counted since this gateway began. Held: bytes that instances hold (host memory as the system measures it; device "
    "memory as their node measured it of an awake one) times seconds; page cache and zygotes, which many share, are not in "
    "it. Always on: each endpoint's awake footprint times its age times the most instances it had ready at once, at least "
    "one. Dollars for both are by prices of memory that are assumptions, which you can set. SageMaker Serverless: the "
    "published price per GB and second, for the memory size that fits the footprint (above its largest, 6 GB, what would be "
    "needed) and the seconds that engines worked on requests through this gateway alone; no cold starts, no data transfer, "
    "no provisioned concurrency."
)


class Memory(NamedTuple):
    """Bytes, or bytes times seconds, of both kinds."""

    host: float = 0.0
    device: float = 0.0

    def plus(self, other: Memory, times: float = 1.0) -> Memory:
        """Return the sum of this and ``times`` the other one."""
        return Memory(self.host + other.host * times, self.device + other.device * times)

    def usd(self, prices: ConsoleSettings) -> float:
        """Return what as many bytes times seconds cost."""
        return (self.host * prices.usd_host_gb_hour + self.device * prices.usd_device_gb_hour) / (GB * HOUR_S)


_NONE: Final = Memory()


class Account(NamedTuple):
    """One endpoint's, or of several added up: bytes times seconds, and dollars."""

    held: Memory = _NONE
    always_on: Memory = _NONE
    serverless_usd: float = 0.0

    def plus(self, other: Account) -> Account:
        """Return the sum."""
        return Account(
            self.held.plus(other.held),
            self.always_on.plus(other.always_on),
            self.serverless_usd + other.serverless_usd,
        )


@dataclass(slots=True)
class _Entry:
    """One endpoint's: since when it is there, by the ledger's own time; ``peak``: the most instances ready at once."""

    began_s: float
    held: Memory = _NONE
    awake: Memory = _NONE
    peak: int = 0
    busy_s: float = 0.0


# What the endpoint's model needs awake where none of its instances was seen so: bytes of host and device memory.
Guess = Callable[[Endpoint], Memory]


@dataclass
class Ledger:
    """Who feeds it says how many seconds have passed; ``prices`` are the deployment's."""

    prices: ConsoleSettings
    _lasted_s: float = 0.0
    _entries: dict[EndpointKey, _Entry] = field(default_factory=dict)
    _past: dict[str, Account] = field(default_factory=dict)
    _guessed: dict[EndpointKey, Memory] = field(default_factory=dict)

    def take(
        self,
        endpoints: Iterable[Endpoint],
        instances: Sequence[Instance],
        nodes: Mapping[str, Node],
        added: Mapping[EndpointKey, Count],
        seconds: float,
    ) -> Generator[None, None, None]:
        """Take down, in slices, what was held for the last ``seconds``; ``added`` is the traffic in them."""
        there = {(endpoint.tenant, endpoint.name) for endpoint in endpoints}
        for name in there - self._entries.keys():
            self._entries[name] = _Entry(self._lasted_s)
        self._lasted_s += seconds
        ready: Counter[EndpointKey] = Counter()
        yield
        for some in sliced(instances):
            for item in some:
                self._hold(item, memory_of(item, nodes), seconds)
                where = (item.tenant, item.endpoint)
                if item.rung is Rung.READY:
                    ready[where] += 1
                there.add(where)
            yield
        for name, count in ready.items():
            self._entries[name].peak = max(self._entries[name].peak, count)
        for name, fresh in added.items():
            if (entry := self._entries.get(name)) is not None:
                entry.busy_s += fresh.busy_s
        if len(self._entries) != len(there):
            self._close(self._entries.keys() - there)

    def by_endpoint(self, endpoints: Iterable[Endpoint], guess: Guess) -> dict[EndpointKey, Account]:
        """Return the accounts of the endpoints that there are."""
        found = {}
        for endpoint in endpoints:
            name = (endpoint.tenant, endpoint.name)
            entry = self._entries.get(name)
            if entry is None:
                continue
            if not entry.awake.host:
                self._guessed[name] = guess(endpoint)
            found[name] = self._account(name, entry)
        return found

    def total(self, scope: Scope, accounts: Mapping[EndpointKey, Account]) -> Account:
        """Return a scope's sum, of what it had before as well; of ``accounts`` those that are open still."""
        held_host = held_device = on_host = on_device = usd = 0.0
        # Plain numbers: ten thousand accounts are added up each second that somebody watches.
        for name, ((host, device), (always_host, always_device), serverless_usd) in accounts.items():
            if name in self._entries and scope.tenant in ("", name[0]):
                held_host, held_device = held_host + host, held_device + device
                on_host, on_device = on_host + always_host, on_device + always_device
                usd += serverless_usd
        sum_ = Account(Memory(held_host, held_device), Memory(on_host, on_device), usd)
        for tenant, account in self._past.items():
            if scope.tenant in ("", tenant):
                sum_ = sum_.plus(account)
        return sum_

    # ---- inside ------------------------------------------------------------------------------------------------

    def _hold(self, item: Instance, memory: Memory, seconds: float) -> None:
        # What is held for an endpoint that was deleted is its tenant's all the same.
        entry = self._entries.get((item.tenant, item.endpoint))
        if entry is None:
            entry = self._entries[item.tenant, item.endpoint] = _Entry(self._lasted_s)
        entry.held = entry.held.plus(memory, seconds)
        if item.rung is Rung.READY:
            entry.awake = Memory(max(entry.awake.host, memory.host), max(entry.awake.device, memory.device))

    def _account(self, name: EndpointKey, entry: _Entry) -> Account:
        awake = entry.awake if entry.awake.host else self._guessed.get(name, _NONE)
        always_on = _NONE.plus(awake, (self._lasted_s - entry.began_s) * max(1, entry.peak))
        return Account(entry.held, always_on, entry.busy_s * serverless_size(awake) * self.prices.usd_serverless_gb_second)

    def _close(self, gone: Iterable[EndpointKey]) -> None:
        for name in list(gone):
            account = self._account(name, self._entries.pop(name))
            self._guessed.pop(name, None)
            self._past[name[0]] = self._past.get(name[0], Account()).plus(account)


def memory_of(instance: Instance, nodes: Mapping[str, Node]) -> Memory:
    """Return what an instance holds now; device memory as its node measured it of an awake one, none while it sleeps."""
    node = nodes.get(instance.node)
    awake = instance.state in HAS_PROCESS and instance.state is not InstanceState.ASLEEP
    if node is None or instance.engine is None or not awake:
        return Memory(instance.resident_bytes)
    on_device = node.engine_devices.get(instance.engine, DeviceKind.CPU) is not DeviceKind.CPU
    return Memory(instance.resident_bytes, node.device_footprints.get(instance.model_digest, 0) if on_device else 0)


def serverless_size(awake: Memory) -> int:
    """Return SageMaker's memory size, in GB, for a model of this footprint; beyond its largest, 6, what is needed."""
    return max(1, math.ceil((awake.host + awake.device) / SERVERLESS_GB))


def row(account: Account, since: float, prices: ConsoleSettings) -> Row:
    """Return savings as the console shows them."""
    held, always_on = sum(account.held) / GB, sum(account.always_on) / GB
    held_usd, always_on_usd = account.held.usd(prices), account.always_on.usd(prices)
    return {
        "since": since,
        "held_gb_s": round(held, 3),
        "held_device_gb_s": round(account.held.device / GB, 3),
        "always_on_gb_s": round(always_on, 3),
        "saved_gb_s": round(always_on - held, 3),
        "held_usd": round(held_usd, 9),
        "always_on_usd": round(always_on_usd, 9),
        "saved_usd": round(always_on_usd - held_usd, 9),
        "sagemaker_serverless_usd": round(account.serverless_usd, 9),
        "prices": {f"STANDBY_{name.upper()}": value for name, value in prices.model_dump().items()},
        "words": WORDS,
    }


def saved_usd(account: Account, prices: ConsoleSettings) -> float:
    """Return what one endpoint has saved, so roundly that its row does not change with every second."""
    saved = account.always_on.usd(prices) - account.held.usd(prices)
    if abs(saved) < 1e-4:
        return 0.0
    return round(saved, max(0, min(4, 2 - math.floor(math.log10(abs(saved))))))
