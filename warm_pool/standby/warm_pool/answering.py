"""Everything that a node answers over the bus: orders to its cache and to itself, its engines' logs, profiles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from standby.bus.connection import Bus
from standby.bus.subscription import Subscription
from standby.warm_pool.agent import Agent
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.duty import Duty
from standby.warm_pool.engine_logs import EngineLogs
from standby.warm_pool.orders import CacheOrders
from standby.warm_pool.profiling import Profiler


@dataclass(frozen=True)
class Answering:
    """Who answers is kept here until ``close``."""

    subscriptions: tuple[Subscription, ...]
    profiler: Profiler

    @classmethod
    async def open(cls, bus: Bus, agent: Agent, cache: ArtifactCache, duty: Duty, state_dir: Path) -> Answering:
        """Begin to answer. Raises BusUnavailable."""
        profiler = Profiler(agent.node, agent.instances, state_dir / "profiles")
        logs = EngineLogs(agent.node, agent.instances, log_folder(state_dir))
        orders = CacheOrders(agent.node, cache)
        return cls(tuple([await one.serve(bus) for one in (orders, duty, logs, profiler)]), profiler)

    async def close(self) -> None:
        """Answer no more, and end what is being recorded."""
        for subscription in self.subscriptions:
            await subscription.unsubscribe()
        await self.profiler.close()


def log_folder(state_dir: Path) -> Path:
    """Return where the node's engines write their logs."""
    return state_dir / "engine-logs"
