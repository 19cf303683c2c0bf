"""A deployment beside what is really there of its engines."""

from __future__ import annotations

import psutil

from support.deployment import Deployment
from support.reality import Reality


class EnginePlace:
    """``there`` is the deployment, ``reality`` its processes, files and memory."""

    def __init__(self, there: Deployment) -> None:
        root = there.stack.options.state.root
        self.there = there
        self.reality = Reality(root / "node", root, lambda path: there.api("GET", path))

    async def tree(self, endpoint: str) -> list[psutil.Process]:
        """The processes of the endpoint's only engine, the first one first."""
        instance = await self.there.instance(endpoint)
        assert instance is not None
        return self.reality.tree(instance["id"])

    async def family(self, endpoint: str) -> list[psutil.Process]:
        """The same, and none where it has no engine."""
        instance = await self.there.instance(endpoint) or {}
        recorded = any(one.instance == instance.get("id") for one in self.reality.records())
        return self.reality.tree(instance["id"]) if recorded else []

    async def begun(self, endpoint: str) -> bool:
        """Whether the process of the endpoint's only engine is there."""
        instance = await self.there.instance(endpoint) or {}
        return any(one.instance == instance.get("id") and one.pid for one in self.reality.records())

    async def another_agent(self, boot: str) -> bool:
        """Whether the node's agent is another one than that of ``boot``."""
        return bool((await self.reality.node())["boot_id"] != boot)
