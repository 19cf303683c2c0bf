"""boto3's unmodified client against a whole deployment: cold starts that outlast its patience, and killed processes."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from functools import partial
from typing import Any
from unittest.mock import ANY

import boto3
import pytest
import pytest_asyncio
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError
from urllib3.exceptions import ProtocolError

from support.deployment import PARIS, QUESTION, Deployment, deployment

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = json.dumps({"messages": QUESTION}).encode()
STREAM = json.dumps({"messages": QUESTION, "stream": True}).encode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def there(tmp_path_factory: pytest.TempPathFactory) -> Any:
    async with deployment(tmp_path_factory.mktemp("deployment")) as running:
        yield running


async def client_of(there: Deployment, **config: Any) -> Any:
    made = await there.api("POST", "/access-keys", {"name": "boto3"})
    return boto3.client(
        "sagemaker-runtime",
        region_name="us-east-1",
        endpoint_url=there.url(),
        aws_access_key_id=made["access_key_id"],
        aws_secret_access_key=made["secret_access_key"],
        config=Config(**config),
    )


async def invoke(client: Any, endpoint: str) -> str:
    def call() -> str:
        body = client.invoke_endpoint(EndpointName=endpoint, Body=BODY, ContentType="application/json")["Body"].read()
        return str(json.loads(body)["choices"][0]["message"]["content"])

    try:
        return await asyncio.to_thread(call)
    finally:
        client.close()


def parts_of(client: Any, endpoint: str, seen: list[bytes]) -> None:
    with (
        closing(client),
        closing(client.invoke_endpoint_with_response_stream(EndpointName=endpoint, Body=STREAM)["Body"]) as body,
    ):
        for event in body:
            seen += [event["PayloadPart"]["Bytes"]]


async def test_a_cold_start_that_outlasts_the_clients_patience_runs_once(there: Deployment) -> None:
    """Field case B46: the client gives up again and again while the engine loads; its last wait has the one run's answer."""
    await there.endpoint("cold", knobs={"start_delay_s": 2.5})
    impatient = await client_of(there, read_timeout=1, retries={"mode": "standard", "total_max_attempts": 15})
    assert await invoke(impatient, "cold") == PARIS
    await started_once(there, "cold")
    # The node's own probes of readiness are the same for any endpoint.
    await there.endpoint("other", knobs={"start_delay_s": 0.1})
    await there.warm("other")
    assert await there.stats("cold") == {**(await there.stats("other")), "tokens": ANY}
    await there.until_total("standby_requests_in_flight", "cold", 0)


@pytest.mark.check(20)
async def test_not_ready_ends_at_once_and_the_load_goes_on(there: Deployment) -> None:
    """Check 20: one attempt, one worker, and a later call is served by it."""
    await there.endpoint("late", knobs={"start_delay_s": 1.5}, max_cold_wait="0.4s")
    with pytest.raises(ClientError) as raised:
        await invoke(await client_of(there), "late")
    assert raised.value.response["Error"]["Code"] == "ModelNotReadyException"
    assert raised.value.response["ResponseMetadata"]["RetryAttempts"] == 0
    await there.until_state("late", "ready")
    assert await invoke(await client_of(there), "late") == PARIS
    await started_once(there, "late")


@pytest.mark.check(21)
async def test_a_worker_that_is_killed_in_the_middle_of_a_stream(there: Deployment) -> None:
    """Check 21."""
    await there.endpoint("fragile", knobs={"token_delay_ms": 50, "tokens": 2000})
    await there.warm("fragile")
    seen: list[bytes] = []
    reading = asyncio.create_task(asyncio.to_thread(partial(parts_of, await client_of(there), "fragile", seen)))
    await there.until(lambda: _has(seen), "parts arrive")
    there.engine_of((await there.instance("fragile") or {})["id"]).kill()
    with pytest.raises(EventStreamError, match="ModelStreamError"):
        await reading


async def test_a_gateway_that_is_killed_in_the_middle_of_a_stream(there: Deployment) -> None:
    """Field case B47 d: a stream without its end is an error at the client, never a short answer."""
    await there.endpoint("cut", knobs={"token_delay_ms": 50, "tokens": 2000})
    await there.warm("cut")
    seen: list[bytes] = []
    reading = asyncio.create_task(asyncio.to_thread(partial(parts_of, await client_of(there), "cut", seen)))
    await there.until(lambda: _has(seen), "parts arrive")
    await there.kill_gateway(0)
    with pytest.raises(ProtocolError):
        await reading


async def started_once(there: Deployment, endpoint: str) -> None:
    """Prove it once the node's news of a later start has come, which is behind all of its news about this endpoint."""
    later = await there.endpoint(f"after-{endpoint}")
    await there.warm(later)
    await there.happened(lambda: there.spawns(later), f"{later} has started")
    assert there.spawns(endpoint) == 1


async def _has(seen: list[bytes]) -> bool:
    return bool(seen)
