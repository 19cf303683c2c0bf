"""The door of a node: the one way in which a request reaches an engine.

It checks the node's token, the instance, its epoch and whether it takes requests, gives the request a slot, passes it to the
engine's unix socket, streams the answer back byte for byte, and takes the slot back in every ending. Only gateways reach
it. Idle keep-alive connections of gateways outlive instances; they just get refusals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from standby.warm_pool.door_exchange import DoorLimits, Exchange
from standby.warm_pool.door_load import DoorLoad
from standby.warm_pool.door_protocol import DoorConnection
from standby.warm_pool.door_slots import DoorSlots
from standby.warm_pool.door_spans import DoorTraces
from standby.wire.pool import Address

FLUSH_LIMIT_S: Final = 2.0

__all__ = ["Door", "DoorLimits", "DoorLoad"]


class Door:
    """A server for gateways. All methods are called in the event loop's thread; none but the coroutines wait."""

    def __init__(self, *, token: str, on_change: Callable[[str], None], limits: DoorLimits | None = None) -> None:
        """``on_change`` gets the instance id when its in-flight count reaches 0 and at each fault of its engine."""
        self.token = token.encode()
        self.limits = limits or DoorLimits()
        self.slots = DoorSlots(on_change)
        self.traces: DoorTraces | None = None
        self.connections: set[DoorConnection] = set()
        self._no_connections = asyncio.Event()
        self._no_connections.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._checking: asyncio.TimerHandle | None = None

    # -- the server ----------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen and return the address really bound. Raises OSError when it cannot be bound."""
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(lambda: DoorConnection(self), host, port, backlog=1024)
        bound = self._server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def stop(self) -> None:
        """Stop listening, abort what is in flight with an explicit error, and close every connection."""
        if self._server is None:
            return
        self._server.close()
        for gate in self.slots.gates:
            self.slots.remove(gate.instance, "the node's door is closing")
        for connection in tuple(self.connections):
            connection.transport.close()
        await self._let_go()
        if self._checking is not None:
            self._checking.cancel()
            self._checking = None
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()
        self._server = None

    async def _let_go(self) -> None:
        """Let gateways take what was written for them, for a while; a stalled one must not hold the node back."""
        try:
            async with asyncio.timeout(FLUSH_LIMIT_S):
                await self._no_connections.wait()
        except TimeoutError:
            for connection in tuple(self.connections):
                connection.transport.abort()
            await self._no_connections.wait()

    # -- what the agent orders -----------------------------------------------------------------------------

    def open(self, instance: str, *, epoch: int, slots: int, address: Address) -> None:
        """Let requests through that name this instance and epoch. Raises Conflict unless the epoch has grown."""
        self.slots.open(instance, epoch=epoch, slots=slots, address=address)

    def resize(self, instance: str, slots: int) -> None:
        """From now on let in ``slots`` requests at once; what is inside goes on, also where that is more."""
        gate = self.slots.find(instance)
        if gate is not None:
            gate.slots = slots

    def fence(self, instance: str) -> None:
        """From now on answer "draining"; no new request touches the engine."""
        gate = self.slots.find(instance)
        if gate is not None:
            gate.fence()

    def remove(self, instance: str) -> None:
        """Forget the instance; what is still in flight is aborted with an explicit error."""
        self.slots.remove(instance, f"instance {instance} was removed from its node")

    async def drained(self, instance: str, limit_s: float) -> bool:
        """Wait until nothing of the instance is in flight; False at the limit."""
        gate = self.slots.find(instance)
        return gate is None or await gate.drained(limit_s)

    def abort(self, instance: str, reason: str) -> int:
        """End what is in flight with an explicit error (event streams: an error event); return how many."""
        gate = self.slots.find(instance)
        return 0 if gate is None else gate.empty(reason)

    def load(self, instance: str) -> DoorLoad:
        """What passes through to the instance; all zero for one that this door does not know."""
        gate = self.slots.find(instance)
        return DoorLoad() if gate is None else gate.load

    # -- what connections need -----------------------------------------------------------------------------

    def clock(self) -> float:
        """The loop's monotonic clock, in seconds."""
        assert self._loop is not None  # connections exist only after start
        return self._loop.time()

    def connection_made(self, connection: DoorConnection) -> None:
        """Remember a gateway's connection."""
        self.connections.add(connection)
        self._no_connections.clear()

    def connection_lost(self, connection: DoorConnection) -> None:
        """Forget it."""
        self.connections.discard(connection)
        if not self.connections:
            self._no_connections.set()

    def begin(self, exchange: Exchange) -> None:
        """Run the exchange's connecting as a task that this door waits for at its stop."""
        assert self._loop is not None  # connections exist only after start
        task = self._loop.create_task(exchange.connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def exchange_started(self) -> None:
        """Look for quiet requests while anything is in flight: one timer for all costs less than one for each."""
        if self._checking is None:
            self._schedule_check()

    def _schedule_check(self) -> None:
        assert self._loop is not None  # connections exist only after start
        self._checking = self._loop.call_later(self.limits.check_every_s, self._check)

    def _check(self) -> None:
        self._checking = None
        now = self.clock()
        for gate in self.slots.gates:
            gate.check(now)
        if any(gate.busy for gate in self.slots.gates):
            self._schedule_check()
