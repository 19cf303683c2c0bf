"""Everything on one machine: an embedded nats-server, a gateway, a controller, a node, as supervised children."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import httpx

from standby.bus.embedded import EmbeddedNats
from standby.cli.state import Secrets, StateDir
from standby.cli.supervisor import Child, in_words, keep_nats
from standby.domain.errors import ConfigurationError
from standby.host.sealing_source import ELSEWHERE

READY_LIMIT_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.03
# Beyond a component's own grace: putting everything away.
_CLOSE_S: Final = 5.0
# Requests have ended before the node is told to stop; its engines, and what else used its door, get this long.
_NODE_GRACE_S: Final = 60.0

_FIRST_GATEWAY: Final = "gateway"
METRICS_PORT: Final = MappingProxyType({"node": "STANDBY_METRICS_PORT", "controller": "STANDBY_CONTROLLER_METRICS_PORT"})

Say = Callable[[str], None]


@dataclass(frozen=True)
class StackOptions:
    """What ``standby up`` may be told; None leaves the component's own default. ``hurry`` cuts its end short."""

    state: StateDir
    host: str = "127.0.0.1"
    port: int = 8080
    gateways: int = 1
    nats_url: str | None = None
    extra_environment: Mapping[str, str] | None = None
    hurry: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Stack:
    """A running deployment."""

    options: StackOptions
    secrets: Secrets
    url: str
    urls: list[str]
    children: dict[str, Child]
    nats: EmbeddedNats | None

    def headers(self) -> dict[str, str]:
        """Return the administrator's headers."""
        return {"authorization": f"Bearer {self.secrets.admin_key}"}


@asynccontextmanager
async def running(options: StackOptions, say: Say = lambda _line: None) -> AsyncIterator[Stack]:
    """Start everything, yield when requests can be served, and end everything in order; ``say`` hears of each step.

    Raises ConfigurationError with the end of the log of whatever did not come up: at once where a process ended.
    """
    options.state.prepare()
    with options.state.locked():
        async with AsyncExitStack() as cleanup:
            yield await _start(options, cleanup, say)


async def _start(options: StackOptions, cleanup: AsyncExitStack, say: Say) -> Stack:
    secrets = options.state.secrets()
    nats = None
    if options.nats_url is None:
        nats = EmbeddedNats(options.state.root / "nats")
        cleanup.push_async_callback(nats.stop)
        await nats.start()
        cleanup.push_async_callback(_cancelled, asyncio.create_task(keep_nats(nats)))
    say(f"nats-server: {nats.url if nats is not None else options.nats_url}")
    environment = _environment(options, secrets, nats)
    children: dict[str, Child] = {}
    # Ended in the reverse order: gateways first, so that open requests end while everything behind them still lives.
    for name, arguments, extra in _plan(options, secrets):
        log, grace_s = options.state.logs / f"{name}.log", _grace_s(name, environment)
        child = Child(name, arguments, {**environment, **extra}, log, grace_s, hurry=options.hurry)
        if name == _FIRST_GATEWAY:
            cleanup.push_async_callback(_stop_gateways, children, say)
        elif not name.startswith(_FIRST_GATEWAY):
            cleanup.push_async_callback(_stop, child, say)
        children[name] = child
        await child.start()
        say(f"{name}: process {child.pid}")
    urls = [await _url(options, child, children) for name, child in children.items() if name.startswith(_FIRST_GATEWAY)]
    stack = Stack(options, secrets, urls[0], urls, children, nats)
    await _until_ready(stack, say)
    await _scrapeable(options, urls, children)
    cleanup.callback(options.state.targets.unlink, missing_ok=True)
    options.state.write_connection(stack.url, secrets.admin_key)
    cleanup.callback(options.state.connection.unlink, missing_ok=True)
    return stack


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _stop(child: Child, say: Say) -> None:
    code = await child.stop()
    say(f"{child.name}: {in_words(code)}")


async def _stop_gateways(children: Mapping[str, Child], say: Say) -> None:
    """End all gateways together: each of them may need its whole grace."""
    await asyncio.gather(*(_stop(child, say) for name, child in children.items() if name.startswith(_FIRST_GATEWAY)))


def _grace_s(name: str, environment: Mapping[str, str]) -> float:
    """Return how long a component may take to end, in seconds."""
    if not name.startswith(_FIRST_GATEWAY):
        return _NODE_GRACE_S
    grace = environment.get("STANDBY_SHUTDOWN_GRACE_S", "")
    notice = environment.get("STANDBY_DRAIN_NOTICE_S", "")
    return float(grace or 30.0) + float(notice or 0.0) + _CLOSE_S


def _plan(options: StackOptions, secrets: Secrets) -> list[tuple[str, list[str], dict[str, str]]]:
    sealing = {} if _has_sealing_key(options) else {"STANDBY_SECRETS_KEY": secrets.secrets_key}
    plan: list[tuple[str, list[str], dict[str, str]]] = [
        ("node", ["node"], {"STANDBY_STATE_DIR": str(options.state.root / "node"), **sealing}),
        ("controller", ["controller"], {}),
    ]
    for name, _, settings in plan:
        settings.update(_metrics_anywhere(options, name))
    for number in range(options.gateways):
        name = "gateway" if number == 0 else f"gateway-{number + 1}"
        port = options.port + number if options.port else 0
        port_file = options.state.root / f"{name}.port"
        port_file.unlink(missing_ok=True)
        settings = {
            "STANDBY_GATEWAY_NAME": name,
            "STANDBY_GATEWAY_HOST": options.host,
            "STANDBY_GATEWAY_PORT": str(port),
            "STANDBY_PORT_FILE": str(port_file),
            **sealing,
        }
        plan.append((name, ["gateway"], settings))
    return plan


def _has_sealing_key(options: StackOptions) -> bool:
    """Whether the operator keeps the sealing key elsewhere; else the deployment's own, in its state folder, is used."""
    return any(name in os.environ or name in (options.extra_environment or {}) for name in ELSEWHERE)


def _environment(options: StackOptions, secrets: Secrets, nats: EmbeddedNats | None) -> dict[str, str]:
    environment = {**os.environ, **(options.extra_environment or {})}
    environment["STANDBY_NODE_TOKEN"] = secrets.node_token
    environment["STANDBY_KEY_PEPPER"] = secrets.key_pepper
    environment["STANDBY_ADMIN_KEY"] = secrets.admin_key
    if nats is not None:
        environment["STANDBY_NATS_URL"] = nats.url
        environment["STANDBY_NATS_USER"] = nats.user
        environment["STANDBY_NATS_PASSWORD"] = nats.password.get_secret_value()
    elif options.nats_url is not None:
        environment["STANDBY_NATS_URL"] = options.nats_url
    return environment


def _metrics_anywhere(options: StackOptions, name: str) -> dict[str, str]:
    """Let a component serve its metrics at any free port, unless the operator has named one, and say where."""
    variable, file = METRICS_PORT[name], options.state.root / f"{name}.metrics-port"
    file.unlink(missing_ok=True)
    named = (options.extra_environment or {}).get(variable) or os.environ.get(variable) or "0"
    return {variable: named, "STANDBY_METRICS_PORT_FILE": str(file)}


async def _scrapeable(options: StackOptions, stack_urls: Sequence[str], children: Mapping[str, Child]) -> None:
    """Tell Prometheus where each process's metrics are (a file for its file_sd), for as long as this deployment runs."""
    targets = [(_FIRST_GATEWAY, url.partition("://")[2]) for url in stack_urls]
    for name, variable in METRICS_PORT.items():
        port = await _told_port(children[name], "STANDBY_METRICS_PORT_FILE", variable, children)
        targets.append((name, f"127.0.0.1:{port}"))
    options.state.write_targets(targets)


async def _told_port(child: Child, file: str, variable: str, children: Mapping[str, Child]) -> str:
    """Return the port that a child has got, as it says in ``file``; it gets the same one when it is started again."""
    port_file = Path(child.environment[file])

    async def lacks() -> str:
        return "" if port_file.exists() and port_file.read_text() else f"{child.name} to listen"

    await _until_nothing_lacks(lacks, children)
    port = port_file.read_text()
    # Started again it must be found where it was said to be.
    child.environment = {**child.environment, variable: port}
    return port


async def _url(options: StackOptions, child: Child, children: Mapping[str, Child]) -> str:
    """Return the gateway's address; with port 0 it says in a file which port it got."""
    port = await _told_port(child, "STANDBY_PORT_FILE", "STANDBY_GATEWAY_PORT", children)
    host = "127.0.0.1" if options.host in {"0.0.0.0", "::"} else options.host  # noqa: S104 - compared, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def _until_ready(stack: Stack, say: Say) -> None:
    async with httpx.AsyncClient(headers=stack.headers(), timeout=5.0, trust_env=False) as client:
        for url in stack.urls:
            await _until_nothing_lacks(partial(_lacks, client, url), stack.children, say)


async def _lacks(client: httpx.AsyncClient, url: str) -> str:
    """Return what the deployment behind ``url`` still waits for, in words; empty when it can serve."""
    try:
        ready = await client.get(f"{url}/readyz")
        status = await client.get(f"{url}/api/v1/status")
    except httpx.TransportError:
        return f"an answer from {url}"
    if ready.status_code != 200 or status.status_code != 200:
        return "the gateway's copies of the tables"
    body: dict[str, Any] = status.json()
    if not body["leader"]:
        return "a controller that leads"
    return "" if body["nodes"] > 0 else "a node"


async def _until_nothing_lacks(
    look: Callable[[], Awaitable[str]], children: Mapping[str, Child], say: Say = lambda _line: None
) -> None:
    """Return once ``look`` finds nothing missing. Raises ConfigurationError, at once where a child has ended."""
    missing = said = ""
    try:
        async with asyncio.timeout(READY_LIMIT_S):
            while missing := await look():
                for child in children.values():
                    child.require_alive()
                if missing != said:
                    say(f"waiting for {missing}")
                    said = missing
                await asyncio.sleep(_LOOK_AGAIN_S)
    except TimeoutError:
        tails = "\n".join(f"--- {child.name}: {child.log}\n{child.tail()}" for child in children.values())
        raise ConfigurationError(
            f"waited {READY_LIMIT_S:.0f} s in vain for {missing}\n{tails}",
            remedy="run `standby doctor`, and read the logs above",
        ) from None
