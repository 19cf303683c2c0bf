"""All tables of the platform, opened together."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass

from standby.bus.connection import Bus
from standby.bus.subjects import Bucket
from standby.bus.tables import Table
from standby.domain.access import AccessKey, ApiKey, Lease, StoredCredential, Tenant
from standby.domain.assignment import Assignment
from standby.domain.async_invocation import Ticket
from standby.domain.aws import AwsResource
from standby.domain.endpoint import Endpoint, EndpointConfig
from standby.domain.habits import Habits
from standby.domain.instance import Instance
from standby.domain.model import Model
from standby.domain.node import Node
from standby.domain.prices import NodePrices

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tables:
    """One table for each kind of record; who writes which is in ARCHITECTURE.md."""

    keys: Table[ApiKey]
    models: Table[Model]
    endpoint_configs: Table[EndpointConfig]
    endpoints: Table[Endpoint]
    assignments: Table[Assignment]
    instances: Table[Instance]
    nodes: Table[Node]
    leases: Table[Lease]
    credentials: Table[StoredCredential]
    prices: Table[NodePrices]
    tenants: Table[Tenant]
    access_keys: Table[AccessKey]
    aws: Table[AwsResource]
    tickets: Table[Ticket]
    habits: Table[Habits]

    async def ensure(self) -> tuple[str, ...]:
        """Make every missing bucket; return the names of those that were made. Raises BusUnavailable."""
        made = [table.bucket for field in dataclasses.fields(self) if await (table := getattr(self, field.name)).ensure()]
        if made:
            log.info("made buckets %s", ", ".join(made))
        return tuple(made)


async def open_tables(bus: Bus) -> Tables:
    """Return the tables; missing buckets are made now, and again after each reconnect that finds them gone.

    Raises BusUnavailable.
    """
    tables = Tables(
        keys=Table(bus, Bucket.KEYS, ApiKey),
        models=Table(bus, Bucket.MODELS, Model),
        endpoint_configs=Table(bus, Bucket.ENDPOINT_CONFIGS, EndpointConfig),
        endpoints=Table(bus, Bucket.ENDPOINTS, Endpoint),
        assignments=Table(bus, Bucket.ASSIGNMENTS, Assignment),
        instances=Table(bus, Bucket.INSTANCES, Instance),
        nodes=Table(bus, Bucket.NODES, Node),
        leases=Table(bus, Bucket.LEASES, Lease),
        credentials=Table(bus, Bucket.CREDENTIALS, StoredCredential),
        prices=Table(bus, Bucket.PRICES, NodePrices),
        tenants=Table(bus, Bucket.TENANTS, Tenant),
        access_keys=Table(bus, Bucket.ACCESS_KEYS, AccessKey),
        aws=Table(bus, Bucket.AWS, AwsResource),
        tickets=Table(bus, Bucket.TICKETS, Ticket),
        habits=Table(bus, Bucket.HABITS, Habits),
    )
    await tables.ensure()

    async def ensure_again() -> None:
        await tables.ensure()

    bus.on_reconnect(ensure_again)
    return tables
