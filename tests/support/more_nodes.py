"""More nodes beside the one of a deployment: ``async with more_nodes(there, "n2"):``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from standby.cli.supervisor import Child
from support.deployment import Deployment


@asynccontextmanager
async def more_nodes(there: Deployment, *names: str) -> AsyncIterator[dict[str, Child]]:
    """Start a node agent for each name, with a state folder of its own, kept running like the others; ended at the end."""
    state = there.stack.options.state
    first = there.stack.children["node"].environment
    async with AsyncExitStack() as cleanup:
        nodes: dict[str, Child] = {}
        for name in names:
            own = {"STANDBY_NODE_NAME": name, "STANDBY_STATE_DIR": str(state.root / name), "STANDBY_METRICS_PORT": "0"}
            nodes[name] = Child(f"node {name}", ["node"], {**first, **own}, state.logs / f"{name}.log", 20.0)
            cleanup.push_async_callback(nodes[name].stop)
            await nodes[name].start()

        async def all_known() -> bool:
            listed = (await there.api("GET", "/nodes"))["nodes"]
            return {node["name"] for node in listed} >= set(names)

        await there.until(all_known, f"{names} are there")
        yield nodes
        await asyncio.gather(*(node.stop() for node in nodes.values()))
