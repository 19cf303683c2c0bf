"""The gateway's data plane on a real port before a real door: uvicorn with our protocol, one key, one endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import uvicorn

from standby.domain.access import ApiKey
from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.errors import EndpointNotFound, ModelNotFound, VariantNotFound
from standby.domain.traffic import TrafficPolicy
from standby.gateway import keys
from standby.gateway.accounts import Account, Accounts
from standby.gateway.dataplane import DataPlane, RuntimeOptions
from standby.gateway.desk import AllRooms, Desk, Route
from standby.gateway.metering import Meter, Usage
from standby.gateway.public_port import PublicProtocol
from standby.gateway.route import RoutePart
from support.builders import TENANT, an_endpoint, an_instance
from support.door_rig import INSTANCE, SLOTS, TOKEN, Rig
from support.prompt_server import PromptServer
from support.raw_http import RawClient
from support.waiting import until

PEPPER = b"pepper"
PATH = "/endpoints/e/invocations"


class RememberedAccounts(Accounts):
    """Accounts that remember how each request of the endpoint ended, what it had used, and whether its answer was whole."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[str] = []
        self.used: list[tuple[Usage, bool]] = []

    def of(self, desk: Desk) -> Account:
        account = super().of(desk)
        outcomes, used = self.outcomes, self.used

        class Remembering(Account):
            def ended(self, outcome: str) -> None:
                outcomes.append(outcome)

            def metered(self, meter: Meter) -> None:
                used.append((meter.usage(), meter.whole))

        return Remembering(account.tenant, account.endpoint)


@dataclass
class FixedDirectory:
    """A directory of one endpoint ``e`` and one key."""

    desk_of_e: Desk
    keys: dict[str, ApiKey]

    def desk(self, _tenant: str, endpoint: str, variant: str | None = None, _session: str | None = None) -> Desk:
        if endpoint != "e":
            raise EndpointNotFound("no such endpoint")
        if variant not in (None, self.desk_of_e.route.variant.name):
            raise VariantNotFound("no such variant")
        return self.desk_of_e

    def desk_serving(self, _tenant: str, served_name: str) -> Desk:
        if served_name not in ("e", self.desk_of_e.route.endpoint.served_name):
            raise ModelNotFound("no such model")
        return self.desk_of_e


@dataclass
class GatewayRig:
    """``behind`` is the door and its engine."""

    behind: Rig
    desk: Desk
    accounts: RememberedAccounts
    secret: str
    server: uvicorn.Server
    plane: DataPlane
    connections: list[RawClient] = field(default_factory=list)

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.server.servers[0].sockets[0].getsockname()
        return host, port

    async def connect(self) -> RawClient:
        client = await RawClient.connect(*self.address)
        self.connections.append(client)
        return client

    def headers(self, **more: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}", "content-type": "application/json", **more}


def wake(desk: Desk, behind: Rig) -> None:
    """Let the desk hear of the door's instance."""
    host, port = behind.address
    desk.instance_changed(an_instance(id=INSTANCE, slots=SLOTS, epoch=7, door=f"{host}:{port}"), seen=0)


@contextlib.asynccontextmanager
async def gateway_rig(
    behind: Rig,
    *,
    protocol: type[PublicProtocol] = PublicProtocol,
    grace_s: int = 5,
    variant: Variant | None = None,
    tenant: str = TENANT,
    awake: bool = True,
    max_body_bytes: int = 10**6,
    runtime: RuntimeOptions | None = None,
    server_of: Callable[[uvicorn.Config], uvicorn.Server] = PromptServer,
    traffic: TrafficPolicy | None = None,
    parts: tuple[RoutePart, ...] = (),
    monotonic: Callable[[], float] = time.monotonic,
) -> AsyncIterator[GatewayRig]:
    """Serve the endpoint ``e``, whose one instance is the door's; unless it is ``awake``, it has none.

    ``parts`` are the variant's engines, where it has several; ``monotonic`` is the gateway's clock.
    """
    desk = Desk(
        Route(
            an_endpoint(tenant=tenant),
            variant or Variant(model="m", policy=ScalePolicy(max_cold_wait=20)),
            traffic=traffic or TrafficPolicy(),
            parts=parts,
        ),
        AllRooms(10**8),
        monotonic,
        time.time,
        lambda _desk, _urgent: None,
    )
    if awake:
        wake(desk, behind)
    record, secret = keys.issue(tenant=tenant, name="k", pepper=PEPPER, now=0.0)
    accounts = RememberedAccounts()
    directory = FixedDirectory(desk, {record.id: record})
    plane = DataPlane(
        directory,  # type: ignore[arg-type] # what the data routes use of it
        behind.client,
        accounts,
        TOKEN,
        PEPPER,
        max_body_bytes,
        monotonic,
        time.time,
        runtime=runtime or RuntimeOptions(),
    )
    config = uvicorn.Config(
        plane,
        host="127.0.0.1",
        port=0,
        http=protocol,
        ws="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=grace_s,
    )
    server = server_of(config)
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started or serving.done())
        rig = GatewayRig(behind, desk, accounts, secret, server, plane)
        yield rig
        for client in rig.connections:
            client.abort()
    finally:
        server.should_exit = True
        await serving
