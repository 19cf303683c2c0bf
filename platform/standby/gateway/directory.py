"""The gateway's local directory: keys, models, endpoints and ready instances, kept up to date by mirrors of the tables.

A warm request is resolved from here alone, so that it is served while the bus is away. The directory also owns the
desks, one for each endpoint that had traffic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from standby.bus.mirror import Mirror
from standby.bus.tables import Entry
from standby.bus.tables_set import Tables
from standby.domain.access import ApiKey
from standby.domain.endpoint import Endpoint, EndpointConfig, EndpointStatus
from standby.domain.errors import EndpointNotFound, ModelNotFound
from standby.domain.instance import Instance
from standby.domain.model import Model
from standby.domain.node import Node
from standby.domain.prices import NodePrices
from standby.gateway.desk import AllRooms, Desk, Route
from standby.gateway.keys import KeyRing

_log = logging.getLogger(__name__)

EndpointKey = tuple[str, str]


@dataclass(slots=True)
class _Known:
    """An instance record and when this gateway first heard of its epoch."""

    record: Instance
    seen: float


@dataclass
class Directory:
    """``monotonic`` and ``wall`` are clocks in seconds; ``on_demand`` hears of every change of a desk's counts."""

    tables: Tables
    rooms: AllRooms
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    on_demand: Callable[[Desk, bool], None]
    on_desk_closed: Callable[[Desk], None] = lambda _desk: None
    _desks: dict[EndpointKey, Desk] = field(default_factory=dict)
    _instances: dict[EndpointKey, dict[str, _Known]] = field(default_factory=dict)
    _served: dict[EndpointKey, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.key_mirror = Mirror(self.tables.keys)
        self.keys = KeyRing(self.key_mirror)
        self.models = Mirror(self.tables.models)
        self.configs = Mirror(self.tables.endpoint_configs, self._config_changed)
        self.endpoints = Mirror(self.tables.endpoints, self._endpoint_changed)
        self.instances = Mirror(self.tables.instances, self._instance_changed)
        self.nodes = Mirror(self.tables.nodes)
        self.prices = Mirror(self.tables.prices)

    @property
    def mirrors(
        self,
    ) -> Mapping[
        str,
        Mirror[ApiKey]
        | Mirror[Model]
        | Mirror[EndpointConfig]
        | Mirror[Endpoint]
        | Mirror[Instance]
        | Mirror[Node]
        | Mirror[NodePrices],
    ]:
        """All mirrors by table name, in the order in which they start: what is referred to comes first."""
        return {
            "keys": self.key_mirror,
            "models": self.models,
            "endpoint_configs": self.configs,
            "endpoints": self.endpoints,
            "instances": self.instances,
            "nodes": self.nodes,
            "prices": self.prices,
        }

    async def start(self) -> None:
        """Take a complete copy of every table and follow it."""
        for mirror in self.mirrors.values():
            await mirror.start()

    async def stop(self) -> None:
        """Stop following."""
        for mirror in self.mirrors.values():
            await mirror.stop()

    def staleness(self) -> dict[str, float]:
        """Return for each table the seconds since the local copy was last confirmed."""
        now = self.monotonic()
        return {name: mirror.staleness(now) for name, mirror in self.mirrors.items()}

    # ---- look-ups on the data path -----------------------------------------------------------------------------

    def desk(self, tenant: str, endpoint: str) -> Desk:
        """Return the desk of an endpoint. Raises EndpointNotFound, in the same words for missing and for others'."""
        desk = self._desks.get((tenant, endpoint))
        if desk is not None:
            return desk
        route = self._route(tenant, endpoint)
        if route is None:
            raise EndpointNotFound(
                f"endpoint {endpoint[:80]!r} does not exist", remedy="list them with 'standby endpoints list'"
            )
        return self._open_desk((tenant, endpoint), route)

    def desk_serving(self, tenant: str, served_name: str) -> Desk:
        """Return the desk of the endpoint that serves ``served_name``. Raises ModelNotFound."""
        endpoint = self._served.get((tenant, served_name))
        if endpoint is None:
            raise ModelNotFound(
                f"the model {served_name[:140]!r} does not exist or you do not have access to it",
                remedy="list the models with GET /v1/models",
            )
        return self.desk(tenant, endpoint)

    def served_models(self, tenant: str) -> Iterator[Endpoint]:
        """Yield the tenant's endpoints, whatever their rung: the catalogue comes from the registry (field case B52)."""
        for entry in self.endpoints.entries.values():
            if entry.value.tenant == tenant and entry.value.status is not EndpointStatus.DELETING:
                yield entry.value

    def desks(self) -> Iterator[Desk]:
        """Yield the desks of all endpoints that had traffic here."""
        yield from self._desks.values()

    # ---- inside ------------------------------------------------------------------------------------------------

    def _route(self, tenant: str, name: str) -> Route | None:
        endpoint = self.endpoints.entries.get(f"{tenant}.{name}")
        if endpoint is None or endpoint.value.status is EndpointStatus.DELETING:
            return None
        config = self.configs.entries.get(f"{tenant}.{endpoint.value.config}")
        if config is None:
            return None
        return Route(endpoint.value, config.value.variants[0])

    def _open_desk(self, where: EndpointKey, route: Route) -> Desk:
        desk = Desk(route, self.rooms, self.monotonic, self.wall, self.on_demand)
        for known in self._instances.get(where, {}).values():
            desk.instance_changed(known.record, known.seen)
        self._desks[where] = desk
        return desk

    def _config_changed(self, _key: str, _before: Entry[EndpointConfig] | None, after: Entry[EndpointConfig] | None) -> None:
        if after is None:
            return
        for (tenant, name), desk in list(self._desks.items()):
            if tenant == after.value.tenant and desk.route.endpoint.config == after.value.name:
                self._refresh((tenant, name))

    def _endpoint_changed(self, _key: str, before: Entry[Endpoint] | None, after: Entry[Endpoint] | None) -> None:
        if before is not None and self._served.get((before.value.tenant, before.value.served_name)) == before.value.name:
            self._unserve(before.value)
        if after is not None and after.value.status is not EndpointStatus.DELETING:
            self._served[after.value.tenant, after.value.served_name] = after.value.name
        present = after or before
        if present is not None:
            self._refresh((present.value.tenant, present.value.name))

    def _unserve(self, gone: Endpoint) -> None:
        """Forget who served the name, or find who else does.

        When two gateways create endpoints of one served name at once, one withdraws: the other must not be lost with it.
        """
        del self._served[gone.tenant, gone.served_name]
        for other in self.served_models(gone.tenant):
            if other.served_name == gone.served_name and other.name != gone.name:
                self._served[other.tenant, other.served_name] = other.name

    def _refresh(self, where: EndpointKey) -> None:
        desk = self._desks.get(where)
        if desk is None:
            return
        route = self._route(*where)
        if route is not None:
            desk.route_changed(route)
            return
        desk.endpoint_removed()
        del self._desks[where]
        self.on_desk_closed(desk)

    def _instance_changed(self, _key: str, before: Entry[Instance] | None, after: Entry[Instance] | None) -> None:
        present = after or before
        if present is None:
            return
        where = (present.value.tenant, present.value.endpoint)
        known = self._instances.setdefault(where, {})
        if after is None:
            known.pop(present.value.id, None)
            if not known:
                del self._instances[where]
            seen = 0.0
        else:
            earlier = known.get(after.value.id)
            fresh = earlier is None or earlier.record.epoch != after.value.epoch
            seen = self.monotonic() if fresh or earlier is None else earlier.seen
            known[after.value.id] = _Known(after.value, seen)
        desk = self._desks.get(where)
        if desk is not None:
            desk.instance_changed(present.value, seen, removed=after is None)
