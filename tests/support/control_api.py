"""The control API over a real nats-server, behind a real HTTP server on a free port: ``async with control_api(tmp_path)``."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from standby.artifacts.inspection import inspect
from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.bus.mirror import Mirror
from standby.bus.tables_set import Tables, open_tables
from standby.console.settings import ConsoleSettings
from standby.domain.access import Role
from standby.domain.endpoint import EndpointStatus, Failure
from standby.domain.instance import Instance, InstanceState
from standby.gateway import keys
from standby.gateway.accounts import Accounts
from standby.gateway.api.context import ApiContext, Copies
from standby.gateway.api.routes import api_routes
from standby.gateway.console_side import ConsoleSide
from standby.host.sealing import SealingKey
from support.builders import an_instance
from support.nats_server import NatsServer, nats_server
from support.prompt_server import PromptServer
from support.real_model import real_model_path
from support.waiting import until

PEPPER = b"a pepper for tests"
ONE = "111111111111"
TWO = "222222222222"
DEADLINE_S = 60.0


@dataclass
class Control:
    """A running control API: its address, its context, and one key for each kind of caller."""

    server: NatsServer
    context: ApiContext
    url: str
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> Tables:
        """The tables behind it."""
        return self.context.tables

    def client(self, who: str | None = "one", **headers: str) -> httpx.AsyncClient:
        """A client with the key of ``one``, ``two`` or ``admin``; None: without a key."""
        if who is not None:
            headers["authorization"] = f"Bearer {self.keys[who]}"
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False, timeout=DEADLINE_S)

    async def call(self, who: str | None, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        """Make one request."""
        async with self.client(who, **{name.replace("_", "-"): value for name, value in headers.items()}) as client:
            return await client.request(method, path, json=body)

    async def register(self, name: str = "smol", who: str = "one") -> dict[str, Any]:
        """Register the real model from the disk."""
        body = {"name": name, "source_uri": real_model_path().as_uri()}
        answer = await self.call(who, "POST", "/api/v1/models", body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def create(self, name: str = "chat", who: str = "one", **fields: object) -> dict[str, Any]:
        """Create an endpoint of the model ``smol``."""
        answer = await self.call(who, "POST", "/api/v1/endpoints", {"name": name, "model": "smol", **fields})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def place(self, state: InstanceState, *, endpoint: str = "chat", tenant: str = ONE, **fields: Any) -> Instance:
        """Say, as a node would, that an instance is in ``state``; returns when the gateway's copy has it."""
        now = time.time()
        instance = an_instance(
            id=f"{endpoint}-i1",
            tenant=tenant,
            endpoint=endpoint,
            state=state,
            rung_since=now,
            updated_at=now,
            **fields,
        )
        revision = await self.tables.instances.put(f"n1.{instance.id}", instance)
        await until(lambda: has_revision(self.context.copies.instances.entries, f"n1.{instance.id}", revision))
        return instance

    async def fail(self, endpoint: str, failure: Failure, tenant: str = ONE) -> None:
        """Say, as the controller would, that an endpoint has failed."""
        entry = await self.tables.endpoints.get(f"{tenant}.{endpoint}")
        assert entry is not None
        failed = entry.value.model_copy(update={"status": EndpointStatus.FAILED, "failure": failure})
        revision = await self.tables.endpoints.update(entry.key, failed, entry.revision)
        await until(lambda: has_revision(self.context.copies.endpoints.entries, entry.key, revision))


def has_revision(entries: Mapping[str, Any], key: str, revision: int) -> bool:
    """Whether a copy holds what was written."""
    return key in entries and entries[key].revision >= revision


@asynccontextmanager
async def control_api(
    tmp_path: Path, *, environment: Mapping[str, str] = os.environ, more_routes: Sequence[BaseRoute] = ()
) -> AsyncIterator[Control]:
    """Start nats-server, tables, copies, events and the HTTP server; ended at the end."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(tmp_path))
        bus = await stack.enter_async_context(server.bus())
        context = await _context(stack, bus, environment)
        control = Control(server, context, "")
        for who, tenant, role in (("one", ONE, Role.TENANT), ("two", TWO, Role.TENANT), ("admin", ONE, Role.ADMIN)):
            record, secret = keys.issue(tenant=tenant, name=who, pepper=PEPPER, now=time.time(), role=role)
            await context.tables.keys.create(record.id, record)
            control.keys[who] = secret
        await until(lambda: len(context.copies.keys.entries) == len(control.keys))
        app = Starlette(routes=[*more_routes, *api_routes(context)])
        control.url = await stack.enter_async_context(http_server(app))
        # Ends the event streams first, as the gateway does.
        stack.callback(context.stopping.set)
        yield control


async def _context(stack: AsyncExitStack, bus: Bus, environment: Mapping[str, str]) -> ApiContext:
    tables = await open_tables(bus)
    events = await EventLog.open(bus)
    stack.push_async_callback(events.close)
    copies = Copies(
        keys=Mirror(tables.keys),
        models=Mirror(tables.models),
        endpoint_configs=Mirror(tables.endpoint_configs),
        endpoints=Mirror(tables.endpoints),
        instances=Mirror(tables.instances),
        nodes=Mirror(tables.nodes),
        prices=Mirror(tables.prices),
        tenants=Mirror(tables.tenants),
        access_keys=Mirror(tables.access_keys),
    )
    for name in Copies.__dataclass_fields__:
        mirror = getattr(copies, name)
        await mirror.start()
        stack.push_async_callback(mirror.stop)
    console = ConsoleSide(bus, events, copies, Accounts(), lambda: (), "test", ConsoleSettings())
    stack.push_async_callback(console.stop)
    await console.start()
    return ApiContext(
        bus=bus,
        tables=tables,
        events=events,
        copies=copies,
        pepper=PEPPER,
        source="gateway/test",
        open_sources=True,
        sealing=SealingKey(bytes(32)),
        heartbeat_s=0.2,
        feed=console.feed,
        inspect=functools.partial(inspect, environment=environment),
    )


@asynccontextmanager
async def http_server(app: Any) -> AsyncIterator[str]:
    """Serve ``app`` on a free port of 127.0.0.1; yields the URL."""
    server = PromptServer(uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_level="warning"))
    task = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started or task.done())
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task
