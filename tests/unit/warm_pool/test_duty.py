"""What a node takes: orders that meet the end of a drain, and each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from standby.domain.node import NodeMode
from standby.domain.node_orders import NodeAction, NodeOrder
from standby.warm_pool.agent import Agent
from standby.warm_pool.duty import Duty, KeptMode
from standby.warm_pool.kept_file import read_kept, write_kept
from support.waiting import until


@dataclass
class Winding:
    """As much of an agent as a duty needs: it is empty when the test says so."""

    instances: dict[str, Any] = field(default_factory=dict)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: bool = False

    async def wind_down(self) -> None:
        self.stopping = True
        await self.empty.wait()

    def take_again(self, _assignments: object) -> None:
        self.stopping = False


def an_order(action: NodeAction) -> NodeOrder:
    return NodeOrder(action=action, by="ops")


async def test_a_drain_that_ends_while_the_node_is_opened_has_not_the_last_word(tmp_path: Path) -> None:
    agent = Winding()
    duty = Duty("n1", tmp_path / "mode.json", cast("Agent", agent))
    await duty.carry_out(an_order(NodeAction.DRAIN))
    duty.told = agent.empty.set
    answer = await duty.carry_out(an_order(NodeAction.UNCORDON))
    assert (answer.mode, duty.mode, agent.stopping) == (NodeMode.OPEN, NodeMode.OPEN, False)
    await duty.stop()


async def test_an_empty_node_is_drained_at_once_and_its_file_written_by_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing: list[NodeMode] = []
    at_once: list[int] = []

    def counted_write(path: Path, record: KeptMode) -> None:
        writing.append(record.mode)
        at_once.append(len(writing))
        write_kept(path, record)
        writing.remove(record.mode)

    monkeypatch.setattr("standby.warm_pool.duty.write_kept", counted_write)
    agent = Winding()
    agent.empty.set()
    duty = Duty("n1", tmp_path / "mode.json", cast("Agent", agent))
    orders = [duty.carry_out(an_order(action)) for action in (NodeAction.DRAIN, NodeAction.UNCORDON, NodeAction.DRAIN)]
    answers = await asyncio.gather(*orders)
    assert [answer.changed for answer in answers] == [True, True, True]
    assert set(at_once) == {1}
    assert agent.stopping, "the last order stands"
    await until(lambda: duty.mode is NodeMode.DRAINED)
    await duty.stop()
    assert read_kept(duty.file, KeptMode) == KeptMode(mode=NodeMode.DRAINING, reason="by ops")
