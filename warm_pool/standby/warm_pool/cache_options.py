"""How a cache behaves, and what it counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from standby.artifacts.fetch import FetchOptions, fetch
from standby.artifacts.pace import Pacer
from standby.warm_pool.cache_arrival import Fetch


@dataclass(frozen=True)
class CacheStatistics:
    """Counts since the cache was opened."""

    hits: int = 0
    joined: int = 0
    downloads: int = 0
    evictions: int = 0
    quarantined: int = 0
    swept: int = 0


@dataclass(frozen=True)
class CacheOptions:
    """How a cache behaves.

    ``fetcher`` is how bytes arrive, ``fetch`` its options (the journal is the cache's own). ``warm_pacer`` caps reading
    ahead, ``warm_reserve_bytes`` is the memory that it leaves. ``now`` orders the use of artifacts.
    """

    fetcher: Fetch = fetch
    fetch: FetchOptions = field(default_factory=FetchOptions)
    warm_pacer: Pacer = field(default_factory=Pacer)
    warm_reserve_bytes: int = 0
    now: Callable[[], float] = time.time
    available_bytes: Callable[[], int] = lambda: int(psutil.virtual_memory().available)
