"""A whole deployment as real processes: ``async with deployment(tmp_path) as there: await there.endpoint("e")``.

nats-server, a controller, a node with the fake engine, and any number of gateways, started by ``standby.cli.stack``.
Every process carries the deployment's folder in ``TMPDIR``, so that what outlives it is found whoever its parent is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import psutil

from standby.cli.stack import Stack, StackOptions, running
from standby.cli.state import StateDir
from standby.runtime.engine_http import request
from standby.warm_pool.run_dir import run_dir
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, Option, short_dir
from support.gguf_builder import gguf
from support.marked_processes import command_line, describe, processes_marked
from support.raw_http import RawClient

Json = dict[str, Any]
DEADLINE_S = 60.0
"""Ends a test that would hang; nothing is proven by it."""
NO_LISTING: Final[Mapping[str, str]] = {
    "STANDBY_NATS_RELIST_INTERVAL": "3600",
    "STANDBY_KEY_TRUST_S": "36000",
    "STANDBY_MAX_STALENESS_S": "36000",
}
"""A component hears of a change when it is told, or never: no listing, every half a minute as shipped, heals who is deaf."""
AS_SHIPPED: Final[Mapping[str, str]] = dict.fromkeys(NO_LISTING, "")
_KILLED_S = 5.0
QUESTION = [{"role": "user", "content": "Name the capital of France."}]
PARIS = "The capital of France is Paris."


@dataclass
class Deployment:
    """A running deployment, spoken to as its administrator."""

    stack: Stack
    artifacts: Path
    events: list[Json] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _fences: int = 0
    _client: httpx.AsyncClient = field(init=False)
    _models: dict[str, str] = field(default_factory=dict)
    _connections: list[RawClient] = field(default_factory=list)

    # ---- requests ----------------------------------------------------------------------------------------------

    def url(self, gateway: int = 0) -> str:
        """The address of a gateway; a restart does not change it."""
        return self.stack.urls[gateway]

    async def call(self, method: str, path: str, *, gateway: int = 0, **options: Any) -> httpx.Response:
        """Make one request, whatever the answer; ``options`` as httpx takes them."""
        return await self._client.request(method, self.url(gateway) + path, **options)

    async def api(self, method: str, path: str, body: object = None, *, gateway: int = 0) -> Json:
        """Make one call of the control API, which must succeed."""
        answer = await self.call(method, f"/api/v1{path}", gateway=gateway, json=body)
        assert answer.status_code < 300, answer.text
        return dict(answer.json())

    async def invoke(self, endpoint: str, *, gateway: int = 0, **body: Any) -> httpx.Response:
        """Ask an endpoint through ``/invocations``."""
        return await self.call(
            "POST", f"/endpoints/{endpoint}/invocations", gateway=gateway, json={"messages": QUESTION, **body}
        )

    async def chat(self, model: str, *, gateway: int = 0, **body: Any) -> httpx.Response:
        """Ask a model as OpenAI's clients do."""
        return await self.call(
            "POST", "/v1/chat/completions", gateway=gateway, json={"model": model, "messages": QUESTION, **body}
        )

    async def connect(self, gateway: int = 0) -> RawClient:
        """Open a connection, closed at the deployment's end at the latest."""
        host, _, port = self.url(gateway).removeprefix("http://").partition(":")
        client = await RawClient.connect(host, int(port))
        self._connections.append(client)
        return client

    async def post(self, path: str, body: object, *, gateway: int = 0) -> RawClient:
        """Send a request over a connection of its own and return before it is answered."""
        client = await self.connect(gateway)
        headers = {**self.stack.headers(), "content-type": "application/json"}
        client.send("POST", path, headers, body if isinstance(body, bytes) else json.dumps(body).encode())
        return client

    # ---- endpoints ---------------------------------------------------------------------------------------------

    async def endpoint(
        self,
        name: str,
        *,
        knobs: Mapping[str, Option] | None = None,
        model: str | None = None,
        served_name: str | None = None,
        memory_mb: int | None = None,
        **policy: object,
    ) -> str:
        """Create an endpoint at zero with the fake engine; ``knobs`` are the engine's, ``policy`` the scale policy's.

        ``model`` names one that is registered already, of whatever engine; ``memory_mb`` reserves so much for an instance.
        """
        model = model or await self.model({} if knobs is None else knobs)
        body: Json = {"name": name, "model": model, "policy": policy, "memory_mb": memory_mb}
        if served_name is not None:
            body["served_name"] = served_name
        await self.api("POST", "/endpoints", body)
        for gateway in range(1, len(self.stack.urls)):
            await self.until(lambda g=gateway: self.knows(name, g), f"gateway {gateway} knows {name}")  # type: ignore[misc]
        return name

    async def knows(self, endpoint: str, gateway: int = 0) -> bool:
        """Whether a gateway has heard of an endpoint and its config."""
        answer = await self.call("GET", f"/api/v1/endpoints/{endpoint}", gateway=gateway)
        return answer.status_code == 200 and bool(answer.json()["variants"])

    async def model(self, knobs: Mapping[str, Option]) -> str:
        """Register one model for each set of knobs: each a tiny file of its own."""
        spelled = json.dumps(dict(knobs), sort_keys=True)
        if spelled not in self._models:
            number = len(self._models) + 1
            path = self.artifacts / f"m{number}.gguf"
            path.write_bytes(gguf(seed=number))
            body = {"name": f"m{number}", "source_uri": path.as_uri(), "engine": "fake", "engine_options": dict(knobs)}
            await self.api("POST", "/models", body)
            self._models[spelled] = f"m{number}"
        return self._models[spelled]

    async def show(self, endpoint: str, *, gateway: int = 0) -> Json:
        """The endpoint as the API shows it."""
        return await self.api("GET", f"/endpoints/{endpoint}", gateway=gateway)

    async def instance(self, endpoint: str) -> Json | None:
        """The endpoint's only instance, if it has one."""
        instances = (await self.show(endpoint))["instances"]
        assert len(instances) <= 1, instances
        return instances[0] if instances else None

    async def until_state(self, endpoint: str, *states: str, within_s: float = DEADLINE_S) -> Json:
        """Wait until an instance of the endpoint is in one of these states; ``cold`` also means that there is none."""

        async def reached() -> Json | None:
            shown = await self.show(endpoint)
            if not shown["instances"]:
                return shown if "cold" in states else None
            return shown if any(item["state"] in states for item in shown["instances"]) else None

        found: Json = await self.until(reached, f"{endpoint} is {' or '.join(states)}", within_s)
        return found

    async def until_status(self, endpoint: str, status: str, within_s: float = DEADLINE_S) -> Json:
        """Wait until the endpoint has a status."""

        async def reached() -> Json | None:
            shown = await self.show(endpoint)
            return shown if shown["status"] == status else None

        found: Json = await self.until(reached, f"{endpoint} is {status}", within_s)
        return found

    async def warm(self, endpoint: str) -> None:
        """Ask for one token, so that an instance is ready."""
        answer = await self.invoke(endpoint, max_tokens=1)
        assert answer.status_code == 200, answer.text

    # ---- what happened -----------------------------------------------------------------------------------------

    def spawns(self, endpoint: str) -> int:
        """How many times an engine of the endpoint was started, by the node's own events so far."""
        return sum(one["after"] == "starting" for one in self.of_kind("transition", endpoint))

    def of_kind(self, kind: str, endpoint: str) -> list[Json]:
        """The events of a kind, in order."""
        return [one for one in self.events if one["kind"] == kind and one["endpoint"] == endpoint]

    def states(self, endpoint: str) -> list[str]:
        """What its instances came to, by the node's own events so far."""
        return [one["after"] for one in self.of_kind("transition", endpoint)]

    async def became(self, endpoint: str, state: str, times: int = 1) -> None:
        """Wait for the news that it came to a state so often; an answer may be there before its news."""
        await self.happened(lambda: self.states(endpoint).count(state) >= times, f"news: {endpoint} is {state}, {times} times")

    async def all_is_told(self) -> None:
        """Wait until whatever was asked for before this has been decided, acted upon and told.

        Another endpoint is asked behind it and climbs: its demand, its assignment and its events go the same ways.
        """
        self._fences += 1
        name = await self.endpoint(f"fence-{self._fences}", keep_ready="0s", keep_asleep="0s")
        for gateway in reversed(range(len(self.stack.urls))):
            assert (await self.invoke(name, gateway=gateway, max_tokens=1)).status_code == 200
        await self.became(name, "ready")
        await self.api("DELETE", f"/endpoints/{name}")

        async def gone() -> bool:
            return (await self.call("GET", f"/api/v1/endpoints/{name}")).status_code == 404

        await self.until(gone, f"{name} is gone")

    async def happened(self, condition: Callable[[], Any], why: str, within_s: float = DEADLINE_S) -> None:
        """Wait until ``condition`` is true of the events so far."""
        try:
            async with asyncio.timeout(within_s), self._news:
                await self._news.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"not within {within_s:g} s: {why}; last events: {self.events[-10:]}") from None

    async def until(self, reached: Callable[[], Any], why: str, within_s: float = DEADLINE_S) -> Any:
        """Ask until ``reached()`` (a coroutine function) returns something true, and return that."""
        try:
            async with asyncio.timeout(within_s):
                while not (found := await reached()):
                    await asyncio.sleep(0.03)
                return found
        except TimeoutError:
            raise AssertionError(f"not within {within_s:g} s: {why}") from None

    async def metric(self, name: str, endpoint: str, *, gateway: int = 0) -> float | None:
        """The value of a gateway's metric for an endpoint, added up over the other labels; None where it is not told."""
        text = (await self.call("GET", "/metrics", gateway=gateway)).text
        marked = f'endpoint="{endpoint}"'
        lines = [line for line in text.splitlines() if line.startswith(f"{name}{{") and marked in line]
        return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None

    async def total(self, name: str, endpoint: str) -> float:
        """A metric of an endpoint over all gateways; what is not told counts as zero."""
        values = [await self.metric(name, endpoint, gateway=number) for number in range(len(self.stack.urls))]
        return sum(value or 0.0 for value in values)

    async def until_total(self, name: str, endpoint: str, value: float, within_s: float = DEADLINE_S) -> None:
        """Wait until a metric over all gateways has this value."""

        async def reached() -> bool:
            return await self.total(name, endpoint) == value

        await self.until(reached, f"{name} of {endpoint} is {value:g}", within_s)

    # ---- processes ---------------------------------------------------------------------------------------------

    async def stats(self, endpoint: str) -> dict[str, int]:
        """What the endpoint's engine counts: ``active``, ``served``, ``aborts``, ``peak``, ``completions``."""
        found = await self.instance(endpoint)
        assert found is not None, f"{endpoint} has no instance"
        sockets = list(self._run_dir().glob(f"{found['id']}-*/engine.sock"))
        assert len(sockets) == 1, sockets
        return await _stats(sockets[0])

    async def active(self, endpoint: str) -> int:
        """How many requests the endpoint's engine works on; 0 where none of it listens, as between two lives."""
        found = await self.instance(endpoint) or {"id": "nobody"}
        active = 0
        for socket in self._run_dir().glob(f"{found['id']}-*/engine.sock"):
            with contextlib.suppress(OSError):
                active += (await _stats(socket))["active"]
        return active

    def engines(self) -> list[psutil.Process]:
        """Processes that run the fake engine now, whoever is their parent."""
        program = str(FAKE_ENGINE_PROGRAM)
        return [process for process in self.processes() if program in command_line(process)]

    def engine_of(self, instance: str) -> psutil.Process:
        """The engine process of an instance."""
        (found,) = (process for process in self.engines() if any(f"/{instance}-" in part for part in command_line(process)))
        return found

    def processes(self) -> list[psutil.Process]:
        """Every live process of the deployment but nats-server."""
        return processes_marked(self.stack.options.state.root)

    def kill(self, child: str) -> None:
        """End a child of the stack with SIGKILL; its supervisor starts it again after a second."""
        self.stack.children[child].signal(signal.SIGKILL)

    async def kill_gateway(self, gateway: int) -> None:
        """End a gateway with SIGKILL and wait until its successor serves."""
        child = self.stack.children[gateway_name(gateway)]
        before = child.restarts
        self.kill(child.name)

        async def serves() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return child.restarts > before and (await self.call("GET", "/readyz", gateway=gateway)).status_code == 200
            return False

        await self.until(serves, f"{child.name} serves again")

    def _run_dir(self) -> Path:
        return run_dir(self.stack.options.state.root / "node")

    # ---- inside ------------------------------------------------------------------------------------------------

    async def follow(self, standing: asyncio.Event) -> None:
        """Collect every event until cancelled; a stream that breaks is opened again, and nothing is taken twice."""
        seen: set[str] = set()
        while True:
            with contextlib.suppress(httpx.HTTPError):
                async with self._client.stream("GET", f"{self.url()}/api/v1/events?replay=1000", timeout=None) as answer:
                    answer.raise_for_status()
                    async for line in answer.aiter_lines():
                        standing.set()
                        if line.startswith("data:") and (event := json.loads(line[5:]))["id"] not in seen:
                            seen.add(event["id"])
                            async with self._news:
                                self.events.append(event)
                                self._news.notify_all()
            await asyncio.sleep(0.1)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx.AsyncClient(headers=self.stack.headers(), timeout=2 * DEADLINE_S, trust_env=False, limits=limits)

    async def close(self) -> None:
        """Let go of the connections."""
        for connection in self._connections:
            connection.abort()
        await self._client.aclose()


@asynccontextmanager
async def deployment(
    tmp_path: Path, *, gateways: int = 1, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Deployment]:
    """Start a deployment and yield it when it serves; at its end no process of it may be left.

    It lists nothing again by itself unless the ``environment`` is ``AS_SHIPPED``. The components' logs are kept in
    ``tmp_path``.
    """
    with short_dir() as root:
        options = StackOptions(
            state=StateDir(root),
            port=0,
            gateways=gateways,
            extra_environment={
                "STANDBY_FAKE_ENGINE": str(FAKE_ENGINE_PROGRAM),
                "STANDBY_NODE_NAME": "n1",
                "STANDBY_HEARTBEAT_S": "0.5",
                "STANDBY_STOP_GRACE_S": "1",
                "STANDBY_SHUTDOWN_GRACE_S": "3",
                "TMPDIR": str(root),
                **NO_LISTING,
                **(environment or {}),
            },
        )
        try:
            async with AsyncExitStack() as cleanup:
                stack = await cleanup.enter_async_context(running(options))
                there = Deployment(stack, tmp_path)
                cleanup.push_async_callback(there.close)
                await _follow(there, cleanup)
                yield there
                bystanders = [] if stack.nats is None or stack.nats.pid is None else [psutil.Process(stack.nats.pid)]
        finally:
            shutil.copytree(root / "logs", tmp_path / f"logs-{uuid4().hex[:6]}")
            await _until_ended(root)
            left = [describe(process) for process in processes_marked(root)]
            for process in processes_marked(root):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        assert not left, f"left over: {left}"
        assert not [process for process in bystanders if process.is_running()], "nats-server is left over"


async def _until_ended(root: Path) -> None:
    """Let the kernel finish what was killed: that takes a moment, and what was forgotten does not end by itself."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_KILLED_S):
            while processes_marked(root):
                await asyncio.sleep(0.05)


async def _follow(there: Deployment, cleanup: AsyncExitStack) -> None:
    standing = asyncio.Event()
    following = asyncio.create_task(there.follow(standing))

    async def end() -> None:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    cleanup.push_async_callback(end)
    async with asyncio.timeout(DEADLINE_S):
        await standing.wait()


async def _stats(socket: Path) -> dict[str, int]:
    async with asyncio.timeout(DEADLINE_S):
        answer = await request(socket, "GET", "/stats")
    counts: dict[str, int] = json.loads(answer.body)
    return counts


def gateway_name(number: int) -> str:
    """The name of a gateway's process in the stack."""
    return "gateway" if number == 0 else f"gateway-{number + 1}"


def text_of(answer: httpx.Response) -> str:
    """The text of a chat completion that was answered well."""
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def aws_error_of(answer: httpx.Response, status: int, code: str) -> Json:
    """The error of an endpoint's own routes, in AWS's envelope: ``code`` is our own name of it."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    error: Json = answer.json()
    assert error.get("StandbyCode") == code, error
    assert error["Message"], error
    assert answer.headers["x-amzn-errortype"] == error["__type"]
    return error


def error_of(answer: httpx.Response, status: int, code: str) -> Json:
    """The error of an answer, which must have this status and code, and say something."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    error: Json = answer.json()["error"]
    assert error["code"] == code, error
    assert error["message"], error
    return error
