"""The records behind the control plane: looked up near by, written where they are kept, shown before it answers.

A look-up asks this process's own copy first; what is missing there is asked from the table itself, since another gateway may
have made it a moment ago.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from standby.bus.copies import Copy, updated, visible
from standby.bus.tables import Entry, R, Table
from standby.bus.tables_set import Tables
from standby.domain.aws import AwsKind, AwsResource
from standby.domain.endpoint import Endpoint, EndpointConfig
from standby.domain.errors import Conflict, StandbyError
from standby.domain.events import AnyEvent, EndpointChanged
from standby.domain.instance import Instance, InstanceState
from standby.domain.model import Model
from standby.domain.names import HIDDEN, key
from standby.domain.node import Node
from standby.sagemaker.control.inspected import INSPECTION, REASON, Inspection, Servable, Verdict
from standby.sagemaker.errors import AwsError

_ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class Copies:
    """The process's local copies that the control plane reads."""

    models: Copy[Model]
    endpoint_configs: Copy[EndpointConfig]
    endpoints: Copy[Endpoint]
    instances: Copy[Instance]
    nodes: Copy[Node]
    aws: Copy[AwsResource]


class Events(Protocol):
    """Where events go; best effort."""

    async def publish(self, event: AnyEvent) -> None:
        """Tell of something that has happened."""


@dataclass(frozen=True, slots=True)
class Records:
    """Tables and copies together; ``source`` is this process's name in what it writes, ``now`` seconds since the epoch."""

    tables: Tables
    copies: Copies
    events: Events
    source: str
    now: Callable[[], float] = time.time

    def moment(self) -> float:
        """Return the time for a new record: in whole microseconds, so that it comes back unchanged from a client's datetime."""
        return round(self.now(), 6)

    # ---- look-ups ----------------------------------------------------------------------------------------------

    async def model(self, tenant: str, name: str) -> Entry[Model] | None:
        """Return a model of ours."""
        return await found(self.copies.models, self.tables.models, key(tenant, name))

    async def config(self, tenant: str, name: str) -> Entry[EndpointConfig] | None:
        """Return an endpoint config of ours."""
        return await found(self.copies.endpoint_configs, self.tables.endpoint_configs, key(tenant, name))

    async def endpoint(self, tenant: str, name: str) -> Entry[Endpoint] | None:
        """Return an endpoint."""
        return await found(self.copies.endpoints, self.tables.endpoints, key(tenant, name))

    async def resource(self, tenant: str, kind: AwsKind, name: str) -> Entry[AwsResource] | None:
        """Return what a client of AWS's has created under the name."""
        return await found(self.copies.aws, self.tables.aws, aws_key(tenant, kind, name))

    def known_resource(self, tenant: str, kind: AwsKind, name: str) -> AwsResource | None:
        """Return the same from this process's own copy alone."""
        entry = self.copies.aws.entries.get(aws_key(tenant, kind, name))
        return None if entry is None else entry.value

    def known_config(self, endpoint: Endpoint) -> EndpointConfig | None:
        """Return the config by which an endpoint runs, from this process's own copy alone."""
        entry = self.copies.endpoint_configs.entries.get(key(endpoint.tenant, endpoint.config))
        return None if entry is None else entry.value

    def known_pending_config(self, endpoint: Endpoint) -> EndpointConfig | None:
        """Return the config to which an endpoint moves, from this process's own copy alone; None where it does not."""
        if endpoint.pending_config is None:
            return None
        entry = self.copies.endpoint_configs.entries.get(key(endpoint.tenant, endpoint.pending_config))
        return None if entry is None else entry.value

    def resources(self, tenant: str, kind: AwsKind) -> Iterator[AwsResource]:
        """Yield a tenant's resources of one kind, without those that are kept for an endpoint only."""
        return (entry.value for entry in _within(self.copies.aws, f"{tenant}.{kind.value}.") if HIDDEN not in entry.key)

    def endpoints(self, tenant: str) -> Iterator[Endpoint]:
        """Yield a tenant's endpoints."""
        return (entry.value for entry in _within(self.copies.endpoints, f"{tenant}."))

    def instances(self, endpoint: Endpoint) -> Iterator[Instance]:
        """Yield the instances of an endpoint that nodes report."""
        whose = (endpoint.tenant, endpoint.name)
        reported = (entry.value for entry in _within(self.copies.instances, ""))
        return (one for one in reported if (one.tenant, one.endpoint) == whose)

    def ready(self, endpoint: Endpoint) -> list[Instance]:
        """Return those of them that answer requests."""
        return [one for one in self.instances(endpoint) if one.state is InstanceState.READY]

    def models(self, tenant: str) -> Iterator[Model]:
        """Yield a tenant's models of ours, without those that are kept for an endpoint only."""
        return (entry.value for entry in _within(self.copies.models, f"{tenant}.") if HIDDEN not in entry.key)

    def configs(self, tenant: str) -> Iterator[EndpointConfig]:
        """Yield a tenant's endpoint configs of ours, without the endpoints' own copies."""
        return (entry.value for entry in _within(self.copies.endpoint_configs, f"{tenant}.") if HIDDEN not in entry.key)

    def verdict(self, tenant: str, name: str) -> Verdict:
        """Return what this process knows of a model."""
        if key(tenant, name) in self.copies.models.entries:
            return Verdict(Servable.GOOD)
        resource = self.known_resource(tenant, AwsKind.MODEL, name)
        if resource is None:
            return Verdict(Servable.MISSING, f"model {name} does not exist any more")
        if resource.state.get(INSPECTION) == Inspection.FAILED:
            return Verdict(Servable.FAILED, str(resource.state.get(REASON, "")))
        return Verdict(Servable.WAITING)

    # ---- writes ------------------------------------------------------------------------------------------------

    async def change_endpoint(self, tenant: str, name: str, change: Callable[[Endpoint], Endpoint | None]) -> Endpoint | None:
        """Write what ``change`` makes of the endpoint; None where it is gone. Raises Conflict, and what ``change`` raises."""

        def stamped(endpoint: Endpoint) -> Endpoint | None:
            wanted = change(endpoint)
            if wanted is None or wanted == endpoint:
                return None
            return wanted.model_copy(update={"updated_at": max(self.moment(), endpoint.updated_at)})

        return await changed(self.copies.endpoints, self.tables.endpoints, key(tenant, name), stamped)

    async def change_resource(
        self, tenant: str, kind: AwsKind, name: str, change: Callable[[AwsResource], AwsResource | None]
    ) -> AwsResource | None:
        """Write what ``change`` makes of the resource; None where it is gone. Raises Conflict, and what ``change`` raises."""
        return await changed(self.copies.aws, self.tables.aws, aws_key(tenant, kind, name), change)

    async def announce(self, endpoint: Endpoint, reason: str = "") -> None:
        """Publish the endpoint's status in this process's name."""
        await self.events.publish(
            EndpointChanged(
                id=uuid.uuid4().hex,
                at=self.now(),
                source=self.source,
                tenant=endpoint.tenant,
                endpoint=endpoint.name,
                status=endpoint.status.value,
                reason=reason,
            )
        )


def aws_key(tenant: str, kind: AwsKind, name: str) -> str:
    """Return the key of a resource."""
    return key(tenant, kind.value, name)


def hidden_name(name: str) -> str:
    """Return a name for a record that belongs to ``name`` alone; never the same twice."""
    return f"{name}{HIDDEN}{secrets.token_hex(6)}"


async def found(copy: Copy[R], table: Table[R], record_key: str) -> Entry[R] | None:
    """Return the record from the copy, else from the table."""
    entry = copy.entries.get(record_key)
    return entry if entry is not None else await table.get(record_key)


async def create(copy: Copy[R], table: Table[R], record_key: str, value: R) -> int:
    """Store a new record and wait until the copy shows it; return its revision. Raises RevisionConflict if it exists."""
    revision = await table.create(record_key, value)
    await visible(copy, record_key, revision)
    return revision


async def changed(copy: Copy[R], table: Table[R], record_key: str, change: Callable[[R], R | None]) -> R | None:
    """Write what ``change`` makes of a record, deciding anew whenever somebody else wrote in between.

    ``change`` returns None to leave it as it is. Returns the record as it is then, None where there is none. Raises Conflict
    where it changed under our hands again and again.
    """
    # The copy is nearly always the newest, and a write at its revision proves it; whatever else comes of it the table decides.
    near = copy.entries.get(record_key)
    wanted = None if near is None else _guessed(change, near.value)
    if near is not None and wanted is not None and await updated(copy, table, near, wanted):
        return wanted
    for _ in range(_ATTEMPTS):
        entry = await table.get(record_key)
        if entry is None:
            return None
        wanted = change(entry.value)
        if wanted is None:
            await visible(copy, record_key, entry.revision)
            return entry.value
        if await updated(copy, table, entry, wanted):
            return wanted
    raise Conflict(f"{table.bucket}/{record_key} changed {_ATTEMPTS} times while it was being changed", remedy="try again")


async def remove(copy: Copy[R], table: Table[R], record_key: str, revision: int | None = None) -> None:
    """Remove a record and wait until the copy shows it. Raises RevisionConflict where it is not at ``revision``."""
    await table.delete(record_key, revision)
    await visible(copy, record_key, None)


def _guessed(change: Callable[[R], R | None], value: R) -> R | None:
    try:
        return change(value)
    except (AwsError, StandbyError):
        return None


def _within(copy: Copy[R], prefix: str) -> Iterator[Entry[R]]:
    # A list first: an update that arrives while the caller awaits must not break the walk.
    return (entry for record_key, entry in list(copy.entries.items()) if record_key.startswith(prefix))
