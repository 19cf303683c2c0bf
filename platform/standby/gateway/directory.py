"""The gateway's local directory: keys, models, endpoints and ready instances, kept up to date by mirrors of the tables.

A warm request is resolved from here alone, so that it is served while the bus is away. The directory also owns the
desks, one for each variant of each endpoint that had traffic.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import partial

from standby.bus.mirror import Mirror
from standby.bus.tables import Entry
from standby.bus.tables_set import Tables
from standby.domain.access import AccessKey, ApiKey, Tenant
from standby.domain.endpoint import Backend, Endpoint, EndpointConfig, EndpointStatus, Variant
from standby.domain.errors import ComponentRequired, EndpointNotFound, ModelNotFound
from standby.domain.instance import Instance, InstanceState, Rung
from standby.domain.model import Model
from standby.domain.node import Node
from standby.domain.prices import NodePrices
from standby.domain.serving import model_of_part, parts_of, variants_now, version_of
from standby.gateway import sessions
from standby.gateway.desk import AllRooms, Desk, Route
from standby.gateway.hall import Hall
from standby.gateway.keys import KeyRing
from standby.gateway.route import RoutePart
from standby.gateway.tokens import PromptTokens
from standby.host.sealing import SealingKey

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
    # Copies of keys and tenants that are older, in seconds, let nobody in any more.
    key_trust_s: float = math.inf
    # Hears of each change of an access key, by its id.
    on_access_key: Callable[[str], None] = lambda _key_id: None
    # Hears of each engine that has failed while it was ready, by its instance and epoch.
    on_failed: Callable[[str, int], None] = lambda _instance, _epoch: None
    # Opens the keys that tenants have stored: a model's tokenizer is read from where the model lies.
    sealing: SealingKey | None = None
    _halls: dict[EndpointKey, Hall] = field(default_factory=dict)
    _instances: dict[EndpointKey, dict[str, _Known]] = field(default_factory=dict)
    _served: dict[EndpointKey, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.key_mirror = Mirror(self.tables.keys)
        self.tenants = Mirror(self.tables.tenants)
        self.access_keys = Mirror(self.tables.access_keys, lambda key_id, _before, _after: self.on_access_key(key_id))
        self.keys = KeyRing(self.key_mirror, self.tenants, now=self.wall, staleness=self.key_age, trust_s=self.key_trust_s)
        self.models = Mirror(self.tables.models, self._model_changed)
        self.configs = Mirror(self.tables.endpoint_configs, self._config_changed)
        self.endpoints = Mirror(self.tables.endpoints, self._endpoint_changed)
        self.instances = Mirror(self.tables.instances, self._instance_changed)
        self.nodes = Mirror(self.tables.nodes)
        self.prices = Mirror(self.tables.prices)
        self.tokens = PromptTokens(self.tables.credentials, self.sealing, self.monotonic)

    @property
    def mirrors(
        self,
    ) -> Mapping[
        str,
        Mirror[ApiKey]
        | Mirror[Tenant]
        | Mirror[AccessKey]
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
            "tenants": self.tenants,
            "access_keys": self.access_keys,
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
        await self.tokens.stop()
        for mirror in self.mirrors.values():
            await mirror.stop()

    def staleness(self) -> dict[str, float]:
        """Return for each table the seconds since the local copy was last confirmed."""
        now = self.monotonic()
        return {name: mirror.staleness(now) for name, mirror in self.mirrors.items()}

    def key_age(self) -> float:
        """Return the seconds since the copies of keys and tenants were last confirmed, the oldest one's."""
        oldest = min(self.key_mirror.confirmed_at, self.tenants.confirmed_at, self.access_keys.confirmed_at)
        return max(0.0, self.monotonic() - oldest)

    # ---- look-ups on the data path -----------------------------------------------------------------------------

    def desk(self, tenant: str, endpoint: str, variant: str | None = None, session: str | None = None) -> Desk:
        """Return a desk of an endpoint: of the named variant, else of the session's instance, else of whose turn it is.

        Raises EndpointNotFound, in the same words for missing and for others', and VariantNotFound.
        """
        where = (tenant, endpoint)
        hall = self._halls.get(where)
        if hall is None:
            hall = self._open_hall(where)
        if session is not None and variant is None:
            variant = self._variant_of(where, hall, session)
        return hall.desk(variant)

    def desk_serving(self, tenant: str, served_name: str) -> Desk:
        """Return a desk of the endpoint that serves ``served_name``. Raises ModelNotFound."""
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
            endpoint = entry.value
            if endpoint.tenant != tenant or endpoint.status is EndpointStatus.DELETING:
                continue
            if not self._has_components(tenant, endpoint.name):
                yield endpoint

    def desks(self) -> Iterator[Desk]:
        """Yield the desks of all endpoints that had traffic here."""
        for hall in self._halls.values():
            yield from hall.desks.values()

    def slots(self, lost: Set[str] = frozenset()) -> dict[EndpointKey, int]:
        """Return for every endpoint how many requests its ready instances take at once; 0: it is at zero.

        Instances on ``lost`` nodes are not counted: their records still say that they are ready.
        """
        endpoints = (entry.value for entry in self.endpoints.entries.values())
        found = {(one.tenant, one.name): 0 for one in endpoints if one.status is not EndpointStatus.DELETING}
        for where, instances in self._instances.items():
            if where in found:
                records = (known.record for known in instances.values() if known.record.node not in lost)
                found[where] = sum(record.slots for record in records if record.state is InstanceState.READY)
        return found

    # ---- inside ------------------------------------------------------------------------------------------------

    def _routes(self, tenant: str, name: str) -> tuple[Route, ...]:
        """Return the endpoint's variants; none where it does not exist, or its config is not here yet."""
        endpoint = self._living(tenant, name)
        config = None if endpoint is None else self.configs.entries.get(f"{tenant}.{endpoint.config}")
        if endpoint is None or config is None:
            return ()
        now = variants_now(config.value, endpoint.capacities)
        pairs = zip(config.value.variants, now, strict=True)
        return tuple(self._route(endpoint, config.value, written, present) for written, present in pairs)

    def _route(self, endpoint: Endpoint, config: EndpointConfig, written: Variant, present: Variant) -> Route:
        model = self.models.entries.get(f"{endpoint.tenant}.{written.model}")
        known = None if model is None else model.value
        parts = tuple(
            _part_of(known, backend, part, now)
            for (backend, part), (_, now) in zip(parts_of(written), parts_of(present), strict=True)
        )
        version = parts[0].version if len(parts) == 1 else ""
        counter = None if known is None or len(parts) == 1 else self.tokens.counter(known)
        return Route(endpoint, present, version, config.traffic, parts, counter)

    def _has_components(self, tenant: str, name: str) -> bool:
        """Whether the endpoint has no models of its own: each of its inference components is served by its own name."""
        endpoint = self._living(tenant, name)
        config = None if endpoint is None else self.configs.entries.get(f"{tenant}.{endpoint.config}")
        return config is not None and not config.value.variants

    def _living(self, tenant: str, name: str) -> Endpoint | None:
        endpoint = self.endpoints.entries.get(f"{tenant}.{name}")
        return None if endpoint is None or endpoint.value.status is EndpointStatus.DELETING else endpoint.value

    def _variant_of(self, where: EndpointKey, hall: Hall, session: str) -> str | None:
        named = sessions.read(session, self.wall())
        known = None if named is None else self._instances.get(where, {}).get(named.instance)
        return known.record.variant if known is not None and known.record.variant in hall.desks else None

    def _open_hall(self, where: EndpointKey) -> Hall:
        routes = self._routes(*where)
        if not routes and self._has_components(*where):
            raise ComponentRequired(
                "Inference Component Name header is required for endpoints to which you plan to deploy inference components. "
                "Please include Inference Component Name header or consider using SageMaker models.",
                remedy=f"name one, e.g. by the OpenAI routes as model {where[1]}/NAME",
            )
        if not routes:
            raise EndpointNotFound(
                f"endpoint {where[1][:80]!r} does not exist", remedy="list them with 'standby endpoints list'"
            )
        hall = Hall(partial(self._open_desk, where))
        hall.routes_changed(routes)
        self._halls[where] = hall
        return hall

    def _open_desk(self, where: EndpointKey, route: Route) -> Desk:
        desk = Desk(route, self.rooms, self.monotonic, self.wall, self.on_demand, partial(self._climb_s, where))
        for known in self._instances.get(where, {}).values():
            if known.record.variant == route.variant.name:
                desk.instance_changed(known.record, known.seen)
        return desk

    def _climb_s(self, where: EndpointKey, route: Route) -> float | None:
        """Return the measured seconds until one of the variant's instances is ready, from the highest rung that one holds.

        None where no node has measured that.
        """
        rungs = {
            known.record.node: known.record.rung
            for known in sorted(self._instances.get(where, {}).values(), key=lambda known: known.record.rung)
            if known.record.variant == route.variant.name
        }
        digests = {part.digest for part in route.parts if part.digest is not None}
        measured = (
            entry.value.costs.get(digest, {}).get(rungs.get(entry.value.name, Rung.COLD))
            for entry in self.nodes.entries.values()
            for digest in digests
        )
        return min((seconds for seconds in measured if seconds is not None), default=None)

    def _config_changed(self, _key: str, _before: Entry[EndpointConfig] | None, after: Entry[EndpointConfig] | None) -> None:
        if after is None:
            return
        for tenant, name in list(self._halls):
            endpoint = self._living(tenant, name)
            if endpoint is not None and (tenant, endpoint.config) == (after.value.tenant, after.value.name):
                self._refresh((tenant, name))

    def _model_changed(self, _key: str, _before: Entry[Model] | None, after: Entry[Model] | None) -> None:
        if after is None:
            return
        for where, hall in list(self._halls.items()):
            served = (desk.route.variant.model for desk in hall.desks.values())
            if where[0] == after.value.tenant and after.value.name in served:
                self._refresh(where)

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
        hall = self._halls.get(where)
        if hall is None:
            return
        routes = self._routes(*where)
        if routes:
            hall.routes_changed(routes)
        elif self._living(*where) is None:  # else its new config is not here yet, and the one before goes on serving
            hall.removed()
            del self._halls[where]
            self.on_desk_closed(hall.first)

    def _instance_changed(self, _key: str, before: Entry[Instance] | None, after: Entry[Instance] | None) -> None:
        present = after or before
        if present is None:
            return
        if before is not None and before.value.state is InstanceState.READY and present.value.state is InstanceState.FAILED:
            self.on_failed(before.value.id, before.value.epoch)
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
        hall = self._halls.get(where)
        desk = None if hall is None else hall.desks.get(present.value.variant)
        if desk is not None:
            desk.instance_changed(present.value, seen, removed=after is None)


def _part_of(model: Model | None, backend: Backend | None, written: Variant, present: Variant) -> RoutePart:
    """Return one engine of a variant; ``written`` as its config has it, which is what names the version."""
    label = "" if backend is None else backend.label
    served = None if model is None else model_of_part(model, written, backend)
    if served is None:
        return RoutePart(label, None if backend is None else backend.engine, "", present.policy.slots)
    return RoutePart(label, served.engine, version_of(served, written), present.policy.slots, served.manifest.digest)
