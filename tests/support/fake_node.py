"""A node without engines: it follows its assignments and says what a node would say, at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from standby.bus.mirror import Mirror
from standby.bus.tables import Entry
from standby.bus.tables_set import Tables
from standby.domain.assignment import Assignment
from standby.domain.errors import BusUnavailable
from standby.domain.instance import Instance, InstanceState
from standby.host import tasks as host_tasks
from support.cluster import REST, make_node


class FakeNode:
    """Writes ``instances`` and its own record; ``obeys`` can be switched off, ``states`` is what it last said."""

    def __init__(self, tables: Tables, name: str) -> None:
        self.name = name
        self.obeys = True
        self.seen: list[Assignment] = []
        self.states: dict[str, InstanceState] = {}
        self._tables = tables
        self._work: asyncio.Queue[tuple[str, Assignment | None]] = asyncio.Queue()
        self._heartbeat = 0
        self.mirror: Mirror[Assignment] = Mirror(tables.assignments, self._on_change, prefix=f"{name}.")

    async def beat(self) -> None:
        """Let the heart beat once."""
        self._heartbeat += 1
        await self._tables.nodes.put(self.name, make_node(self.name, heartbeat=self._heartbeat))

    def _on_change(self, name: str, _before: Entry[Assignment] | None, after: Entry[Assignment] | None) -> None:
        if after is not None:
            self.seen.append(after.value)
        self._work.put_nowait((name, None if after is None else after.value))

    async def serve(self) -> None:
        """Do as the assignments say."""
        while True:
            name, wanted = await self._work.get()
            if not self.obeys:
                continue
            await self._say(name, wanted)

    async def _say(self, name: str, wanted: Assignment | None) -> None:
        """Write until it is written, as a node does: the server may be killed in the middle of it."""
        if wanted is None:
            self.states.pop(name, None)
        else:
            self.states[name] = REST[wanted.rung]
        while True:
            try:
                if wanted is None:
                    await self._tables.instances.delete(name)
                else:
                    await self._tables.instances.put(name, self._record(wanted, self.states[name]))
            except BusUnavailable:
                await asyncio.sleep(0.05)
            else:
                return

    def _record(self, wanted: Assignment, state: InstanceState) -> Instance:
        clock = asyncio.get_running_loop().time()
        return Instance(
            node=self.name,
            id=wanted.instance,
            tenant=wanted.tenant,
            endpoint=wanted.endpoint,
            variant=wanted.variant,
            backend=wanted.backend,
            served_name=wanted.served_name,
            model_digest=wanted.model.manifest.digest,
            state=state,
            epoch=1,
            door="127.0.0.1:7000",
            slots=wanted.slots,
            idle_since=clock if state is InstanceState.READY else None,
            rung_since=clock,
            assignment_intent=wanted.intent,
            updated_at=clock,
        )


@asynccontextmanager
async def fake_node(tables: Tables, name: str = "n1") -> AsyncIterator[FakeNode]:
    """Run a node until the end of the block."""
    node = FakeNode(tables, name)
    await node.beat()
    await node.mirror.start()
    task = asyncio.get_running_loop().create_task(node.serve())
    try:
        yield node
    finally:
        await host_tasks.end([task])
        await node.mirror.stop()
