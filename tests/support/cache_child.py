"""A process that ensures one artifact in a cache: ``python -m support.cache_child ROOT MANIFEST.json``.

Prints ``done FOLDER downloads N``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from standby.domain.model import Manifest
from standby.warm_pool.cache import ArtifactCache


async def main(root: Path, manifest_file: Path) -> None:
    manifest = Manifest.model_validate_json(manifest_file.read_bytes())
    cache = ArtifactCache(root, 1 << 30)
    await cache.open()
    folder = await cache.ensure(manifest, lambda _done, _total: None)
    print("done", folder, "downloads", cache.statistics().downloads, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
