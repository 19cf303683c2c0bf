"""boto3's own requests through a real server, revocation across gateways, and a gateway that is cut off."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from standby.domain.access import Tenant
from support import doorkeepers as keepers
from support.doorkeepers import Doorkeeper, Doorkeepers, doorkeepers
from support.signed import TENANT, bearer_token
from support.waiting import until


@pytest.fixture
def trust_s() -> float:
    """For how long a gateway believes what it has listed last: here longer than any test."""
    return 3600.0


@pytest.fixture
def relist_s() -> float:
    """How often it lists: never again, so that what it hears of is what it is told."""
    return 3600.0


@pytest.fixture
async def both(tmp_path: Path, trust_s: float, relist_s: float, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Doorkeepers]:
    monkeypatch.setattr(keepers, "TRUST_S", trust_s)
    monkeypatch.setattr(keepers, "RELIST_S", relist_s)
    async with doorkeepers(tmp_path) as running:
        yield running


async def describe(client: Any, name: str = "e") -> Any:
    return await asyncio.to_thread(client.describe_endpoint, EndpointName=name)


async def code_of(client: Any) -> str:
    """Return the error's code, or an empty text where the call was let in."""
    try:
        await describe(client)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


async def with_bearer(keeper: Doorkeeper, token: str) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(
            f"{keeper.url}/endpoints/e/openai/v1/chat/completions", headers={"authorization": f"Bearer {token}"}
        )
    return answer.status_code


@pytest.mark.parametrize("session", [False, True])
async def test_boto3_is_let_in_as_it_is(both: Doorkeepers, session: bool) -> None:
    key, pair = await both.pair(session=session)

    answer = await describe(both.first.client(key, pair))
    runtime = both.second.client(key, pair, "sagemaker-runtime")
    invoked = await asyncio.to_thread(
        runtime.invoke_endpoint,
        EndpointName="a-b",
        Body=b"\x00{}",
        ContentType="application/octet-stream",
        CustomAttributes='a="b  c", d;e',
        TargetVariant="AllTraffic",
    )

    assert answer["EndpointArn"] == f"arn:aws:sagemaker:us-west-2:{TENANT}:endpoint/{key.id.lower()}"
    assert json.loads(invoked["Body"].read()) == {"EndpointArn": answer["EndpointArn"]}


async def test_wrong_secrets_and_unknown_keys_have_aws_codes(both: Doorkeepers) -> None:
    key, pair = await both.pair(session=True)
    wrong = pair._replace(secret="wrong")
    other_token = pair._replace(token="wrong")
    unknown = key.model_copy(update={"id": "SBKAAAAAAAAAAAAAAAAA"})

    assert await code_of(both.first.client(key, wrong)) == "InvalidSignatureException"
    assert await code_of(both.first.client(key, other_token)) == "UnrecognizedClientException"
    assert await code_of(both.first.client(unknown, pair)) == "UnrecognizedClientException"
    await until(lambda: len(both.first.told) == 3)
    assert [(event.who, event.reason) for event in both.first.told] == [
        (key.id, "InvalidSignatureException"),
        (key.id, "UnrecognizedClientException"),
        ("", "UnrecognizedClientException"),
    ]


async def test_a_revocation_counts_at_every_gateway_as_soon_as_it_is_told(both: Doorkeepers) -> None:
    """Field case B44: both gateways have used the key; it is revoked through one."""
    key, pair = await both.pair()
    bearer, secret = await both.bearer()
    clients = [one.client(key, pair) for one in (both.first, both.second)]
    token = bearer_token(Credentials(key.id, pair.secret), now=time.time())
    for client in clients:
        assert await code_of(client) == ""
    for good in (secret, token):
        assert await with_bearer(both.second, good) == 200

    entry = await both.tables.access_keys.get(key.id)
    bearer_entry = await both.tables.keys.get(bearer.id)
    assert entry is not None
    assert bearer_entry is not None
    await both.tables.access_keys.update(key.id, key.model_copy(update={"revoked_at": time.time()}), entry.revision)
    await both.tables.keys.update(bearer.id, bearer.model_copy(update={"revoked_at": time.time()}), bearer_entry.revision)
    for keeper in (both.first, both.second):
        pairs, bearers = keeper.directory.access_keys.entries, keeper.directory.keys
        await until(lambda pairs=pairs: pairs[key.id].value.revoked_at is not None)  # type: ignore[misc]
        await until(lambda bearers=bearers: bearers[bearer.id].revoked_at is not None)  # type: ignore[misc]

    for client in clients:
        assert await code_of(client) == "UnrecognizedClientException"
    for keeper in (both.first, both.second):
        assert len(keeper.authenticator.vault) == 0
        for gone in (secret, token):
            assert await with_bearer(keeper, gone) == 403


async def test_a_disabled_tenant_is_nobody(both: Doorkeepers) -> None:
    key, pair = await both.pair()
    _, secret = await both.bearer()
    client = both.second.client(key, pair)
    assert await code_of(client) == ""

    await both.tables.tenants.create(TENANT, Tenant(id=TENANT, created_at=0.0, disabled_at=1.0))
    await until(lambda: TENANT in both.second.directory.tenants.entries)

    assert await code_of(client) == "UnrecognizedClientException"
    assert await with_bearer(both.second, secret) == 403


@pytest.mark.parametrize(("trust_s", "relist_s"), [(6.0, 0.2)])
async def test_a_gateway_that_is_cut_off_lets_nobody_in_after_a_while(both: Doorkeepers) -> None:
    """Field case B44: it cannot hear of a revocation; once it is connected again, it lets in who is still good."""
    key, pair = await both.pair()
    _, secret = await both.bearer()
    client = both.second.client(key, pair)
    assert await code_of(client) == ""

    both.link.cut()
    assert await code_of(client) == ""
    deadline = time.monotonic() + 60
    while await code_of(client) == "":
        assert time.monotonic() < deadline, "it still lets in"
    assert await code_of(client) == "ServiceUnavailable"
    assert await with_bearer(both.second, secret) == 503
    assert await code_of(both.first.client(key, pair)) == ""

    both.link.mend()
    deadline = time.monotonic() + 60
    while await code_of(client) != "":
        assert time.monotonic() < deadline, "it still lets nobody in"
    assert await with_bearer(both.second, secret) == 200


async def test_no_secret_is_logged(both: Doorkeepers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "standby")
    key, pair = await both.pair(session=True)
    _, secret = await both.bearer()
    token = bearer_token(Credentials(key.id, pair.secret, pair.token), now=time.time())
    assert pair.token is not None

    await code_of(both.first.client(key, pair))
    await code_of(both.first.client(key, pair._replace(secret="x")))
    for one in (secret, token, token[:-8], "sk-standby-" + "0" * 40):
        await with_bearer(both.first, one)
    record = await both.tables.access_keys.get(key.id)
    assert record is not None
    moved = record.value.model_copy(update={"tenant": "999999999999"})
    await both.tables.access_keys.update(key.id, moved, record.revision)
    await until(lambda: both.first.directory.access_keys.entries[key.id].value == moved)
    await code_of(both.first.client(key, pair))

    assert "cannot be opened" in caplog.text
    stored = b""
    for field in dataclasses.fields(both.tables):
        stored += b"".join(entry.value.encode() for entry in (await getattr(both.tables, field.name).list()).values())
    told = "".join(event.model_dump_json() for event in both.first.told)
    for hidden in (pair.secret, pair.token, secret.rpartition("-")[2], token):
        assert hidden not in caplog.text + told + stored.decode()
        assert hidden not in "".join(str(entry.__dict__) for entry in caplog.records)
