"""The cache's own rules: one download per digest, pins, eviction, restart. Bytes come from a stand-in downloader."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from standby.artifacts.fetch import FetchOptions, OnFile, Progress
from standby.domain.errors import DigestMismatch, DiskFull, IncompleteDownload
from standby.domain.model import Manifest, ModelFormat, ObjectRef
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.cache_disk import CacheFolder
from standby.warm_pool.cache_options import CacheOptions, CacheStatistics

SIZE = 1000
_OPTIONS = FetchOptions()


def manifest(name: str, size: int = SIZE) -> Manifest:
    ref = ObjectRef(key=name, path="sub/model.gguf", size=size, etag=name)
    return Manifest(source_uri=f"s3://bucket/{name}", format=ModelFormat.GGUF, objects=(ref,))


def ignore(_done: int, _total: int) -> None:
    pass


class Downloads:
    """Stands in for the network: writes files of the right size when ``gate`` is open; can fail."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        self.calls: list[str] = []
        self.cancelled = 0
        self.error: Exception | None = None

    async def __call__(
        self,
        manifest: Manifest,
        into: Path,
        progress: Progress,
        *,
        on_file: OnFile | None = None,
        options: FetchOptions = _OPTIONS,
    ) -> Mapping[str, str]:
        assert options.journal is not None, "a cache's download can go on after a restart"
        self.calls.append(manifest.source_uri)
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        (into / "sub").mkdir(parents=True)
        (into / "sub" / "model.gguf").write_bytes(b"x" * manifest.total_bytes)
        progress(manifest.total_bytes, manifest.total_bytes)
        if on_file is not None:
            on_file("sub/model.gguf")
        return {"sub/model.gguf": "0" * 64}


@pytest.fixture
def downloads() -> Downloads:
    return Downloads()


async def opened(root: Path, downloads: Downloads, capacity: int = 10 * SIZE) -> ArtifactCache:
    ticks = itertools.count(1_000_000_000)
    cache = ArtifactCache(root, capacity, CacheOptions(fetcher=downloads, now=lambda: float(next(ticks))))
    await cache.open()
    return cache


async def test_complete_artifact_is_found_again(tmp_path: Path, downloads: Downloads) -> None:
    cache = await opened(tmp_path, downloads)
    wanted = manifest("a")
    assert cache.locate(wanted.digest) is None
    folder = await cache.ensure(wanted, ignore)
    assert (folder / "sub" / "model.gguf").stat().st_size == SIZE
    assert await cache.ensure(wanted, ignore) == folder == cache.locate(wanted.digest)
    assert cache.statistics() == CacheStatistics(hits=1, downloads=1)
    again = await opened(tmp_path, downloads)
    assert again.locate(wanted.digest) == folder
    assert again.used_bytes == SIZE
    assert len(downloads.calls) == 1


async def test_files_are_read_only(tmp_path: Path, downloads: Downloads) -> None:
    """Engines map the files; a rewrite in place would crash or poison them."""
    folder = await (await opened(tmp_path, downloads)).ensure(manifest("a"), ignore)
    assert (folder / "sub" / "model.gguf").stat().st_mode & 0o222 == 0


async def test_concurrent_callers_share_one_download(tmp_path: Path, downloads: Downloads) -> None:
    """Field case B07 at the cache: twenty ask, one downloads, everyone hears of the progress."""
    cache = await opened(tmp_path, downloads)
    downloads.gate.clear()
    heard: list[int] = []
    callers = [asyncio.create_task(cache.ensure(manifest("a"), lambda done, _: heard.append(done))) for _ in range(20)]
    await downloads.begun.wait()
    downloads.gate.set()
    assert len(set(await asyncio.gather(*callers))) == 1
    assert len(downloads.calls) == 1
    assert heard == [SIZE] * 20
    assert cache.statistics().joined == 19


async def test_a_cancelled_caller_does_not_end_the_download_of_another(tmp_path: Path, downloads: Downloads) -> None:
    cache = await opened(tmp_path, downloads)
    downloads.gate.clear()
    first = asyncio.create_task(cache.ensure(manifest("a"), ignore))
    second = asyncio.create_task(cache.ensure(manifest("a"), ignore))
    await downloads.begun.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    downloads.gate.set()
    assert (await second).is_dir()
    assert (len(downloads.calls), downloads.cancelled) == (1, 0)


async def test_the_last_cancelled_caller_ends_the_download_and_the_next_begins_anew(
    tmp_path: Path, downloads: Downloads
) -> None:
    cache = await opened(tmp_path, downloads)
    downloads.gate.clear()
    only = asyncio.create_task(cache.ensure(manifest("a"), ignore))
    await downloads.begun.wait()
    only.cancel()
    await asyncio.gather(only, return_exceptions=True)
    downloads.gate.set()
    assert (await cache.ensure(manifest("a"), ignore)).is_dir()
    assert (len(downloads.calls), downloads.cancelled) == (2, 1)
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_failure_reaches_every_caller_and_leaves_nothing(tmp_path: Path, downloads: Downloads) -> None:
    cache = await opened(tmp_path, downloads)
    downloads.error = IncompleteDownload("incomplete download, 6 of 10 bytes")
    outcomes = await asyncio.gather(*(cache.ensure(manifest("a"), ignore) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [IncompleteDownload] * 3
    assert cache.contents() == ()
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "artifacts").iterdir()) == []
    downloads.error = None
    assert (await cache.ensure(manifest("a"), ignore)).is_dir()


async def test_least_recently_used_is_evicted(tmp_path: Path, downloads: Downloads) -> None:
    cache = await opened(tmp_path, downloads, capacity=2 * SIZE)
    first, second, third = manifest("a"), manifest("b"), manifest("c")
    for wanted in (first, second, first, third):
        await cache.ensure(wanted, ignore)
    assert {item.digest for item in cache.contents()} == {first.digest, third.digest}
    assert cache.used_bytes == 2 * SIZE
    assert cache.statistics().evictions == 1
    assert not (tmp_path / "artifacts" / second.digest).exists()


async def test_order_of_use_survives_a_restart(tmp_path: Path, downloads: Downloads) -> None:
    cache = await opened(tmp_path, downloads, capacity=2 * SIZE)
    first, second = manifest("a"), manifest("b")
    for wanted in (first, second, first):
        await cache.ensure(wanted, ignore)
    again = await opened(tmp_path, downloads, capacity=2 * SIZE)
    await again.ensure(manifest("c"), ignore)
    assert again.locate(first.digest) is not None
    assert again.locate(second.digest) is None


async def test_pinned_is_never_evicted(tmp_path: Path, downloads: Downloads) -> None:
    """Two users, one gone: still pinned. All pinned: DiskFull that names the sizes, and nothing was evicted."""
    cache = await opened(tmp_path, downloads, capacity=2 * SIZE)
    held, free = manifest("held"), manifest("free")
    cache.pin(held.digest)
    cache.pin(held.digest)
    cache.unpin(held.digest)
    for wanted in (held, free, manifest("third")):
        await cache.ensure(wanted, ignore)
    assert cache.locate(held.digest) is not None
    assert cache.locate(free.digest) is None
    with pytest.raises(DiskFull, match=r"1500 bytes do not fit: cap 2000 bytes, 1000 bytes in use"):
        await cache.ensure(manifest("large", 1500), ignore)
    assert len(cache.contents()) == 2
    cache.unpin(held.digest)
    assert (await cache.ensure(manifest("large", 1500), ignore)).is_dir()
    assert [item.pinned for item in cache.contents()] == [False]


async def test_pins_hold_against_other_caches_on_the_same_root(tmp_path: Path, downloads: Downloads) -> None:
    mine, theirs = [await opened(tmp_path, downloads, capacity=SIZE) for _ in range(2)]
    held = manifest("held")
    await mine.ensure(held, ignore)
    mine.pin(held.digest)
    with pytest.raises(DiskFull):
        await theirs.ensure(manifest("other"), ignore)
    mine.unpin(held.digest)
    assert (await theirs.ensure(manifest("other"), ignore)).is_dir()
    assert mine.locate(held.digest) is None


async def test_larger_than_the_cap(tmp_path: Path, downloads: Downloads) -> None:
    cache = await opened(tmp_path, downloads, capacity=SIZE)
    with pytest.raises(DiskFull, match="1001 bytes are more than the cache's cap of 1000 bytes"):
        await cache.ensure(manifest("large", SIZE + 1), ignore)
    assert downloads.calls == []


async def test_downloads_at_the_same_time_share_the_cap(tmp_path: Path, downloads: Downloads) -> None:
    """Both fit alone and not together: the second is refused, not written past the cap."""
    cache = await opened(tmp_path, downloads, capacity=SIZE)
    downloads.gate.clear()
    first = asyncio.create_task(cache.ensure(manifest("a"), ignore))
    await downloads.begun.wait()
    with pytest.raises(DiskFull, match="1000 bytes in use or being downloaded"):
        await cache.ensure(manifest("b"), ignore)
    downloads.gate.set()
    assert (await first).is_dir()


@pytest.mark.parametrize("damage", ["short", "missing file", "no manifest", "bad manifest", "foreign"])
async def test_incomplete_artifact_is_removed_at_open(tmp_path: Path, downloads: Downloads, damage: str) -> None:
    """Whatever lies under a final name and is not whole never becomes visible."""
    wanted = manifest("a")
    folder = await (await opened(tmp_path, downloads)).ensure(wanted, ignore)
    model, note = folder / "sub" / "model.gguf", folder.parent / "manifest.json"
    match damage:
        case "short":
            os.truncate(model, SIZE - 1)
        case "missing file":
            model.unlink()
        case "no manifest":
            note.unlink()
        case "bad manifest":
            note.write_bytes(b"{")
        case _:
            folder.parent.rename(folder.parent.with_name("0" * 64))
    again = await opened(tmp_path, downloads)
    assert again.contents() == ()
    assert again.statistics().quarantined == 1
    assert list((tmp_path / "artifacts").iterdir()) == []
    assert (await again.ensure(wanted, ignore)).is_dir()


async def test_artifact_broken_while_open_is_replaced(tmp_path: Path, downloads: Downloads) -> None:
    """Another process left a broken folder under the final name: it is cleared, not trusted."""
    cache = await opened(tmp_path, downloads)
    wanted = manifest("a")
    (tmp_path / "artifacts" / wanted.digest).mkdir()
    assert (await cache.ensure(wanted, ignore) / "sub" / "model.gguf").stat().st_size == SIZE
    assert cache.statistics().quarantined == 1


async def test_verify_finds_changed_bytes(tmp_path: Path, downloads: Downloads) -> None:
    """The stand-in reports a wrong hash, as a disk that flips bits would."""
    cache = await opened(tmp_path, downloads)
    wanted = manifest("a")
    await cache.ensure(wanted, ignore)
    with pytest.raises(DigestMismatch, match=r"sub/model.gguf of artifact .* has SHA-256"):
        await cache.verify(wanted.digest)
    assert cache.locate(wanted.digest) is None


async def test_stale_temporaries_are_swept_and_live_ones_are_not(tmp_path: Path, downloads: Downloads) -> None:
    disk = CacheFolder(tmp_path)
    disk.prepare()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    dead = {
        f"{os.getpid()}-1-{boot}-aa",  # our id, of an earlier process
        f"4194304-1-{boot}-bb",  # an id that no process can have
        f"{os.getpid()}-1-otherboot-cc",
        "garbage",
    }
    for name in dead:
        (tmp_path / "tmp" / name).mkdir()
    with disk.new_temporary() as live:
        cache = await opened(tmp_path, downloads)
        assert cache.statistics().swept == len(dead)
        assert list((tmp_path / "tmp").iterdir()) == [live.path]


async def test_close_ends_downloads(tmp_path: Path, downloads: Downloads) -> None:
    cache = await opened(tmp_path, downloads)
    downloads.gate.clear()
    caller = asyncio.create_task(cache.ensure(manifest("a"), ignore))
    await downloads.begun.wait()
    await cache.close()
    assert downloads.cancelled == 1
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_page_cache(tmp_path: Path, downloads: Downloads) -> None:
    """Chilled, nothing of the artifact is resident; warmed, all of it is."""
    if _file_system(tmp_path) in {"tmpfs", "ramfs"}:
        pytest.skip("the temporary folder lies in memory: its pages cannot be given back (set TMPDIR to a disk)")
    cache = await opened(tmp_path, downloads, capacity=1 << 30)
    wanted = manifest("a", 3_000_001)
    folder = await cache.ensure(wanted, ignore)
    with (folder / "sub" / "model.gguf").open("rb") as file:
        os.fsync(file.fileno())  # dirty pages cannot be given back
    await cache.chill(wanted.digest)
    assert await cache.resident(wanted.digest) == 0
    await cache.warm(wanted.digest)
    assert await cache.resident(wanted.digest) == wanted.total_bytes


def _file_system(folder: Path) -> str:
    mounts = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype
