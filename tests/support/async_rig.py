"""A whole deployment with a real S3 server behind it, and boto3 in front: for asynchronous invocations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import obstore
from botocore.config import Config

from support.deployment import DEADLINE_S, QUESTION, Deployment, deployment
from support.fake_engine_spec import Option
from support.s3_server import S3Server, s3_server

BUCKET = "results"
MODELS = "own-models"
BODY = json.dumps({"messages": QUESTION}).encode()
TOPICS = {"SuccessTopic": "arn:aws:sns:us-east-1:000000000000:good", "ErrorTopic": "arn:aws:sns:us-east-1:000000000000:bad"}


@dataclass
class AsyncRig:
    """``there`` is the deployment, ``s3`` its store."""

    there: Deployment
    s3: S3Server
    _keys: dict[str, dict[str, str]] = field(default_factory=dict)
    _clients: list[Any] = field(default_factory=list)

    async def client(self, service: str = "sagemaker-runtime", *, tenant: str | None = None, gateway: int = 0) -> Any:
        """boto3's client of a service for a tenant, by default the administrator's."""
        key = await self._key(tenant)
        client = boto3.session.Session().client(
            service,
            "us-east-1",
            endpoint_url=self.there.url(gateway),
            config=Config(retries={"total_max_attempts": 1}),
            **key,
        )
        self._clients.append(client)
        return client

    async def endpoint(
        self,
        name: str,
        *,
        knobs: Mapping[str, Option] | None = None,
        model: str | None = None,
        path: str | None = None,
        failures: str | None = None,
        at_once: int | None = None,
        asynchronous: bool = True,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Create an endpoint at zero, as AWS's clients do; its results go below ``s3://results/NAME/``."""
        model = model or await self.there.model(knobs or {})
        client = await self.client("sagemaker")
        output = {"S3OutputPath": path or f"s3://{BUCKET}/{name}/out", "NotificationConfig": TOPICS}
        if failures is not None:
            output["S3FailurePath"] = failures
        config: dict[str, Any] = {"OutputConfig": output}
        if at_once is not None:
            config["ClientConfig"] = {"MaxConcurrentInvocationsPerInstance": at_once}
        variant = {"VariantName": "v", "ModelName": model, "InstanceType": "ml.m5.large", "InitialInstanceCount": 1}
        more = {"AsyncInferenceConfig": config} if asynchronous else {}
        call = asyncio.to_thread
        await call(partial(client.create_endpoint_config, EndpointConfigName=name, ProductionVariants=[variant], **more))
        wanted = [{"Key": key, "Value": value} for key, value in (tags or {}).items()]
        await call(partial(client.create_endpoint, EndpointName=name, EndpointConfigName=name, Tags=wanted))
        for gateway in range(len(self.there.stack.urls)):
            await self.there.until(partial(self.there.knows, name, gateway), f"gateway {gateway} knows {name}")
        return name

    async def invoke(self, endpoint: str, *, client: Any = None, **request: Any) -> dict[str, Any]:
        """Invoke asynchronously, in a thread."""
        client = client or await self.client()
        if "Body" not in request and "InputLocation" not in request:
            request["Body"] = BODY
        answer: dict[str, Any] = await asyncio.to_thread(
            partial(client.invoke_endpoint_async, EndpointName=endpoint, **request)
        )
        return answer

    async def objects(self, prefix: str) -> dict[str, bytes]:
        """Every object of the bucket below a folder."""
        store = self.s3.store(BUCKET)
        found = [meta["path"] async for page in obstore.list(store, prefix or None) for meta in page]
        return {key: bytes(await (await obstore.get_async(store, key)).bytes_async()) for key in found}

    async def appears(self, uri: str, within_s: float = DEADLINE_S) -> bytes:
        """Wait for an object and return it."""
        key = uri.removeprefix(f"s3://{BUCKET}/")

        async def there() -> list[bytes]:
            try:
                return [bytes(await (await obstore.get_async(self.s3.store(BUCKET), key)).bytes_async())]
            except FileNotFoundError:
                return []

        found: list[bytes] = await self.there.until(there, f"{uri} is there", within_s)
        return found[0]

    async def _key(self, tenant: str | None) -> dict[str, str]:
        if (tenant or "") not in self._keys:
            body = {"name": "tester"} if tenant is None else {"name": "tester", "tenant": tenant}
            made = await self.there.api("POST", "/access-keys", body)
            self._keys[tenant or ""] = {
                "aws_access_key_id": made["access_key_id"],
                "aws_secret_access_key": made["secret_access_key"],
            }
        return self._keys[tenant or ""]

    def close(self) -> None:
        """End the clients' connections."""
        for client in self._clients:
            client.close()


@asynccontextmanager
async def async_rig(
    tmp_path: Path, *, gateways: int = 1, environment: Mapping[str, str] | None = None
) -> AsyncIterator[AsyncRig]:
    """Start both, and end both."""
    async with AsyncExitStack() as stack:
        s3 = await stack.enter_async_context(s3_server(tmp_path, BUCKET, MODELS))
        given = {**s3.env(), **(environment or {})}
        there = await stack.enter_async_context(deployment(tmp_path, gateways=gateways, environment=given))
        rig = AsyncRig(there, s3)
        stack.callback(rig.close)
        yield rig
