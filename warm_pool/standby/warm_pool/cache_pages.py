"""The pages of cached artifacts in memory: read in ahead of need, counted, given back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from standby.warm_pool import page_cache
from standby.warm_pool.cache_disk import StoredArtifact
from standby.warm_pool.cache_options import CacheOptions
from standby.warm_pool.warming import Warmed, plan_warming


async def warm(artifact: StoredArtifact, options: CacheOptions) -> Warmed:
    """Read the artifact in file order; all of it or, where memory is short, nothing. Ends when the caller is cancelled."""
    plan = plan_warming(artifact.bytes, options.available_bytes(), options.warm_reserve_bytes)
    if not plan.go:
        return Warmed(0, plan.reason)
    stop = threading.Event()
    try:
        return Warmed(await asyncio.to_thread(page_cache.read_in, artifact.paths(), stop, options.warm_pacer))
    finally:
        stop.set()  # a cancelled caller must not leave a thread reading gigabytes


async def resident(artifact: StoredArtifact) -> int:
    """Return how many bytes of the artifact are in the page cache."""
    return await asyncio.to_thread(page_cache.resident_bytes, artifact.paths())


async def resident_of_all(artifacts: Mapping[str, StoredArtifact]) -> Mapping[str, int]:
    """Return digest → bytes in the page cache; without those that are evicted meanwhile."""
    found: dict[str, int] = {}
    for digest, artifact in list(artifacts.items()):
        try:
            found[digest] = await resident(artifact)
        except FileNotFoundError:
            continue
    return found


async def give_back(artifact: StoredArtifact) -> None:
    """Give the artifact's pages back to the kernel, as far as no process maps them."""
    await asyncio.to_thread(page_cache.give_back, artifact.paths())
