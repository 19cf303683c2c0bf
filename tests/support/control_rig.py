"""The control plane's operations over a real nats-server, with a real controller, a node without engines, no artifacts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.bus.mirror import Mirror
from standby.bus.tables_set import Tables, open_tables
from standby.controller.loop import Controller
from standby.domain.access import ALL_SCOPES, Quotas
from standby.domain.assignment import Assignment
from standby.domain.endpoint import Failure
from standby.domain.errors import SourceUnreachable
from standby.domain.instance import Instance, InstanceState
from standby.domain.model import Manifest, ObjectRef
from standby.host import tasks as host_tasks
from standby.sagemaker.auth.caller import Caller, user_arn
from standby.sagemaker.control.background import Background
from standby.sagemaker.control.context import ControlCall, ControlContext
from standby.sagemaker.control.inspection import Inspector
from standby.sagemaker.control.operations import HANDLERS
from standby.sagemaker.control.records import Copies, Records
from standby.sagemaker.shapes.answers import answer_json
from standby.sagemaker.shapes.paging import Pager
from standby.sagemaker.shapes.requests import parse_json
from standby.sagemaker.shapes.services import SAGEMAKER
from support.builders import a_manifest
from support.fake_node import FakeNode
from support.nats_server import NatsServer, nats_server
from support.waiting import until

ONE = "111111111111"
TWO = "222222222222"
ROLE = "arn:aws:iam::111111111111:role/anything"
SERVERLESS = {"MemorySizeInMB": 2048, "MaxConcurrency": 5}


class Artifacts:
    """Answers the look at an artifact by words in its URI: ``gone`` is not there, ``slow`` waits for ``release``."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.looks: list[str] = []
        self.mended = False

    async def inspect(self, uri: str, options: Any, *, credentials: Any = None, hint: Any = None) -> Manifest:
        self.looks.append(uri)
        if "slow" in uri:
            await self.release.wait()
        if "gone" in uri and not self.mended:
            raise SourceUnreachable(f"{uri}: the store has no such object", remedy="upload it")
        return a_manifest(source_uri=uri, objects=(ObjectRef(key="k", path="model.gguf", size=1000, etag=uri),))


class CrashingNode(FakeNode):
    """A node on which what has ``crash`` in its URI never starts."""

    def _record(self, wanted: Assignment, state: InstanceState) -> Instance:
        record = super()._record(wanted, state)
        if state is not InstanceState.READY or "crash" not in wanted.model.manifest.source_uri:
            return record
        failure = Failure(
            reason="the engine ended with exit code 1 after 0.2 s", first_error="error: no such tensor", attempts=3, at=1.0
        )
        self.states[f"{self.name}.{wanted.instance}"] = InstanceState.FAILED
        return record.model_copy(update={"state": InstanceState.FAILED, "failure": failure})


@dataclass
class ControlRig:
    """``call`` makes one request as the dispatch does: parsed and answered by AWS's own shapes."""

    nats: NatsServer
    tables: Tables
    context: ControlContext
    background: Background
    artifacts: Artifacts
    quotas: dict[str, Quotas] = field(default_factory=dict)

    async def call(self, operation: str, tenant: str = ONE, **members: Any) -> dict[str, Any]:
        caller = Caller(tenant, "SBKATEST", ALL_SCOPES, user_arn(tenant, "tester"), "us-east-1")
        request = parse_json(SAGEMAKER, operation, json.dumps(members).encode())
        answer = await HANDLERS[SAGEMAKER, operation](ControlCall(caller, self.context, "r"), request)
        body = answer_json(SAGEMAKER, operation, answer)
        return json.loads(body) if body else {}

    async def model(self, name: str = "m", uri: str = "s3://models/m.tar.gz", tenant: str = ONE, **members: Any) -> None:
        """Make a model of the fake engine."""
        container = {"Image": "djl-inference:lmi", "ModelDataUrl": uri, "Environment": {"STANDBY_ENGINE": "fake"}}
        await self.call("CreateModel", tenant, ModelName=name, PrimaryContainer=container, ExecutionRoleArn=ROLE, **members)

    async def config(self, name: str = "c", model: str = "m", tenant: str = ONE, **changes: Any) -> None:
        """Make a serverless config of one variant."""
        members = {key: changes.pop(key) for key in ("Tags", "AsyncInferenceConfig") if key in changes}
        variant = {"VariantName": "AllTraffic", "ModelName": model, "ServerlessConfig": {**SERVERLESS, **changes}}
        await self.call("CreateEndpointConfig", tenant, EndpointConfigName=name, ProductionVariants=[variant], **members)

    async def endpoint(self, name: str = "e", config: str = "c", tenant: str = ONE, **members: Any) -> None:
        await self.call("CreateEndpoint", tenant, EndpointName=name, EndpointConfigName=config, **members)

    async def describe(self, name: str = "e", tenant: str = ONE) -> dict[str, Any]:
        return await self.call("DescribeEndpoint", tenant, EndpointName=name)

    async def serving(self, name: str = "e", config: str = "c", model: str = "m", **changes: Any) -> None:
        """Make a model, a config and an endpoint; returns when that is in service."""
        await self.model(model)
        await self.config(config, model, **changes)
        await self.endpoint(name, config)

        async def in_service() -> bool:
            return bool((await self.describe(name))["EndpointStatus"] == "InService")

        await until(in_service)


@asynccontextmanager
async def mirrors(tables: Tables) -> AsyncIterator[Copies]:
    """Watched copies of what the control plane reads."""
    copies = Copies(
        models=Mirror(tables.models),
        endpoint_configs=Mirror(tables.endpoint_configs),
        endpoints=Mirror(tables.endpoints),
        instances=Mirror(tables.instances),
        nodes=Mirror(tables.nodes),
        aws=Mirror(tables.aws),
    )
    async with AsyncExitStack() as stack:
        for name in Copies.__dataclass_fields__:
            mirror = getattr(copies, name)
            await mirror.start()
            stack.push_async_callback(mirror.stop)
        yield copies


@asynccontextmanager
async def control_context(
    bus: Bus, artifacts: Artifacts, *, source: str = "gateway/one", quotas: dict[str, Quotas] | None = None, **options: Any
) -> AsyncIterator[tuple[ControlContext, Background]]:
    """One gateway's control plane; ``options`` go to its background work or its context."""
    tables = await open_tables(bus)
    limits = {} if quotas is None else quotas
    timing = {name: options.pop(name) for name in ("beat_s", "take_over_s", "sweep_s", "look_s") if name in options}
    async with AsyncExitStack() as stack:
        copies = await stack.enter_async_context(mirrors(tables))
        events = await EventLog.open(bus)
        stack.push_async_callback(events.close)
        records = Records(tables, copies, events, source)
        background = Background(records, Inspector(records, artifacts.inspect), **{"look_s": 0.01, **timing})
        await background.start()
        stack.push_async_callback(background.stop)
        pager = Pager(b"pepper")
        yield ControlContext(records, background, lambda tenant: limits.get(tenant, Quotas()), pager, **options), background


@asynccontextmanager
async def controller_and_node(bus: Bus, tables: Tables) -> AsyncIterator[CrashingNode]:
    """A leading controller and a node that obeys it."""
    events = await EventLog.open(bus)
    controller = Controller(bus, tables, events, name="c1", lease_ttl=2.0)
    node = CrashingNode(tables, "n1")
    await node.beat()
    await node.mirror.start()

    async def beats() -> None:
        while True:
            await node.beat()
            await asyncio.sleep(1)

    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work) for work in (controller.run(), node.serve(), beats())]
    try:
        yield node
    finally:
        await host_tasks.end(tasks)
        await node.mirror.stop()
        await events.close()


@asynccontextmanager
async def control_rig(tmp_path: Path, **options: Any) -> AsyncIterator[ControlRig]:
    """Everything in this process, over a server of its own."""
    artifacts, quotas = Artifacts(), dict[str, Quotas]()
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(tmp_path))
        bus = await stack.enter_async_context(nats.bus())
        tables = await open_tables(bus)
        await stack.enter_async_context(controller_and_node(bus, tables))
        made = await stack.enter_async_context(control_context(bus, artifacts, quotas=quotas, **options))
        yield ControlRig(nats, tables, *made, artifacts, quotas)
