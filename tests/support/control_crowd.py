"""A crowd for ``bench_control``: tables full of endpoints of many tenants, and a gateway process that starts over them."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import boto3
import httpx
import psutil
from botocore.config import Config

from standby.bus.connection import Bus
from standby.bus.embedded import EmbeddedNats
from standby.bus.tables_set import Tables, open_tables
from standby.domain.aws import AwsKind, AwsResource
from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.names import key
from standby.host.sealing import SealingKey
from standby.sagemaker.auth.access_keys import issue
from support.bench_figures import percentile
from support.builders import a_config, a_model, an_endpoint
from support.user import BIN

SECRETS_KEY = "A" * 43 + "="
AT_ONCE = 64
LISTS = 300


async def measure(folder: Path, *, endpoints: int, tenants: int) -> dict[str, float]:
    """Return ``start_s``, ``rss_mb`` and ``list_ms`` (p99 of first pages of 10, by boto3, of different tenants)."""
    nats = EmbeddedNats(folder / "nats")
    await nats.start()
    try:
        bus = await Bus.connect(nats.settings(), name="bench")
        keys = await _fill(await open_tables(bus), endpoints, tenants)
        await bus.close()
        async with _gateway(folder, nats) as (process, url, start_s):
            lists = await asyncio.to_thread(_lists, url, keys)
            return {
                "endpoints": endpoints,
                "tenants": tenants,
                "start_s": round(start_s, 2),
                "rss_mb": round(process.memory_info().rss / 1e6, 1),
                "list_p50_ms": round(statistics.median(lists), 2),
                "list_ms": round(percentile(lists, 0.99), 2),
            }
    finally:
        await nats.stop()


def tenant_name(number: int) -> str:
    """Return an account of 12 digits."""
    return f"{100_000_000_000 + number}"


async def _fill(tables: Tables, endpoints: int, tenants: int) -> list[Mapping[str, str]]:
    """Write what CreateModel, CreateEndpointConfig and CreateEndpoint leave behind; return a pair of keys of each tenant."""
    places = asyncio.Semaphore(AT_ONCE)
    sealing = SealingKey.parse(SECRETS_KEY)
    keys: list[Mapping[str, str]] = []

    async def one(tenant: str, number: int) -> None:
        async with places:
            name, made = f"endpoint-{number:05}", 1.8e9 + number
            variant = Variant(model="m", memory_mb=2048, concurrency_limit=5, policy=ScalePolicy(slots=5))
            config = a_config(tenant=tenant, name=f"{name}=0123456789ab", variants=(variant,))
            endpoint = an_endpoint(
                tenant=tenant, name=name, served_name=name, config=config.name, created_at=made, updated_at=made
            )
            said = AwsResource(
                tenant=tenant, kind=AwsKind.ENDPOINT, name=name, created_at=made, modified_at=made,
                request={"EndpointName": name, "EndpointConfigName": "c"}, tags={"team": "bench"},
            )  # fmt: skip
            await tables.endpoint_configs.create(key(tenant, config.name), config)
            await tables.endpoints.create(key(tenant, name), endpoint)
            await tables.aws.create(key(tenant, said.kind.value, name), said)

    async with asyncio.TaskGroup() as group:
        for number in range(tenants):
            tenant = tenant_name(number)
            await tables.models.create(key(tenant, "m"), a_model(tenant=tenant))
            record, pair = issue(tenant=tenant, name="bench", sealing=sealing, now=time.time())
            await tables.access_keys.create(record.id, record)
            keys.append({"aws_access_key_id": record.id, "aws_secret_access_key": pair.secret})
        for number in range(endpoints):
            group.create_task(one(tenant_name(number % tenants), number))
    return keys


@asynccontextmanager
async def _gateway(folder: Path, nats: EmbeddedNats) -> AsyncIterator[tuple[psutil.Process, str, float]]:
    """Start a gateway; yield it, its address, and the seconds from its start to ready."""
    port_file, log = folder / "port", folder / "gateway.log"
    environment = {
        **os.environ,
        "STANDBY_NATS_URL": nats.url,
        "STANDBY_NATS_USER": nats.user,
        "STANDBY_NATS_PASSWORD": nats.password.get_secret_value(),
        "STANDBY_NODE_TOKEN": "t",
        "STANDBY_KEY_PEPPER": "p",
        "STANDBY_SECRETS_KEY": SECRETS_KEY,
        "STANDBY_GATEWAY_PORT": "0",
        "STANDBY_PORT_FILE": str(port_file),
    }
    began = time.perf_counter()
    with log.open("wb") as written:
        child = await asyncio.create_subprocess_exec(
            BIN / "standby", "gateway", env=environment, stdout=written, stderr=written
        )
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            while not await _ready(client, port_file):
                assert child.returncode is None, log.read_text()
                await asyncio.sleep(0.01)
        took = time.perf_counter() - began
        yield psutil.Process(child.pid), f"http://127.0.0.1:{port_file.read_text()}", took
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


async def _ready(client: httpx.AsyncClient, port_file: Path) -> bool:
    if not port_file.exists() or not port_file.read_text():
        return False
    try:
        return (await client.get(f"http://127.0.0.1:{port_file.read_text()}/readyz")).status_code == 200
    except httpx.TransportError:
        return False


def _lists(url: str, keys: list[Mapping[str, str]]) -> list[float]:
    clients = [
        boto3.client(
            "sagemaker", region_name="us-east-1", endpoint_url=url, config=Config(retries={"total_max_attempts": 1}), **pair
        )
        for pair in keys[:3]
    ]
    times: list[float] = []
    for number in range(LISTS):
        client = clients[number % len(clients)]
        began = time.perf_counter()
        page = client.list_endpoints()
        times.append((time.perf_counter() - began) * 1000)
        assert len(page["Endpoints"]) == 10
        assert page["NextToken"]
    # Each client's first call opens its connection.
    return times[len(clients) :]
