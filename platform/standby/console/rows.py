"""The rows of the console's tables, kept from one moment to the next as long as nothing in them changes.

A row that is the same object as a moment ago is known to be unchanged: a thousand endpoints are compared by a thousand
pointers, and only what changed is written again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from standby.console.silence import SILENT_AFTER_S
from standby.console.slices import sliced
from standby.console.values import EndpointKey, Facts, Row, Traffic
from standby.domain import words
from standby.domain.endpoint import Endpoint
from standby.domain.instance import Instance, Rung
from standby.domain.node import Node

_NO_TRAFFIC = Traffic()
_SILENT = f"silent: nothing heard for {SILENT_AFTER_S:g} s; its instances are not counted, and this is how it was"

Name = TypeVar("Name", bound=Hashable)


def endpoint_row(
    endpoint: Endpoint, instances: Sequence[Instance], traffic: Traffic, saved_usd: float, nodes: Mapping[str, Node]
) -> Row:
    """Return an endpoint's row; ``instances`` are its own, ``nodes`` by name."""
    instances = sorted(instances, key=words.warmth, reverse=True)
    return {
        "tenant": endpoint.tenant,
        "name": endpoint.name,
        "served_name": endpoint.served_name,
        "status": endpoint.status.value,
        "rung": max((item.rung for item in instances), default=Rung.COLD).label,
        "words": words.endpoint_doing(endpoint, instances, nodes),
        "next_retry_at": None if endpoint.failure is None else endpoint.failure.next_retry_at,
        "instances": len(instances),
        "in_flight": traffic.in_flight,
        "queued": traffic.queued,
        "slots": sum(item.slots for item in instances if item.rung is Rung.READY),
        "requests": traffic.requests,
        "errors": traffic.errors,
        "rps": traffic.rps,
        "tokens_per_s": traffic.tokens_per_s,
        "ttft_ms": traffic.ttft_ms._asdict(),
        "resident_bytes": sum(item.resident_bytes for item in instances),
        "spark": list(traffic.spark),
        "saved_usd": saved_usd,
    }


def instance_row(instance: Instance, nodes: Mapping[str, Node]) -> Row:
    """Return an instance's row; ``nodes`` by name."""
    return {
        "id": instance.id,
        "node": instance.node,
        "tenant": instance.tenant,
        "endpoint": instance.endpoint,
        "variant": instance.variant,
        "backend": instance.backend,
        "engine": None if instance.engine is None else instance.engine.value,
        "state": instance.state.value,
        "rung": instance.rung.label,
        "words": words.instance_doing(instance, words.climb_seconds(instance, nodes)),
        "progress": instance.progress,
        "in_flight": instance.in_flight,
        "slots": instance.slots,
        "resident_bytes": instance.resident_bytes,
        "rung_since": instance.rung_since,
        "drain_until": instance.drain_until,
        "next_retry_at": None if instance.failure is None else instance.failure.next_retry_at,
    }


def node_row(node: Node, instances: Sequence[Instance], *, silent: bool = False) -> Row:
    """Return a node's row, for administrators; ``instances`` are those on it, ``silent``: nothing is heard of it any more."""
    return {
        "name": node.name,
        "mode": node.mode.value,
        "silent": silent,
        "words": _SILENT if silent else words.node_doing(node, instances),
        "memory": {**node.memory.model_dump(), "free": node.memory.free},
        "devices": [{**device.model_dump(mode="json"), "memory_free": device.memory_free} for device in node.devices],
        "cache_bytes": node.cache_bytes,
        "cache_capacity": node.cache_capacity,
        "zygotes": {engine.value: zygote.model_dump(mode="json") for engine, zygote in node.zygotes.items()},
        "engines": [engine.value for engine in node.engines],
        "instances": len(instances),
        "in_flight": sum(item.in_flight for item in instances),
        "started_at": node.started_at,
        "version": node.version,
    }


class Shelf(Generic[Name]):
    """Rows by name, with what each was made from."""

    def __init__(self) -> None:
        self.rows: dict[Name, Row] = {}
        self._made_from: dict[Name, tuple[Any, ...]] = {}

    def put(self, name: Name, made_from: tuple[Any, ...], make: Callable[[], Row]) -> Row:
        """Return the row of ``name``: the one from before, unless what it is made from has changed, and it with that."""
        row = self.rows.get(name)
        if row is not None and self._made_from[name] == made_from:
            return row
        made = make()
        self._made_from[name] = made_from
        if row != made:
            row = self.rows[name] = made
        assert row is not None, "made is a row, and no row is equal to it unless there is one"
        return row

    def keep(self, count: int, names: Iterable[Name]) -> None:
        """Forget all others than these ``count``, each of which has been put."""
        if len(self.rows) == count:
            return
        for gone in self.rows.keys() - set(names):
            del self.rows[gone], self._made_from[gone]


@dataclass(frozen=True, slots=True)
class Tables:
    """The rows of the whole platform at one moment: endpoints and instances by tenant, then by name."""

    endpoints: Mapping[str, Mapping[str, Row]]
    instances: Mapping[str, Mapping[str, Row]]
    nodes: Mapping[str, Row]


@dataclass
class Desktop:
    """Makes the tables of each moment from the ones before."""

    _endpoints: Shelf[EndpointKey] = field(default_factory=Shelf)
    _instances: Shelf[str] = field(default_factory=Shelf)
    _nodes: Shelf[str] = field(default_factory=Shelf)

    def lay_out(self, facts: Facts) -> Generator[None, None, Tables]:
        """Return, in slices, the tables of this moment."""
        nodes = {node.name: node for node in facts.nodes}
        of_endpoint: dict[EndpointKey, list[Instance]] = defaultdict(list)
        on_node: dict[str, list[Instance]] = defaultdict(list)
        for item in facts.instances:
            of_endpoint[item.tenant, item.endpoint].append(item)
            on_node[item.node].append(item)
        yield
        endpoints = yield from self._lay_endpoints(facts, of_endpoint, nodes)
        instances = yield from self._lay_instances(facts, nodes)
        return Tables(endpoints, instances, self._lay_nodes(facts, on_node))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _lay_endpoints(
        self, facts: Facts, of_endpoint: Mapping[EndpointKey, list[Instance]], nodes: Mapping[str, Node]
    ) -> Generator[None, None, dict[str, dict[str, Row]]]:
        laid: dict[str, dict[str, Row]] = defaultdict(dict)
        for some in sliced(facts.endpoints):
            for endpoint in some:
                name = (endpoint.tenant, endpoint.name)
                mine = of_endpoint.get(name, [])
                traffic, saved = facts.traffic.get(name, _NO_TRAFFIC), facts.saved_usd.get(name, 0.0)
                climbs = tuple([words.climb_seconds(item, nodes) for item in mine])
                laid[endpoint.tenant][endpoint.name] = self._endpoints.put(
                    name,
                    (endpoint, traffic, saved, climbs, *mine),
                    partial(endpoint_row, endpoint, mine, traffic, saved, nodes),
                )
            yield
        self._endpoints.keep(len(facts.endpoints), ((endpoint.tenant, endpoint.name) for endpoint in facts.endpoints))
        return laid

    def _lay_instances(self, facts: Facts, nodes: Mapping[str, Node]) -> Generator[None, None, dict[str, dict[str, Row]]]:
        laid: dict[str, dict[str, Row]] = defaultdict(dict)
        for some in sliced(facts.instances):
            for item in some:
                laid[item.tenant][item.id] = self._instances.put(
                    item.id,
                    (item, words.climb_seconds(item, nodes)),
                    partial(instance_row, item, nodes),
                )
            yield
        self._instances.keep(len(facts.instances), (item.id for item in facts.instances))
        return laid

    def _lay_nodes(self, facts: Facts, on_node: Mapping[str, list[Instance]]) -> dict[str, Row]:
        laid = {}
        for node in sorted(facts.nodes, key=lambda node: node.name):
            there = on_node.get(node.name, [])
            silent = node.name in facts.silent
            laid[node.name] = self._nodes.put(
                node.name,
                (node, silent, *there),
                partial(node_row, node, there, silent=silent),
            )
        self._nodes.keep(len(laid), laid)
        return laid
