"""A gateway before a real door with several engines, each of which can be told how to fail, and can end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.instance import Instance
from standby.domain.model import EngineKind
from standby.domain.traffic import TrafficPolicy
from standby.gateway.breaker import Phase
from standby.gateway.dispatch import Dispatcher
from standby.gateway.relay import DoorClient
from standby.gateway.route import RoutePart
from standby.gateway.traces import RequestTrace
from standby.warm_pool.door import Door, DoorLimits
from standby.wire.pool import ConnectionPool
from support.builders import TENANT, an_instance
from support.door_rig import SLOTS, TOKEN, Rig
from support.gateway_rig import GatewayRig, gateway_rig
from support.raw_http import RawAnswer
from support.upstream import Call, Upstream, upstream
from support.waiting import until

EPOCH = 7
# Quiet time passes when a test lets it pass (``Replica.outlast``): no answer is ever too late, however slow the machine is.
PATIENT = DoorLimits(first_byte_s=60.0, between_bytes_s=60.0, gateway_s=3600.0, check_every_s=0.02)
QUICK = DoorLimits(first_byte_s=0.1, between_bytes_s=0.1, check_every_s=0.02)
BOOM = b"BOOM"
FAR_S = 3600.0


@dataclass
class Clock:
    """Monotonic seconds, which a test may let jump ahead."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


class PatientDoor(Door):
    """A door whose clock a test may let jump ahead."""

    ahead_s = 0.0

    def clock(self) -> float:
        return super().clock() + self.ahead_s


class WatchedDoors(DoorClient):
    """Tells when a request goes to a door."""

    on_relay: Callable[[], None] = staticmethod(lambda: None)

    def of(self, door: tuple[str, int]) -> ConnectionPool:
        self.on_relay()
        return super().of(door)


@dataclass
class Replica:
    """One engine; ``behaves`` answers each request of its own. ``backend`` and ``engine_kind``: as its record says."""

    name: str
    engine: Upstream
    behaves: Callable[[Replica, Call], Awaitable[None]]
    door: PatientDoor
    backend: str = ""
    engine_kind: EngineKind | None = None
    ending: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    epoch: int = EPOCH

    @property
    def ids(self) -> list[str]:
        """The request ids that it saw."""
        return [call.headers["x-request-id"] for call in self.engine.calls]

    def die(self) -> None:
        """End as a killed process does: every socket of it closes."""
        task = asyncio.get_running_loop().create_task(self.ending.aclose())
        self.tasks.add(task)

    async def serve(self, call: Call) -> None:
        await self.behaves(self, call)

    async def outlast(self, call: Call) -> None:
        """Let time pass at the door until it gives the request up."""
        while not call.gone.is_set():
            self.door.ahead_s += 2 * PATIENT.first_byte_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENT.check_every_s):
                    await call.gone.wait()


@dataclass
class FailoverRig:
    """``replicas`` are called i-1, i-2, …; the gateway tries the first one first while all are alike."""

    gateway: GatewayRig
    door: PatientDoor
    doors: WatchedDoors
    replicas: list[Replica]
    clock: Clock
    slots: int = SLOTS

    @property
    def dispatcher(self) -> Dispatcher:
        return self.gateway.plane.dispatcher

    @property
    def last(self) -> RequestTrace:
        """The newest request's trace."""
        return self.dispatcher.traces.last(TENANT, None, 1)[0]

    @property
    def asked(self) -> int:
        """How many requests the engines saw, all together."""
        return sum(len(replica.engine.calls) for replica in self.replicas)

    async def ask(self, path: str = "/v1/completions", body: dict[str, Any] | bytes | None = None) -> RawAnswer:
        """Ask on a connection of its own."""
        client = await self.gateway.connect()
        if not isinstance(body, bytes):
            body = json.dumps({"model": "e", "prompt": "?", **(body or {})}).encode()
        try:
            return await client.request("POST", path, self.gateway.headers(), body)
        finally:
            client.abort()

    async def revive(self, replica: Replica) -> None:
        """Start a dead one anew behind the same socket, at the next epoch, as a node does."""
        await asyncio.gather(*replica.tasks)
        replica.engine = await replica.ending.enter_async_context(upstream(replica.engine.socket, replica.serve))
        replica.epoch += 1
        self.open(replica)

    def open(self, replica: Replica, socket: Path | None = None) -> None:
        """Let its requests through, and let the desk hear of it; ``socket``: where another engine listens in its place."""
        self.door.open(replica.name, epoch=replica.epoch, slots=self.slots, address=socket or replica.engine.socket)
        self.gateway.desk.instance_changed(self.record(replica), seen=0)

    def record(self, replica: Replica, **changes: Any) -> Instance:
        """Its record, as its node writes it."""
        host, port = self.gateway.behind.address
        fields: dict[str, Any] = {"id": replica.name, "slots": self.slots, "epoch": replica.epoch, "door": f"{host}:{port}"}
        fields |= {"backend": replica.backend, "engine": replica.engine_kind}
        return an_instance(**(fields | changes))

    async def dead(self, *replicas: Replica) -> None:
        """End them, and wait until nobody listens there any more."""
        for replica in replicas:
            replica.die()
        await until(lambda: not any(replica.engine.socket.exists() for replica in replicas))

    def prefer(self, name: str) -> None:
        """Let the next request go to this replica: the others are paused until it is on its way."""
        self.resume(name)
        paused = [replica.name for replica in self.replicas if replica.name != name]
        self.pause(*paused)

        def under_way() -> None:
            self.doors.on_relay = lambda: None
            self.resume(*paused)

        self.doors.on_relay = under_way

    def pause(self, *names: str) -> None:
        """Let no request go there until ``resume``."""
        self._block(names, self.clock() + FAR_S)

    def resume(self, *names: str) -> None:
        """Let requests go there again, those that wait first."""
        self._block(names, 0.0)
        self.gateway.desk._pump()

    def _block(self, names: Sequence[str], until_at: float) -> None:
        for name in names:
            ready = self.gateway.desk._instances.usable.get(name)
            if ready is not None:
                ready.blocked_until = until_at

    def settled(self) -> bool:
        """Field case B20: whether nothing is held by anybody any more."""
        desk = self.gateway.desk
        probes = [ready.breaker.probes for ready in desk._instances.usable.values()]
        in_flight = [self.door.load(replica.name).in_flight for replica in self.replicas]
        held = (desk.in_flight, desk.granted, desk.queued, desk.queued_bytes, self.dispatcher.guard.quarantine.lanes, *probes)
        return not (any(held) or desk.outstanding or any(in_flight))

    @property
    def open_breakers(self) -> int:
        return sum(ready.breaker.phase is not Phase.CLOSED for ready in self.gateway.desk._instances.usable.values())


async def answers(replica: Replica, call: Call) -> None:
    """Answer with its own name, as one that is well does: whole, or as a stream of two tokens."""
    await answer_with(replica.name, call)


async def answer_with(text: str, call: Call) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    if not json.loads(call.body or b"{}").get("stream"):
        await call.json(200, json.dumps({"choices": [{"text": text, "finish_reason": "stop"}], "usage": usage}).encode())
        return
    await call.begin_stream()
    for token in (text, "!"):
        await call.chunk(token_event(token))
    await call.chunk(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"choices": [], "usage": usage}).encode())
    await call.end_stream()


def token_event(text: str) -> bytes:
    """One event of a stream of completions."""
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "text": text}]}).encode()


@contextlib.asynccontextmanager
async def failover_rig(
    *behaviours: Callable[[Replica, Call], Awaitable[None]],
    traffic: TrafficPolicy | None = None,
    limits: DoorLimits = PATIENT,
    max_cold_wait: float = 20.0,
    parts: tuple[RoutePart, ...] = (),
    slots: int = SLOTS,
) -> AsyncIterator[FailoverRig]:
    """Serve the endpoint ``e`` with one instance for each of ``behaviours``; with ``parts``, each of the part in its place."""
    clock = Clock()
    variant = Variant(model="m", policy=ScalePolicy(max_cold_wait=max_cold_wait, max_instances=len(behaviours), slots=slots))
    with tempfile.TemporaryDirectory(prefix="door-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            door = PatientDoor(token=TOKEN, on_change=lambda _instance: None, limits=limits)
            host, port = await door.start("127.0.0.1", 0)
            stack.push_async_callback(door.stop)
            replicas = [await _replica(f"i-{at}", Path(folder), behaves, door) for at, behaves in enumerate(behaviours, 1)]
            for replica, part in zip(replicas, parts, strict=False):
                replica.backend, replica.engine_kind = part.backend, part.engine
            for replica in replicas:
                stack.push_async_callback(replica.ending.aclose)
            client = WatchedDoors()
            stack.push_async_callback(client.close)
            behind = Rig(door, replicas[0].engine, (host, port), client)
            gateway = await stack.enter_async_context(
                gateway_rig(behind, variant=variant, traffic=traffic, awake=False, parts=parts, monotonic=clock)
            )
            rig = FailoverRig(gateway, door, client, replicas, clock, slots)
            for replica in replicas:
                rig.open(replica)
            yield rig


async def _replica(name: str, folder: Path, behaves: Callable[[Replica, Call], Awaitable[None]], door: PatientDoor) -> Replica:
    ending = contextlib.AsyncExitStack()

    async def serve(call: Call) -> None:
        await replica.serve(call)

    engine = await ending.enter_async_context(upstream(folder / f"{name}.sock", serve))
    replica = Replica(name, engine, behaves, door, ending=ending)
    return replica
