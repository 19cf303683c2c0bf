"""A deployment with a real Prometheus that watches it: ``async with watched(folder) as (there, watch)``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from support.deployment import AS_SHIPPED, Deployment, deployment
from support.monitoring import Monitoring, monitoring


class Watched(NamedTuple):
    """Both of them."""

    there: Deployment
    watch: Monitoring


@asynccontextmanager
async def watched(folder: Path, environment: Mapping[str, str]) -> AsyncIterator[Watched]:
    """Start a deployment and, when it serves, Prometheus and Alertmanager."""
    async with (
        deployment(folder, environment={**AS_SHIPPED, **environment}) as there,
        monitoring(folder, there.stack.options.state.targets) as watch,
    ):
        yield Watched(there, watch)
