"""Two gateways' ways of letting callers in, over one nats-server; the second one's link to it can be cut."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from standby.bus.connection import Bus
from standby.bus.tables_set import Tables, open_tables
from standby.domain.access import AccessKey, ApiKey
from standby.gateway import keys
from standby.gateway.audit import Audit
from standby.gateway.authn import authenticator_of
from standby.gateway.desk import AllRooms
from standby.gateway.directory import Directory
from standby.sagemaker.auth.access_keys import Pair, issue
from standby.sagemaker.auth.authenticator import Authenticator
from standby.sagemaker.auth.caller import Caller
from standby.sagemaker.errors import AwsError
from support.control_api import http_server
from support.nats_server import Link, nats_server
from support.signed import SEALING, TENANT

PEPPER = b"a pepper for tests"
RELIST_S = 0.2
TRUST_S = 1.5


@dataclass
class Doorkeeper:
    """One gateway's directory and authenticator, and the URL of a server that asks it and answers with the caller."""

    directory: Directory
    authenticator: Authenticator
    url: str
    told: list[Any]

    def client(self, key: AccessKey, pair: Pair, service: str = "sagemaker") -> Any:
        """A client of boto3 with one attempt, in the region us-west-2."""
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name="us-west-2",
            aws_access_key_id=key.id,
            aws_secret_access_key=pair.secret,
            aws_session_token=pair.token,
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=60, read_timeout=60),
        )


@dataclass
class Doorkeepers:
    """``link`` is the second one's."""

    tables: Tables
    first: Doorkeeper
    second: Doorkeeper
    link: Link

    async def pair(self, **how: Any) -> tuple[AccessKey, Pair]:
        """Make a pair of keys that both know."""
        how = {"tenant": TENANT, "name": "ci", "sealing": SEALING, "now": time.time(), **how}
        record, pair = issue(**how)
        await self.tables.access_keys.create(record.id, record)
        while not all(record.id in one.directory.access_keys.entries for one in (self.first, self.second)):
            await asyncio.sleep(0.01)
        return record, pair

    async def bearer(self) -> tuple[ApiKey, str]:
        """Make a bearer key that both know."""
        record, secret = keys.issue(tenant=TENANT, name="ci", pepper=PEPPER, now=time.time())
        await self.tables.keys.create(record.id, record)
        while not all(record.id in one.directory.keys for one in (self.first, self.second)):
            await asyncio.sleep(0.01)
        return record, secret


@asynccontextmanager
async def doorkeepers(tmp_path: Path) -> AsyncIterator[Doorkeepers]:
    """Start both; ended at the end."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(tmp_path))
        link = await stack.enter_async_context(server.link())
        near = await stack.enter_async_context(server.bus(nats_relist_interval=RELIST_S))
        far = await stack.enter_async_context(server.bus(nats_relist_interval=RELIST_S, nats_url=link.url))
        tables = await open_tables(near)
        first = await _doorkeeper(stack, near)
        second = await _doorkeeper(stack, far)
        yield Doorkeepers(tables, first, second, link)


async def _doorkeeper(stack: AsyncExitStack, bus: Bus) -> Doorkeeper:
    told: list[Any] = []

    async def publish(event: Any) -> None:
        told.append(event)

    directory = Directory(
        await open_tables(bus), AllRooms(10**6), time.monotonic, time.time, lambda _d, _u: None, key_trust_s=TRUST_S
    )
    audit = Audit(publish, "gateway/test", time.time)
    authenticator = authenticator_of(directory, SEALING, PEPPER, audit, trust_s=TRUST_S, region="us-east-1")
    await directory.start()
    stack.push_async_callback(directory.stop)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        status, answer = _answer(authenticator, scope, body)
        head = [(b"content-type", b"application/x-amz-json-1.1"), (b"x-amzn-requestid", secrets.token_hex(8).encode())]
        if status != 200:
            head.append((b"x-amzn-errortype", answer["__type"].encode()))
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    url = await stack.enter_async_context(http_server(app))
    return Doorkeeper(directory, authenticator, url, told)


def _answer(authenticator: Authenticator, scope: Any, body: bytes) -> tuple[int, dict[str, Any]]:
    """Say who calls as an endpoint's ARN, which every operation of the tests can carry."""
    try:
        caller = _caller(authenticator, scope, body)
    except AwsError as error:
        return error.status, {"__type": error.code, "message": error.message, "Message": error.message}
    return 200, {"EndpointArn": f"arn:aws:sagemaker:{caller.region}:{caller.tenant}:endpoint/{caller.key_id.lower()}"}


def _caller(authenticator: Authenticator, scope: Any, body: bytes) -> Caller:
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) == 1 and given[0].startswith(b"Bearer "):
        return authenticator.authenticate_bearer(given[0][7:].decode("latin-1"), time.time())
    return authenticator.authenticate(
        scope["method"], scope["raw_path"], scope["query_string"], scope["headers"], body, now=time.time()
    )
