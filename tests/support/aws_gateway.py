"""A whole gateway on a free port over a real nats-server, and AWS clients that are pointed at it and sign with its keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.session
import uvicorn
from botocore.config import Config

from standby.bus.connection import Bus
from standby.bus.tables_set import Tables, open_tables
from standby.domain.access import ALL_SCOPES, Scope
from standby.gateway.main import gateway
from standby.gateway.public_port import PublicProtocol
from standby.gateway.settings import GatewaySettings
from standby.host.sealing import SealingKey
from standby.sagemaker.auth.access_keys import issue
from support.nats_server import NatsServer, nats_server
from support.prompt_server import PromptGatewayServer
from support.waiting import until

SECRETS_KEY = "A" * 43 + "="
ONE = "111111111111"
TWO = "222222222222"
ADMIN_KEY = "sk-standby-0011223344556677-" + "ab" * 32


@dataclass
class AwsGateway:
    """``port`` on the loopback interface; ``nats`` and ``tables`` are what is behind it."""

    nats: NatsServer
    tables: Tables
    port: int
    _clients: list[Any] = field(default_factory=list)

    @property
    def url(self) -> str:
        """What AWS clients take as ``endpoint_url``."""
        return f"http://127.0.0.1:{self.port}"

    async def key(
        self, tenant: str = ONE, name: str = "tester", scopes: tuple[Scope, ...] = ALL_SCOPES, *, session: bool = False
    ) -> dict[str, str]:
        """Make an access key; return it as the arguments that botocore's clients take."""
        record, pair = issue(
            tenant=tenant, name=name, sealing=SealingKey.parse(SECRETS_KEY), now=time.time(), scopes=scopes, session=session
        )
        await self.tables.access_keys.create(record.id, record)
        known = {"aws_access_key_id": record.id, "aws_secret_access_key": pair.secret}
        if pair.token is not None:
            known["aws_session_token"] = pair.token
        await self._let_in(known)
        return known

    def client(self, service: str, key: dict[str, str], **config: Any) -> Any:
        """Return botocore's own client of a service; its calls block, so make them by ``asyncio.to_thread``."""
        session = botocore.session.Session(session_vars={"config_file": (None, None, None, None)})
        options = {"retries": {"total_max_attempts": 1, "mode": "standard"}, **config}
        client = session.create_client(service, region_name="us-east-1", endpoint_url=self.url, config=Config(**options), **key)
        self._clients.append(client)
        return client

    async def call(self, function: Callable[..., Any], **request: Any) -> Any:
        """Make one call of a client in a thread."""
        return await asyncio.to_thread(function, **request)

    async def _let_in(self, key: dict[str, str]) -> None:
        """Wait until the gateway has heard of the key."""
        client = self.client("sts", key)

        deadline = time.monotonic() + 60.0
        while True:
            try:
                await self.call(client.get_caller_identity)
            except client.exceptions.ClientError:
                if time.monotonic() > deadline:
                    raise
            else:
                return
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """End the clients' connections."""
        for client in self._clients:
            client.close()


@asynccontextmanager
async def aws_gateway(tmp_path: Path, **settings: Any) -> AsyncIterator[AwsGateway]:
    """Start nats-server and a gateway in this process; any setting of the gateway may be given."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(tmp_path))
        bus: Bus = await stack.enter_async_context(nats.bus())
        given = {
            "node_token": "a node's token",
            "key_pepper": "a pepper for tests",
            "admin_key": ADMIN_KEY,
            "secrets_key": SECRETS_KEY,
            "open_sources": True,
            "key_trust_s": 36000.0,  # no listing heals who is deaf, and none confirms what is known
            **settings,
        }
        app, ending = await stack.enter_async_context(
            gateway(GatewaySettings(**given), nats.settings(nats_relist_interval=3600.0))
        )
        config = uvicorn.Config(
            app, host="127.0.0.1", port=0, http=PublicProtocol, ws="none", lifespan="off", log_config=None, access_log=False
        )
        server = PromptGatewayServer(config, ending)
        task = asyncio.create_task(server.serve())
        found = None
        try:
            await until(lambda: server.started or task.done())
            found = AwsGateway(nats, await open_tables(bus), server.servers[0].sockets[0].getsockname()[1])
            yield found
        finally:
            if found is not None:
                found.close()
            server.should_exit = True
            await task
