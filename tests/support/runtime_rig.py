"""The runtime's routes on a real port before a scriptable engine, and AWS's own client in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from standby.domain.aws import AwsKind, AwsResource
from standby.domain.endpoint import ScalePolicy, Variant
from standby.gateway.dataplane import RuntimeOptions
from support.door_rig import SLOTS, Rig, door_rig
from support.gateway_rig import GatewayRig, gateway_rig
from support.signed import TENANT, Records, World, bearer_token
from support.upstream import Call

QUESTION = json.dumps({"messages": [{"role": "user", "content": "?"}]}).encode()


@dataclass
class RuntimeRig:
    """``world`` holds the keys, ``resources`` what AWS's clients have declared."""

    gateway: GatewayRig
    world: World
    resources: Records
    clients: list[Any] = field(default_factory=list)

    @property
    def engine(self) -> Rig:
        """The door and what is behind it."""
        return self.gateway.behind

    @property
    def url(self) -> str:
        """Where clients are pointed at."""
        host, port = self.gateway.address
        return f"http://{host}:{port}"

    def answers(self, handler: Callable[[Call], Any]) -> None:
        """Let the engine answer like this."""
        self.engine.engine.handler = handler

    @property
    def asked(self) -> list[Call]:
        """The requests that the engine has got."""
        return self.engine.engine.calls

    def client(self, **config: Any) -> Any:
        """boto3's client for sagemaker-runtime, as anybody makes it."""
        _, credentials = self.world.key()
        client = boto3.client(
            "sagemaker-runtime",
            region_name="us-east-1",
            endpoint_url=self.url,
            aws_access_key_id=credentials.access_key,
            aws_secret_access_key=credentials.secret_key,
            config=Config(**config),
        )
        self.clients.append(client)
        return client

    async def invoke(self, body: bytes = QUESTION, *, endpoint: str = "e", client: Any = None, **more: Any) -> dict[str, Any]:
        """Invoke, and read the body too; in a thread, since boto3 blocks."""
        client = client or self.client()

        def call() -> dict[str, Any]:
            answer = client.invoke_endpoint(EndpointName=endpoint, Body=body, **more)
            return {**answer, "Body": answer["Body"].read()}

        return await asyncio.to_thread(call)

    async def stream(
        self, body: bytes = QUESTION, *, endpoint: str = "e", client: Any = None, seen: list[bytes] | None = None, **more: Any
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Invoke with a response stream and read all parts; ``seen`` holds them while they come."""
        client = client or self.client()
        parts = [] if seen is None else seen

        def call() -> tuple[dict[str, Any], list[bytes]]:
            answer = client.invoke_endpoint_with_response_stream(EndpointName=endpoint, Body=body, **more)
            with contextlib.closing(answer["Body"]) as events:
                for event in events:
                    parts.append(event["PayloadPart"]["Bytes"])
            return answer, parts

        return await asyncio.to_thread(call)

    def token(self, now: float) -> str:
        """A bearer token as SageMaker's own generator makes it."""
        _, credentials = self.world.key()
        return bearer_token(credentials, now=now)

    def declare(self, kind: AwsKind, name: str, **fields: Any) -> None:
        """Say that a client has made this."""
        record = AwsResource(tenant=TENANT, kind=kind, name=name, created_at=1.0, modified_at=1.0, **fields)
        self.resources.put(f"{TENANT}.{kind.value}.{name}", record)


@contextlib.asynccontextmanager
async def runtime_rig(
    *,
    concurrency_limit: int | None = None,
    max_cold_wait: float = 20.0,
    awake: bool = True,
    grace_s: int = 5,
    **options: Any,
) -> AsyncIterator[RuntimeRig]:
    """Serve the endpoint ``e`` with its variant ``AllTraffic``; with a ``concurrency_limit`` it is a serverless one."""
    policy = ScalePolicy(max_cold_wait=max_cold_wait, slots=SLOTS)
    variant = Variant(model="m", policy=policy, concurrency_limit=concurrency_limit)
    world, resources = World(), Records()
    runtime = RuntimeOptions(authenticator=world.authenticator, resources=resources, **options)
    serve = partial(gateway_rig, variant=variant, tenant=TENANT, awake=awake, grace_s=grace_s, runtime=runtime)
    with tempfile.TemporaryDirectory(prefix="door-") as folder:
        async with door_rig(Path(folder) / "engine.sock") as behind, serve(behind, max_body_bytes=6 * 2**20) as gateway:
            rig = RuntimeRig(gateway, world, resources)
            yield rig
            for client in rig.clients:
                client.close()
