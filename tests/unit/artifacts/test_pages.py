"""Reading artifacts ahead, and counting what of them is in memory."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from standby.artifacts.pace import Pacer
from standby.artifacts.sources import open_source
from standby.domain.model import Manifest, ModelFormat, SourceOptions
from standby.warm_pool import page_cache
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.cache_options import CacheOptions
from standby.warm_pool.warming import plan_warming


async def cached(tmp_path: Path, options: CacheOptions) -> tuple[ArtifactCache, Manifest]:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.gguf").write_bytes(os.urandom(3_000_001))
    uri = f"file://{tmp_path}/m"
    objects = tuple(await open_source(uri, SourceOptions()).list())
    manifest = Manifest(source_uri=uri, format=ModelFormat.GGUF, objects=objects)
    cache = ArtifactCache(tmp_path / "cache", 1 << 30, options)
    await cache.open()
    await cache.ensure(manifest, lambda _done, _total: None)
    return cache, manifest


@pytest.mark.decision
@pytest.mark.parametrize(("available", "go"), [(150, True), (149, False), (0, False)])
def test_the_reserve_stays_free(available: int, go: bool) -> None:
    plan = plan_warming(needed=100, available=available, reserve=50)
    assert plan.go is go
    assert "100 bytes" in plan.reason


async def test_short_memory_is_said_and_nothing_is_read(tmp_path: Path) -> None:
    options = CacheOptions(warm_reserve_bytes=1 << 20, available_bytes=lambda: 4_000_000)
    cache, manifest = await cached(tmp_path, options)
    warmed = await cache.warm(manifest.digest)
    assert warmed.read_bytes == 0
    assert "4000000 bytes available, of which 1048576 must stay free" in warmed.skipped


async def test_warm_reads_everything(tmp_path: Path) -> None:
    cache, manifest = await cached(tmp_path, CacheOptions())
    warmed = await cache.warm(manifest.digest)
    assert (warmed.read_bytes, warmed.skipped) == (manifest.total_bytes, "")
    assert cache.contents()[0].resident_bytes is None
    await cache.measure()
    assert cache.contents()[0].resident_bytes == manifest.total_bytes


async def test_cancelled_warming_ends_its_thread(tmp_path: Path) -> None:
    """At one byte per second it would take a month, and the only thread would be busy as long."""
    cache, manifest = await cached(tmp_path, CacheOptions(warm_pacer=Pacer(1)))
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    work = asyncio.create_task(cache.warm(manifest.digest))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    async with asyncio.timeout(60):
        assert await cache.resident(manifest.digest) == manifest.total_bytes


def test_paced_reading_takes_small_bites(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(300_000))
    clock = [0.0]
    pacer = Pacer(1 << 30, now=lambda: clock[0])
    assert page_cache.read_in([path, path], threading.Event(), pacer) == 600_000


def test_two_ways_to_count_agree(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(1_000_001))
    with path.open("rb") as file:
        quick, exact = page_cache.cached_pages(file.fileno()), page_cache.mapped_pages(file.fileno(), 1_000_001)
    assert exact == 245
    assert quick in {None, exact}
    assert page_cache.resident_bytes([path, path]) == 2_000_002
