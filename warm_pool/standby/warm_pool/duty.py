"""What a node takes: everything, nothing new, or nothing at all any more. Survives the agent's restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, assert_never

from pydantic import ValidationError

from standby.bus.connection import Bus
from standby.bus.subjects import mode_subject
from standby.bus.subscription import Subscription
from standby.bus.tables import Entry
from standby.domain.assignment import Assignment
from standby.domain.errors import InvalidInput
from standby.domain.node import NodeMode
from standby.domain.node_orders import NodeAction, NodeAnswer, NodeOrder
from standby.domain.values import Record
from standby.host import tasks
from standby.warm_pool.agent import Agent
from standby.warm_pool.kept_file import read_kept, write_kept

_log = logging.getLogger(__name__)

SAY_EVERY_S: Final = 5.0


class KeptMode(Record):
    """What is kept on disk."""

    mode: NodeMode = NodeMode.OPEN
    reason: str = ""


@dataclass
class Duty:
    """Owned by the agent's loop. ``told`` announces the node's record; ``assignments`` are those that the bus knows now.

    The transition table is in ``standby.domain.node.NodeMode``.
    """

    node: str
    file: Path
    agent: Agent
    told: Callable[[], None] = field(default=lambda: None)
    assignments: Callable[[], Mapping[str, Entry[Assignment]]] = field(default=lambda: MappingProxyType({}))
    kept: KeptMode = field(init=False)
    leaving: bool = False
    _orders: asyncio.Lock = field(default_factory=asyncio.Lock)
    _emptying: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.kept = read_kept(self.file, KeptMode)

    @property
    def mode(self) -> NodeMode:
        """What the node's record says."""
        return NodeMode.LEAVING if self.leaving else self.kept.mode

    @property
    def reason(self) -> str:
        """Who or what made it so."""
        return "the agent was told to stop" if self.leaving else self.kept.reason

    async def serve(self, bus: Bus) -> Subscription:
        """Take orders from the bus, and go on with a drain that an earlier agent began. Raises BusUnavailable."""
        if self.kept.mode.sheds:
            self._empty()
        return await bus.serve(mode_subject(self.node), self.answer)

    async def answer(self, _subject: str, payload: bytes) -> bytes:
        """Return the encoded NodeAnswer to an encoded NodeOrder. Raises InvalidInput."""
        try:
            order = NodeOrder.model_validate_json(payload)
        except ValidationError as error:
            raise InvalidInput(
                f"no order for a node: {error.errors()[0]['msg']}", remedy="use a client of this version"
            ) from None
        return (await self.carry_out(order)).encode()

    async def carry_out(self, order: NodeOrder) -> NodeAnswer:
        """Do what ``order`` says, one order after the other; a drain goes on after the answer."""
        async with self._orders:
            changed = not self.leaving and await self._carry_out(order)
            return NodeAnswer(
                node=self.node,
                action=order.action,
                mode=self.mode,
                reason=self.reason,
                changed=changed,
                instances=len(self.agent.instances),
                in_flight=in_flight(self.agent),
            )

    def leave(self) -> None:
        """The agent is about to end: say so at once, so that the controller places elsewhere."""
        self.leaving = True
        self.told()

    async def stop(self) -> None:
        """Follow a drain no longer; what it has begun goes on with the agent."""
        await tasks.end([] if self._emptying is None else [self._emptying])

    async def _carry_out(self, order: NodeOrder) -> bool:
        """Return whether it has changed anything."""
        match order.action:
            case NodeAction.CORDON:
                return self.kept.mode is NodeMode.OPEN and await self._become(NodeMode.CORDONED, order.by)
            case NodeAction.DRAIN:
                return not self.kept.mode.sheds and await self._become(NodeMode.DRAINING, order.by)
            case NodeAction.UNCORDON:
                return self.kept.mode is not NodeMode.OPEN and await self._become(NodeMode.OPEN, order.by)
            case _:
                assert_never(order.action)

    async def _become(self, mode: NodeMode, by: str) -> bool:
        _log.warning("the node becomes %s, says %s", mode, by)
        self.kept = KeptMode(mode=mode, reason="" if mode is NodeMode.OPEN else f"by {by}")
        if mode is NodeMode.DRAINING:
            # Before anything is written: what is asked for from here on waits at the gateways.
            self._empty()
        elif mode is NodeMode.OPEN:
            # Before anything is waited for: a drain that ends in this moment would have the last word.
            await self.stop()
        self.told()
        await asyncio.to_thread(write_kept, self.file, self.kept)
        if mode is NodeMode.OPEN:
            self.agent.take_again(self.assignments())
        return True

    def _empty(self) -> None:
        self._emptying = asyncio.create_task(self._until_empty(), name="drain the node")

    async def _until_empty(self) -> None:
        """Not written down: an agent that begins as a draining one is soon drained, and orders alone write the file."""
        await say_progress(self.agent, asyncio.ensure_future(self.agent.wind_down()))
        self.kept = KeptMode(mode=NodeMode.DRAINED, reason=self.kept.reason)
        _log.warning("drained: nothing is left on this node")
        self.told()


def in_flight(agent: Agent) -> int:
    """Return how many requests run on the node."""
    return sum(agent.effects.door.load(name).in_flight for name in agent.instances)


async def say_progress(agent: Agent, leaving: asyncio.Future[None]) -> None:
    """Wait until ``leaving`` is done, saying every few seconds what it still waits for; cancelled with this."""
    try:
        while not leaving.done():
            until = [one.drain_until for one in agent.instances.values() if one.drain_until is not None]
            left = max(0.0, max(until) - agent.wall()) if until else 0.0
            _log.info(
                "draining: %d instances, %d requests in flight, %.0f s left", len(agent.instances), in_flight(agent), left
            )
            await asyncio.wait({leaving}, timeout=SAY_EVERY_S)
        await leaving
    finally:
        await tasks.end([leaving])
