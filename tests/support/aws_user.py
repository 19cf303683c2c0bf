"""A user of AWS's tools beside ``standby up``: the keys are the command's, and only ``endpoint_url`` points clients here."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from support.archive_builder import tar_gz
from support.deployment import NO_LISTING
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, short_dir
from support.gguf_builder import gguf
from support.real_model import real_model_path
from support.s3_server import S3Server, s3_server
from support.user import BIN, QUESTION, Ran, Up, up

ROLE = "arn:aws:iam::000000000000:role/anything"
BUCKET = "models"
TINY = "s3://models/tiny.tar.gz"
REAL = "s3://models/smollm2/"
BODY = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 24}).encode()
STREAM = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "stream": True}).encode()
# AWS's waiters look every 30 seconds; only the pace is ours.
PACE = {"Delay": 0.1, "MaxAttempts": 300}
CLIENTS = BIN.parent / "clients" / "bin"


@dataclass
class AwsUser:
    """``key`` is the pair as boto3 takes it; ``account`` whose it is."""

    url: str
    key: Mapping[str, str]
    account: str
    _clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str = "sagemaker", **config: Any) -> Any:
        """Return boto3's client of a service; the same one for the same configuration."""
        name = f"{service} {config}"
        if name not in self._clients:
            session = boto3.session.Session(region_name="us-east-1", **self.key)
            self._clients[name] = session.client(service, endpoint_url=self.url, config=Config(**config))
        return self._clients[name]

    def close(self) -> None:
        """End the clients' connections."""
        for client in self._clients.values():
            client.close()

    async def __call__(self, operation: str, **request: Any) -> Any:
        """Make one call of the control plane, once."""
        return await asyncio.to_thread(getattr(self.client(retries={"total_max_attempts": 1}), operation), **request)

    async def refused(self, operation: str, **request: Any) -> str:
        """Return the message of the ValidationException that a call must end in."""
        with pytest.raises(ClientError) as raised:
            await self(operation, **request)
        answer = raised.value.response
        assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == ("ValidationException", 400)
        return str(answer["Error"]["Message"])

    async def wait(self, waiter: str, endpoint: str) -> None:
        """Wait as boto3's waiters do, with a look each second."""
        wait = self.client().get_waiter(waiter).wait
        await asyncio.to_thread(wait, EndpointName=endpoint, WaiterConfig=PACE)

    # ---- resources ---------------------------------------------------------------------------------------------

    async def model(self, name: str, uri: str = TINY, **knobs: object) -> None:
        """Make a model of the fake engine with ``knobs``; of llama.cpp if it is the real one."""
        environment = {f"STANDBY_OPTION_{knob.upper()}": str(value) for knob, value in knobs.items()}
        container: dict[str, Any] = {"Image": "standby", "Environment": environment}
        if uri == REAL:
            source = {"S3Uri": REAL, "S3DataType": "S3Prefix", "CompressionType": "None"}
            container["ModelDataSource"] = {"S3DataSource": source}
        else:
            container |= {"ModelDataUrl": uri, "Environment": {"STANDBY_ENGINE": "fake", **environment}}
        await self("create_model", ModelName=name, PrimaryContainer=container, ExecutionRoleArn=ROLE)

    async def config(self, name: str, model: str, **serverless: int) -> None:
        """Make a serverless config of one variant."""
        wanted = {"MemorySizeInMB": 1024, "MaxConcurrency": 20, **serverless}
        variant = {"VariantName": "AllTraffic", "ModelName": model, "ServerlessConfig": wanted}
        await self("create_endpoint_config", EndpointConfigName=name, ProductionVariants=[variant])

    async def serving(self, name: str, uri: str = TINY, *, max_concurrency: int = 20, **knobs: object) -> str:
        """Make a model, a config and an endpoint of one name, and wait until it is in service."""
        await self.model(name, uri, **knobs)
        await self.config(name, name, MaxConcurrency=max_concurrency)
        await self("create_endpoint", EndpointName=name, EndpointConfigName=name)
        await self.wait("endpoint_in_service", name)
        return name

    # ---- invocations -------------------------------------------------------------------------------------------

    async def invoke(self, endpoint: str, body: bytes = BODY, *, config: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """Invoke and return boto3's answer, ``Body`` read."""

        def ask() -> Any:
            runtime = self.client("sagemaker-runtime", **(config or {}))
            answer = runtime.invoke_endpoint(EndpointName=endpoint, Body=body, ContentType="application/json", **more)
            return {**answer, "Body": answer["Body"].read()}

        return await asyncio.to_thread(ask)

    async def text(self, endpoint: str) -> str:
        """Invoke and return the text of the answer."""
        return text_of((await self.invoke(endpoint))["Body"])


def text_of(body: bytes) -> str:
    """The text of a chat completion."""
    return str(json.loads(body)["choices"][0]["message"]["content"])


@dataclass
class AwsPlace:
    """``standby up`` with an S3 server, both engines, and the default account's user; ``s3`` holds REAL and TINY."""

    up: Up
    s3: S3Server
    user: AwsUser
    variables: Mapping[str, str]
    gateways: tuple[str, ...]
    _users: list[AwsUser] = field(default_factory=list)

    async def another(self, account: str, *options: str, url: str | None = None) -> AwsUser:
        """Make a pair of keys with the command and return its user."""
        made = (await self.up.shell.standby("keys", "create", "k", "--aws", "--tenant", account, *options, "--json")).json()
        key = {"aws_access_key_id": made["access_key_id"], "aws_secret_access_key": made["secret_access_key"]}
        if made.get("session_token"):
            key["aws_session_token"] = made["session_token"]
        return self.at(url or self.up.url, key, account)

    def at(self, url: str, key: Mapping[str, str], account: str) -> AwsUser:
        """Return a user of any address with any key."""
        user = AwsUser(url, key, account)
        self._users.append(user)
        return user

    async def script(self, name: str, /, *, python: Path = CLIENTS / "python", **parameters: object) -> Any:
        """Run ``tests/support/clients/{name}.py`` as its own user would, and return the JSON that it prints."""
        program = Path(__file__).parent / "clients" / f"{name}.py"
        ran = await self._ran([str(python), "-P", str(program), json.dumps(parameters)])
        found = re.findall(r'\{"\w+":.*\}$', ran.out, re.MULTILINE)
        assert found, ran.out[-2000:]
        return json.loads(found[-1])

    async def shell(self, line: str, code: int = 0) -> Ran:
        """Run a line of a shell into which ``standby aws`` was evaluated; the clients' programs come first."""
        path = f"{CLIENTS}:{self.up.shell.environment['PATH']}"
        return await self._ran(["bash", "-c", line], code, PATH=path, AWS_PAGER="")

    async def _ran(self, command: list[str], code: int = 0, **more: str) -> Ran:
        quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*", "PYTHONWARNINGS": "ignore"}
        return await self.up.shell.run(command, code, {**self.variables, **quiet, **more}, deadline_s=150.0)

    def close(self) -> None:
        """End the users' connections."""
        for user in self._users:
            user.close()


@asynccontextmanager
async def aws_place(
    folder: Path, *, gateways: int = 1, real: bool = True, more: Mapping[str, str] | None = None
) -> AsyncIterator[AwsPlace]:
    """Start it all; the account is the one that ``standby aws`` makes a pair for."""
    async with s3_server(folder, BUCKET) as s3:
        await upload(s3, "tiny.tar.gz", tar_gz({"model.gguf": gguf()}), folder)
        if real:
            await s3.upload(BUCKET, "smollm2/model.gguf", real_model_path())
        settings = {**s3.env(), "STANDBY_FAKE_ENGINE": str(FAKE_ENGINE_PROGRAM), "STANDBY_STOP_GRACE_S": "1"}
        with short_dir() as home:
            async with up(home / "state", {**settings, **NO_LISTING, **(more or {})}, "--gateways", str(gateways)) as running:
                variables = (await running.shell.standby("aws", "--json")).json()
                key = {name.lower(): variables[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
                place = AwsPlace(running, s3, AwsUser(running.url, key, "0" * 12), variables, _addresses(home / "state"))
                place._users.append(place.user)
                try:
                    yield place
                finally:
                    place.close()


async def upload(s3: S3Server, name: str, content: bytes, folder: Path) -> None:
    """Store an object in the bucket."""
    path = folder / name
    path.write_bytes(content)
    await s3.upload(BUCKET, name, path)


def _addresses(state: Path) -> tuple[str, ...]:
    return tuple(f"http://127.0.0.1:{file.read_text()}" for file in sorted(state.glob("gateway*.port")))
