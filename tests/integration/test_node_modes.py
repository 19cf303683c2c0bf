"""A real node over a real bus is cordoned, drained and uncordoned, and remembers it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from standby.bus.connection import Bus
from standby.bus.subjects import mode_subject
from standby.bus.tables_set import open_tables
from standby.domain.errors import InvalidInput
from standby.domain.node import NodeMode
from standby.domain.node_orders import NodeAction, NodeAnswer, NodeOrder
from standby.warm_pool.main import node
from standby.warm_pool.settings import NodeSettings
from standby.warm_pool.wiring import NodeParts
from support.nats_server import NatsServer, nats_server
from support.waiting import until


class Rig:
    """The bus as a gateway sees it."""

    def __init__(self, server: NatsServer, bus: Bus, state: Path) -> None:
        self.server = server
        self.bus = bus
        self.settings = NodeSettings.load(node_name="n1", node_token="t", state_dir=state, heartbeat_s=0.1)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[NodeParts]:
        async with node(self.settings, self.server.settings(nats_relist_interval=3600.0)) as parts:
            yield parts

    async def order(self, action: NodeAction) -> NodeAnswer:
        order = NodeOrder(action=action, by="ops")
        return NodeAnswer.model_validate_json(await self.bus.request(mode_subject("n1"), order.encode(), 60))

    async def said(self, mode: NodeMode) -> str:
        """Wait until the node's own record says so, and return its reason."""
        nodes = (await open_tables(self.bus)).nodes
        end = time.monotonic() + 60
        while time.monotonic() < end:
            entry = await nodes.get("n1")
            if entry is not None and entry.value.mode is mode:
                return entry.value.mode_reason
            await asyncio.sleep(0.03)
        raise AssertionError(f"the record does not say {mode}")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with nats_server(tmp_path / "nats") as server, server.bus() as bus:
        yield Rig(server, bus, tmp_path / "node")


async def test_a_cordon_is_told_and_lifted(rig: Rig) -> None:
    async with rig.agent() as parts:
        assert await rig.said(NodeMode.OPEN) == ""
        answer = await rig.order(NodeAction.CORDON)
        assert (answer.changed, answer.mode, answer.reason) == (True, NodeMode.CORDONED, "by ops")
        assert await rig.said(NodeMode.CORDONED) == "by ops"
        assert not (await rig.order(NodeAction.CORDON)).changed
        assert not parts.agent.stopping
        assert (await rig.order(NodeAction.UNCORDON)).mode is NodeMode.OPEN
        await rig.said(NodeMode.OPEN)


async def test_a_drained_node_says_so_and_stays_empty_over_a_restart(rig: Rig) -> None:
    async with rig.agent():
        assert (await rig.order(NodeAction.DRAIN)).mode in {NodeMode.DRAINING, NodeMode.DRAINED}
        await rig.said(NodeMode.DRAINED)
        assert not (await rig.order(NodeAction.CORDON)).changed, "it takes nothing already"
    async with rig.agent() as parts:
        assert await rig.said(NodeMode.DRAINED) == "by ops"
        await until(lambda: parts.agent.stopping)
        await rig.order(NodeAction.UNCORDON)
        await rig.said(NodeMode.OPEN)
        assert not parts.agent.stopping


async def test_a_node_that_is_told_to_stop_says_so(rig: Rig) -> None:
    """And begins anew in the mode that it had, whatever was ordered meanwhile."""
    async with rig.agent() as parts:
        await rig.order(NodeAction.CORDON)
        parts.duty.leave()
        assert not (await rig.order(NodeAction.UNCORDON)).changed
        assert await rig.said(NodeMode.LEAVING) == "the agent was told to stop"
    async with rig.agent():
        await rig.said(NodeMode.CORDONED)


async def test_an_order_that_is_none(rig: Rig) -> None:
    async with rig.agent():
        with pytest.raises(InvalidInput, match="no order for a node"):
            await rig.bus.request(mode_subject("n1"), b'{"action": "explode"}', 60)
