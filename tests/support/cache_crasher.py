"""A process that uses a cache at random until it is killed: ``python -m support.cache_crasher ROOT MANIFESTS.json SEED``.

Prints ``ready`` once, then ``pinned DIGEST`` after a pin was acknowledged and ``unpinning DIGEST`` before one is taken off.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from pydantic import TypeAdapter

from standby.artifacts.fetch import FetchOptions
from standby.domain.errors import StandbyError
from standby.domain.model import Manifest
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.cache_options import CacheOptions

CAPACITY = 1_500_000
OPTIONS = CacheOptions(fetch=FetchOptions(chunk_bytes=32 << 10))


def ignore(_done: int, _total: int) -> None:
    pass


async def main(root: Path, manifests: list[Manifest], seed: int) -> None:
    chance = random.Random(seed)
    cache = ArtifactCache(root, CAPACITY, OPTIONS)
    await cache.open()
    print("ready", flush=True)
    while True:
        manifest = chance.choice(manifests)
        try:
            await _do(cache, manifest, chance.random())
        except StandbyError:
            continue  # no room, pinned, not there: all of it may be


async def _do(cache: ArtifactCache, manifest: Manifest, what: float) -> None:
    digest = manifest.digest
    if what < 0.6:
        await cache.ensure(manifest, ignore)
    elif what < 0.75:
        await cache.keep(digest, "ops")
        print("pinned", digest, flush=True)
    elif what < 0.9:
        print("unpinning", digest, flush=True)
        await cache.let_go(digest)
    else:
        await cache.evict(digest)


if __name__ == "__main__":
    found = TypeAdapter(list[Manifest]).validate_json(Path(sys.argv[2]).read_bytes())
    asyncio.run(main(Path(sys.argv[1]), found, int(sys.argv[3])))
