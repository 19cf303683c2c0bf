"""A process that ensures one artifact in a cache: ``python -m support.cache_child ROOT MANIFEST.json [CHUNK_BYTES]``.

Prints ``done FOLDER downloads N``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from standby.artifacts.fetch import CHUNK_BYTES, FetchOptions
from standby.domain.model import Manifest
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.cache_options import CacheOptions


async def main(root: Path, manifest_file: Path, chunk_bytes: int = CHUNK_BYTES) -> None:
    manifest = Manifest.model_validate_json(manifest_file.read_bytes())
    cache = ArtifactCache(root, 1 << 30, CacheOptions(fetch=FetchOptions(chunk_bytes=chunk_bytes)))
    await cache.open()
    folder = await cache.ensure(manifest, lambda _done, _total: None)
    print("done", folder, "downloads", cache.statistics().downloads, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])))
