"""Downloads from a real S3 server, through a network and onto disks that fail."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from standby.artifacts.fetch import fetch
from standby.artifacts.inspection import inspect
from standby.domain.errors import ArtifactChanged, DiskFull, IncompleteDownload, SourceUnreachable
from standby.domain.model import Manifest, SourceOptions
from standby.warm_pool.cache import ArtifactCache
from support.flaky_proxy import Fault, FlakyProxy, flaky_proxy
from support.gguf_builder import gguf
from support.real_model import real_model_path
from support.s3_server import S3Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONTENT = gguf(rows=180_000)  # 11.5 MB: two chunks
DEADLINE = 30.0


def ignore(_done: int, _total: int) -> None:
    pass


@pytest_asyncio.fixture(loop_scope="session")
async def proxy(s3: S3Server) -> AsyncIterator[FlakyProxy]:
    async with flaky_proxy(s3.url) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def manifest(s3: S3Server, bucket: str, proxy: FlakyProxy) -> Manifest:
    """A registered model whose source goes through the proxy."""
    await s3.upload(bucket, "m/model.gguf", CONTENT)
    return await inspect(f"s3://{bucket}/m/", SourceOptions(endpoint_url=proxy.url))


@pytest_asyncio.fixture(loop_scope="session")
async def cache(tmp_path: Path) -> AsyncIterator[ArtifactCache]:
    opened = ArtifactCache(tmp_path / "cache", 1 << 30)
    await opened.open()
    yield opened
    await opened.close()


def nothing_partial(root: Path) -> bool:
    return not any((root / "tmp").iterdir()) and not any((root / "artifacts").iterdir())


async def test_real_model_arrives_whole(s3: S3Server, bucket: str, cache: ArtifactCache) -> None:
    await s3.upload(bucket, "smol.gguf", real_model_path())
    manifest = await inspect(f"s3://{bucket}/smol.gguf", s3.options)
    folder = await cache.ensure(manifest, ignore)
    expected = hashlib.sha256(real_model_path().read_bytes()).hexdigest()
    assert cache.sha256(manifest.digest) == {"smol.gguf": expected}
    assert hashlib.sha256((folder / "smol.gguf").read_bytes()).hexdigest() == expected
    await cache.verify(manifest.digest)


async def test_two_callers_one_download(manifest: Manifest, proxy: FlakyProxy, cache: ArtifactCache) -> None:
    """Field case B02: two endpoints that share one artifact; its bytes cross the network once."""
    before = proxy.answered
    first, second = await asyncio.gather(cache.ensure(manifest, ignore), cache.ensure(manifest, ignore))
    assert first == second
    assert (first / "model.gguf").read_bytes() == CONTENT
    assert len(CONTENT) <= proxy.answered - before < len(CONTENT) * 1.1


async def test_connection_cut_once_is_mended(manifest: Manifest, proxy: FlakyProxy, cache: ArtifactCache) -> None:
    """Field case B02: cut at 60 %; the download goes on by itself and the bytes are right."""
    proxy.break_after(len(CONTENT) * 6 // 10, Fault.RESET_ONCE)
    folder = await cache.ensure(manifest, ignore)
    assert proxy.resets == 1
    assert (folder / "model.gguf").read_bytes() == CONTENT


async def test_connection_that_stays_cut(manifest: Manifest, proxy: FlakyProxy, cache: ArtifactCache) -> None:
    """Field case B02: "incomplete download, N of M bytes", nothing partial visible, and a later attempt succeeds."""
    proxy.break_after(len(CONTENT) * 6 // 10, Fault.RESET_ALWAYS)
    with pytest.raises(IncompleteDownload, match=rf"incomplete download, \d+ of {len(CONTENT)} bytes"):
        await cache.ensure(manifest, ignore)
    assert cache.contents() == ()
    assert nothing_partial(cache_root(cache))
    proxy.heal()
    assert (await cache.ensure(manifest, ignore) / "model.gguf").read_bytes() == CONTENT


async def test_cut_within_the_first_chunks(manifest: Manifest, proxy: FlakyProxy, tmp_path: Path) -> None:
    """Bytes came, if no whole chunk: that is an incomplete download, not an unreachable store."""
    proxy.break_after(len(CONTENT) // 4, Fault.RESET_ALWAYS)
    with pytest.raises(IncompleteDownload, match=rf"incomplete download, 0 of {len(CONTENT)} bytes"):
        await fetch(manifest, tmp_path / "out", ignore)


async def test_store_that_never_answers(manifest: Manifest, proxy: FlakyProxy, tmp_path: Path) -> None:
    """Not a byte came: the store is unreachable, nothing is incomplete."""
    proxy.break_after(0, Fault.RESET_ALWAYS)
    with pytest.raises(SourceUnreachable, match="check the endpoint URL"):
        await fetch(manifest, tmp_path / "out", ignore)


async def test_cancelled_download_leaves_nothing(manifest: Manifest, proxy: FlakyProxy, cache: ArtifactCache) -> None:
    proxy.break_after(len(CONTENT) // 2, Fault.STALL)
    caller = asyncio.create_task(cache.ensure(manifest, ignore))
    await asyncio.wait_for(proxy.hit.wait(), DEADLINE)
    await cache.close()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert nothing_partial(cache_root(cache))
    proxy.heal()


async def test_changed_object(s3: S3Server, bucket: str, manifest: Manifest, cache: ArtifactCache) -> None:
    """Field case B04: the same keys overwritten with as many other bytes."""
    await s3.upload(bucket, "m/model.gguf", gguf(rows=180_000, seed=1))
    with pytest.raises(ArtifactChanged, match=r"artifact changed since it was registered.*register again"):
        await cache.ensure(manifest, ignore)
    assert nothing_partial(cache_root(cache))


async def test_object_changed_during_the_download(
    s3: S3Server, bucket: str, manifest: Manifest, proxy: FlakyProxy, tmp_path: Path
) -> None:
    """Half of the old bytes and half of the new ones would be a model that talks nonsense."""
    proxy.break_after(len(CONTENT) // 3, Fault.STALL)
    download = asyncio.create_task(fetch(manifest, tmp_path / "out", ignore, chunk_bytes=1 << 20))
    await asyncio.wait_for(proxy.hit.wait(), DEADLINE)
    await s3.upload(bucket, "m/model.gguf", gguf(rows=180_000, seed=1))
    proxy.heal()
    with pytest.raises(ArtifactChanged):
        await download
    assert list((tmp_path / "out").iterdir()) == []


async def test_removed_object(s3: S3Server, bucket: str, manifest: Manifest, tmp_path: Path) -> None:
    await s3.delete(bucket, "m/model.gguf")
    with pytest.raises(ArtifactChanged, match="it is gone"):
        await fetch(manifest, tmp_path / "out", ignore)


async def test_full_disk(manifest: Manifest, tmp_path: Path) -> None:
    """A real small file system: refused before the download, with the sizes, and nothing left behind."""
    with small_file_system(tmp_path / "small", "12m") as root:
        cache = ArtifactCache(root, 1 << 30)
        await cache.open()
        with pytest.raises(DiskFull, match=rf"{len(CONTENT)} bytes do not fit.*bytes free on the disk"):
            await cache.ensure(manifest, ignore)
        assert nothing_partial(root)
        with pytest.raises(DiskFull, match=r"disk full: \d+ bytes needed"):
            await fetch(manifest, root / "out", ignore)
        assert list((root / "out").iterdir()) == []


async def test_file_size_limit(s3: S3Server, manifest: Manifest, tmp_path: Path) -> None:
    """The kernel refuses the write itself (EFBIG, as a quota would): the same clear error in another process."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, 10_000_000))\n"
        "from support import cache_child; import asyncio, sys, pathlib\n"
        "from standby.domain.errors import DiskFull\n"
        "try: asyncio.run(cache_child.main(*map(pathlib.Path, sys.argv[1:])))\n"
        "except DiskFull as error: print('DiskFull:', error)\n"
    )
    child = await start_child(s3, tmp_path, manifest, "-c", code)
    output, _ = await asyncio.wait_for(child.communicate(), DEADLINE)
    assert b"DiskFull: disk full" in output
    assert nothing_partial(tmp_path / "cache")


async def test_killed_in_the_middle(s3: S3Server, manifest: Manifest, proxy: FlakyProxy, tmp_path: Path) -> None:
    """Field case B02: kill -9 of the process that downloads; the next one sweeps and downloads anew."""
    proxy.break_after(len(CONTENT) // 2, Fault.STALL)
    child = await start_child(s3, tmp_path, manifest, "-m", "support.cache_child")
    await asyncio.wait_for(proxy.hit.wait(), DEADLINE)
    root = tmp_path / "cache"
    assert len(list((root / "tmp").iterdir())) == 1
    assert list((root / "artifacts").iterdir()) == []
    child.send_signal(signal.SIGKILL)
    await child.communicate()
    proxy.heal()
    cache = ArtifactCache(root, 1 << 30)
    await cache.open()
    assert cache.statistics().swept == 1
    assert (await cache.ensure(manifest, ignore) / "model.gguf").read_bytes() == CONTENT
    assert not any((root / "tmp").iterdir())


async def test_two_processes_one_cache(s3: S3Server, manifest: Manifest, proxy: FlakyProxy, tmp_path: Path) -> None:
    """Field case B02: both want the artifact at once; one downloads, the other waits and takes what it finds."""
    before = proxy.answered
    children = [await start_child(s3, tmp_path, manifest, "-m", "support.cache_child") for _ in range(2)]
    outputs = await asyncio.wait_for(asyncio.gather(*(child.communicate() for child in children)), DEADLINE)
    folder = tmp_path / "cache" / "artifacts" / manifest.digest / "files"
    assert sorted(output.decode().strip() for output, _ in outputs) == [
        f"done {folder} downloads 0",
        f"done {folder} downloads 1",
    ]
    assert proxy.answered - before < len(CONTENT) * 1.1
    assert (folder / "model.gguf").read_bytes() == CONTENT


def cache_root(cache: ArtifactCache) -> Path:
    return cache._disk.root


async def start_child(s3: S3Server, folder: Path, manifest: Manifest, *how: str) -> asyncio.subprocess.Process:
    """Start a process of its own on the cache ``folder/cache``."""
    note = folder / "manifest.json"
    note.write_text(manifest.model_dump_json())
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    return await asyncio.create_subprocess_exec(
        sys.executable, *how, str(folder / "cache"), str(note),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **s3.env()}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


@contextlib.contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of ``size``; needs root, and says so where there is none."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
