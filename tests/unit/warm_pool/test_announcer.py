"""What the node says of itself: one record that cannot be written silences no other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from standby.domain.errors import PayloadTooLarge
from standby.domain.values import Record
from standby.warm_pool.announcer import Announcer
from support.builders import an_instance
from support.cluster import make_node


class OneIsTooBig:
    """A table that takes everything but the record of ``big`` and of nodes with a heartbeat of 1."""

    def __init__(self) -> None:
        self.written: list[str] = []

    async def put(self, key: str, record: Record) -> int:
        if key == "n1.big" or getattr(record, "heartbeat", 0) == 1:
            raise PayloadTooLarge("message is larger than the server takes")
        self.written.append(key)
        return 1


async def test_a_record_that_is_too_big_is_passed_over() -> None:
    table = OneIsTooBig()
    announcer = Announcer(cast("Any", SimpleNamespace(instances=table, nodes=table)))
    task = asyncio.create_task(announcer.run())
    announcer.instance(an_instance(id="big"))
    announcer.instance(an_instance(id="i2"))
    announcer.node(make_node("n1", heartbeat=1))
    async with asyncio.timeout(30):
        await announcer.flushed()
        announcer.node(make_node("n1", heartbeat=2))
        await announcer.flushed()
    assert table.written == ["n1.i2", "n1"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
