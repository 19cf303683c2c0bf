"""The controller's knowledge: mirrors of the tables, its own writes on top of them, and the clocks it has anchored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from standby.bus.connection import Bus
from standby.bus.mirror import Mirror
from standby.bus.tables import Entry
from standby.bus.tables_set import Tables
from standby.controller.demand import DemandBook
from standby.controller.economy import Economy
from standby.controller.market import Market
from standby.controller.placement import memory_need
from standby.controller.view import (
    ClusterView,
    EndpointView,
    ObservedInstance,
    ObservedNode,
    ObservedStatus,
    Placed,
    observe_instance,
    observe_node,
    observe_status,
    offer,
)
from standby.domain.assignment import Assignment
from standby.domain.endpoint import Endpoint, EndpointConfig
from standby.domain.instance import Instance, Rung
from standby.domain.model import Model
from standby.domain.names import key
from standby.domain.node import Node
from standby.domain.prices import NodePrices
from standby.domain.serving import labels_of

EVERYTHING: Final = None
_SHORTEST_MEMORY_S: Final = 15.0
_NEVER_SEEN: Final = ObservedStatus()


@dataclass(slots=True)
class _Assigned:
    value: Assignment
    revision: int
    since: float


class ClusterState:
    """Owned by the controller's one event loop.

    ``changed(endpoint)`` is called when something was learned that may change a decision for that endpoint
    (``tenant.name``); with None when it may change any. Own writes are noted at once (``wrote_…``): the mirror's echo
    comes later.
    """

    def __init__(
        self,
        bus: Bus,
        tables: Tables,
        book: DemandBook,
        changed: Callable[[str | None], None],
        clock: Callable[[], float],
        economy: Economy | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._bus = bus
        self._book = book
        self._changed = changed
        self._clock = clock
        self._wall = wall
        self._isolating: set[str] = set()
        self._market = Market(economy or Economy())
        self._assigned: dict[str, _Assigned] = {}
        self._by_endpoint: dict[str, set[str]] = {}
        self._untaken: set[str] = set()
        self._removed: set[str] = set()
        self._behind: set[str] = set()
        self._newest_epoch = 0
        self._instances: dict[str, ObservedInstance] = {}
        self._instances_of: dict[str, set[str]] = {}
        self._nodes: dict[str, ObservedNode] = {}
        self._status: dict[str, ObservedStatus] = {}
        self._own_endpoints: dict[str, Entry[Endpoint]] = {}
        self._dropped_endpoints: dict[str, int] = {}
        self.endpoints: Mirror[Endpoint] = Mirror(tables.endpoints, self._on_endpoint)
        self.configs: Mirror[EndpointConfig] = Mirror(tables.endpoint_configs, self._on_config)
        self.models: Mirror[Model] = Mirror(tables.models, self._on_any)
        self.assignments: Mirror[Assignment] = Mirror(tables.assignments, self._on_assignment)
        self.instances: Mirror[Instance] = Mirror(tables.instances, self._on_instance)
        self.nodes: Mirror[Node] = Mirror(tables.nodes, self._on_node)
        self.prices: Mirror[NodePrices] = Mirror(tables.prices, self._on_prices)

    # ---- following the tables --------------------------------------------------------------------------

    async def start(self) -> None:
        """Return when every table has been read completely. Raises BusUnavailable."""
        for mirror in self._mirrors().values():
            await mirror.start()

    async def stop(self) -> None:
        """End all mirrors."""
        for mirror in self._mirrors().values():
            await mirror.stop()

    async def refresh(self) -> None:
        """Read every table anew and forget what only we believed. Raises BusUnavailable; then nothing was forgotten."""
        await asyncio.gather(*(mirror.refresh() for mirror in self._mirrors().values()))
        self._removed.clear()
        self._dropped_endpoints.clear()
        self._own_endpoints.clear()
        for name, entry in self.assignments.entries.items():
            self._note_assignment(name, entry.value, entry.revision)
        for name in self._assigned.keys() - self.assignments.entries.keys():
            self._forget_assignment(name)

    def staleness(self) -> dict[str, float]:
        """Return for each table the seconds since the local copy was last confirmed."""
        now = self._clock()
        return {name: mirror.staleness(now) for name, mirror in self._mirrors().items()}

    def _mirrors(self) -> dict[str, Mirror[Any]]:
        return {
            "nodes": self.nodes,
            "prices": self.prices,
            "models": self.models,
            "endpoint_configs": self.configs,
            "endpoints": self.endpoints,
            "assignments": self.assignments,
            "instances": self.instances,
        }

    def _on_any(self, _name: str, _before: object, _after: object) -> None:
        self._changed(EVERYTHING)

    def _on_config(self, name: str, _before: object, after: Entry[EndpointConfig] | None) -> None:
        alone = after is not None and any(variant.policy.isolate for variant in after.value.variants)
        (self._isolating.add if alone else self._isolating.discard)(name)
        self._changed(EVERYTHING)

    def _on_endpoint(self, name: str, _before: Entry[Endpoint] | None, after: Entry[Endpoint] | None) -> None:
        if after is None:
            self._own_endpoints.pop(name, None)
            self._dropped_endpoints.pop(name, None)
            self._status.pop(name, None)
            self._changed(EVERYTHING)
            return
        self._see_status(name, after.value)
        self._changed(name)

    def _on_assignment(self, name: str, _before: Entry[Assignment] | None, after: Entry[Assignment] | None) -> None:
        if after is None:
            self._removed.discard(name)
            if name in self._assigned:
                owner = self._owner(name)
                self._forget_assignment(name)
                self._changed(owner)
        elif name not in self._removed and self._note_assignment(name, after.value, after.revision):
            self._changed(self._owner(name))

    def _on_instance(self, name: str, _before: Entry[Instance] | None, after: Entry[Instance] | None) -> None:
        if after is None:
            gone = self._instances.pop(name, None)
            self._track(name)
            if gone is not None:
                owner = key(gone.record.tenant, gone.record.endpoint)
                members = self._instances_of.get(owner, set())
                members.discard(name)
                if not members:
                    self._instances_of.pop(owner, None)
                self._changed(owner)
            return
        owner = key(after.value.tenant, after.value.endpoint)
        self._instances[name] = observe_instance(self._instances.get(name), after.value, self._clock())
        self._instances_of.setdefault(owner, set()).add(name)
        self._check_taken(name)
        self._track(name)
        self._changed(owner)

    def _on_node(self, name: str, _before: Entry[Node] | None, after: Entry[Node] | None) -> None:
        if after is None:
            self._nodes.pop(name, None)
            self._changed(EVERYTHING)
            return
        now = self._clock()
        before = self._nodes.get(name)
        seen = self._nodes[name] = observe_node(before, after.value, now)
        if before is None or not before.alive(now) or offer(before.record) != offer(seen.record):
            self._changed(EVERYTHING)

    def _on_prices(self, name: str, _before: object, after: Entry[NodePrices] | None) -> None:
        self._market.measured(name, None if after is None else after.value)
        prefix = f"{name}."
        for owner in {self._owner(one) for one in self._assigned if one.startswith(prefix)}:
            self._changed(owner)

    # ---- own writes ------------------------------------------------------------------------------------

    def wrote_assignment(self, name: str, value: Assignment, revision: int) -> None:
        """Note an assignment that we have written or read at ``revision``."""
        self._removed.discard(name)
        self._note_assignment(name, value, revision)

    def removed_assignment(self, name: str) -> None:
        """Note that we have removed an assignment, so that a late echo of its last value does not revive it."""
        if name in self.assignments.entries:  # else the removal's own echo has come before its receipt, and nothing is late
            self._removed.add(name)
        self._forget_assignment(name)

    def wrote_endpoint(self, entry: Entry[Endpoint]) -> None:
        """Note an endpoint record that we have written or read."""
        self._own_endpoints[entry.key] = entry
        self._see_status(entry.key, entry.value)

    def dropped_endpoint(self, name: str, revision: int) -> None:
        """Note that we have removed an endpoint's record, which was at ``revision``."""
        self._own_endpoints.pop(name, None)
        if name in self.endpoints.entries:
            self._dropped_endpoints[name] = revision

    def assignment(self, name: str) -> Entry[Assignment] | None:
        """Return the newest known value of an assignment."""
        known = self._assigned.get(name)
        return None if known is None else Entry(name, known.value, known.revision)

    def assignment_entries(self) -> list[Entry[Assignment]]:
        """Return every assignment."""
        return [Entry(name, known.value, known.revision) for name, known in self._assigned.items()]

    def endpoint(self, name: str) -> Entry[Endpoint] | None:
        """Return the newest known record of an endpoint: our own write, or what the mirror has."""
        entry, own = self.endpoints.entries.get(name), self._own_endpoints.get(name)
        if own is not None and (entry is None or own.revision > entry.revision):
            entry = own
        elif own is not None:
            del self._own_endpoints[name]
        if entry is not None and entry.revision <= self._dropped_endpoints.get(name, 0):
            return None
        return entry

    @property
    def behind(self) -> bool:
        """Whether some assignment bears an older epoch than another: nodes that saw the newer one ignore it.

        A former leader's last write may land after its successor has read and stamped everything.
        """
        return bool(self._behind)

    def highest_epoch(self) -> int:
        """Return the highest leader epoch that any assignment bears."""
        return max((known.value.leader_epoch for known in self._assigned.values()), default=0)

    # ---- views -----------------------------------------------------------------------------------------

    def view(self, endpoints: Iterable[str] | None = None) -> ClusterView:
        """Return the view of everything, or of the named endpoints (``tenant.name``) alone."""
        names = list(self.endpoints.entries) if endpoints is None else list(endpoints)
        views: dict[str, EndpointView] = {}
        for name in names:
            entry = self.endpoint(name)
            if entry is not None:
                views[name] = self._endpoint_view(name, entry)
        orphans = () if endpoints is not None else self._orphans()
        return ClusterView(
            endpoints=views,
            nodes=dict(self._nodes),
            orphans=orphans,
            promised=self._promised(),
            residents=self._residents(),
            wall_offset=self._wall() - self._clock(),
            economy=self._market.economy(self._nodes, self._instances),
            assignment_count=len(self._assigned),
            registry_empty=not self.endpoints.entries,
            connected=self._bus.connected,
        )

    def _endpoint_view(self, name: str, entry: Entry[Endpoint]) -> EndpointView:
        record = entry.value
        config = self._config(record.tenant, record.config)
        pending = None if record.pending_config is None else self._config(record.tenant, record.pending_config)
        variants = [variant for one in (config, pending) if one is not None for variant in one.variants]
        models: dict[str, Model] = {}
        for variant in variants:
            model = self.models.entries.get(key(record.tenant, variant.model))
            if model is not None:
                models[variant.model] = model.value
        capacities = (*record.capacities.values(), *record.pending_capacities.values())
        windows = [v.policy.scale_in_after for v in variants] + [c.scale_in_after or 0.0 for c in capacities]
        self._book.keep_window(name, max([_SHORTEST_MEMORY_S, *windows]))
        seen = self._status.get(name, _NEVER_SEEN)
        return EndpointView(
            key=name,
            record=record,
            revision=entry.revision,
            config=config,
            pending=pending,
            models=models,
            demand=self._book.demand(name),
            demands=self._book.by_variant(name, dict.fromkeys(label for v in variants for label in labels_of(v))),
            placed=tuple(self._placed(one) for one in sorted(self._by_endpoint.get(name, ()))),
            status_at=seen.status_at,
            failure_at=seen.failure_at,
            pending_at=seen.pending_at,
            leftover_nodes=tuple(sorted({self._instances[i].record.node for i in self._instances_of.get(name, ())})),
        )

    def _config(self, tenant: str, name: str) -> EndpointConfig | None:
        entry = self.configs.entries.get(key(tenant, name))
        return None if entry is None else entry.value

    def _placed(self, name: str) -> Placed:
        known = self._assigned[name]
        return Placed(name, known.value, known.revision, known.since, self._instances.get(name))

    def _orphans(self) -> tuple[Placed, ...]:
        # an endpoint whose record we dropped ourselves has no assignment left, so it cannot appear here
        owners = [owner for owner in self._by_endpoint if self.endpoint(owner) is None]
        return tuple(self._placed(name) for owner in owners for name in sorted(self._by_endpoint[owner]))

    def _promised(self) -> dict[str, int]:
        promised: dict[str, int] = {}
        for name in self._untaken:
            wanted = self._assigned[name].value
            if wanted.rung is Rung.READY:
                need = memory_need(wanted.memory_mb, wanted.model, self._nodes.get(wanted.node))
                promised[wanted.node] = promised.get(wanted.node, 0) + need
        return promised

    def _residents(self) -> dict[str, dict[str, bool]]:
        """Return by node the tenants that have something there, and whether one wants it for itself; {} where none does."""
        if not self._isolating:
            return {}
        found: dict[str, dict[str, bool]] = {}
        for owner, names in self._by_endpoint.items():
            entry = self.endpoint(owner)
            alone = entry is not None and key(entry.value.tenant, entry.value.config) in self._isolating
            for name in names:
                there = found.setdefault(self._assigned[name].value.node, {})
                tenant = self._assigned[name].value.tenant
                there[tenant] = there.get(tenant, False) or alone
        return found

    # ---- inside ----------------------------------------------------------------------------------------

    def _track(self, name: str) -> None:
        known = self._assigned.get(name)
        if self._market.track(name, None if known is None else known.value, self._instances.get(name)):
            for other in self._market.ahead:
                self._changed(self._owner(other))

    def _owner(self, name: str) -> str:
        value = self._assigned[name].value
        return key(value.tenant, value.endpoint)

    def _note_assignment(self, name: str, value: Assignment, revision: int) -> bool:
        known = self._assigned.get(name)
        if known is None:
            self._assigned[name] = _Assigned(value, revision, self._clock())
            self._by_endpoint.setdefault(key(value.tenant, value.endpoint), set()).add(name)
        elif revision > known.revision:
            known.value, known.revision = value, revision
        else:
            return False
        self._newest_epoch = max(self._newest_epoch, value.leader_epoch)
        (self._behind.add if value.leader_epoch < self._newest_epoch else self._behind.discard)(name)
        self._untaken.add(name)
        self._check_taken(name)
        self._track(name)
        return True

    def _forget_assignment(self, name: str) -> None:
        known = self._assigned.pop(name, None)
        self._untaken.discard(name)
        self._behind.discard(name)
        self._track(name)
        if known is None:
            return
        owner = key(known.value.tenant, known.value.endpoint)
        members = self._by_endpoint.get(owner, set())
        members.discard(name)
        if not members:
            self._by_endpoint.pop(owner, None)

    def _check_taken(self, name: str) -> None:
        known, seen = self._assigned.get(name), self._instances.get(name)
        if known is not None and seen is not None and seen.record.assignment_intent == known.value.intent:
            self._untaken.discard(name)

    def _see_status(self, name: str, record: Endpoint) -> None:
        self._status[name] = observe_status(self._status.get(name), record, self._clock())
