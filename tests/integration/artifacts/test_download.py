"""Downloads from a real S3 server, through a network and onto disks that fail."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import signal
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from standby.artifacts.checksums import check_etag
from standby.artifacts.fetch import FetchOptions, fetch
from standby.artifacts.inspection import inspect
from standby.artifacts.sources import open_source
from standby.domain.errors import ArtifactChanged, DigestMismatch, DiskFull, IncompleteDownload, SourceUnreachable
from standby.domain.model import Manifest, SourceOptions
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.cache_options import CacheOptions
from support.flaky_proxy import Fault, FlakyProxy, flaky_proxy
from support.gguf_builder import gguf
from support.real_model import real_model_path
from support.s3_server import S3Server
from support.small_disk import small_file_system

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONTENT = gguf(rows=180_000)  # 11.5 MB
SMALL_CHUNK = 256 << 10
IMPATIENT = FetchOptions(chunk_bytes=SMALL_CHUNK, backoff=(0.01,))
DEADLINE = 60.0


def ignore(_done: int, _total: int) -> None:
    pass


async def brings_the_rest(cache: ArtifactCache, manifest: Manifest, proxy: FlakyProxy) -> None:
    """The artifact is complete and right, and what had been brought before is not brought again."""
    before = proxy.answered
    assert (await cache.ensure(manifest, ignore) / "model.gguf").read_bytes() == CONTENT
    assert proxy.answered - before < len(CONTENT) * 3 // 4


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


def small_chunks(root: Path) -> ArtifactCache:
    return ArtifactCache(root, 1 << 30, CacheOptions(fetch=IMPATIENT))


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


async def test_archive_goes_on_after_a_cut(s3: S3Server, bucket: str, proxy: FlakyProxy, tmp_path: Path) -> None:
    """A tar.gz as SageMaker packs it: registered, cut in the middle, brought to its end, unpacked without its code."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in (("m7/model.gguf", CONTENT), ("m7/code/inference.py", b"import os")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    await s3.upload(bucket, "model.tar.gz", packed.getvalue())
    manifest = await inspect(f"s3://{bucket}/model.tar.gz", SourceOptions(endpoint_url=proxy.url))
    cache = small_chunks(tmp_path)
    await cache.open()
    proxy.break_after(manifest.total_bytes * 6 // 10, Fault.RESET_ALWAYS)
    with pytest.raises(IncompleteDownload):
        await cache.ensure(manifest, ignore)
    proxy.heal()
    before = proxy.answered
    folder = await cache.ensure(manifest, ignore)
    assert proxy.answered - before < manifest.total_bytes * 3 // 4
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*")] == ["model.gguf"]
    assert (folder / "model.gguf").read_bytes() == CONTENT


async def test_other_bytes_than_the_store_took_in(s3: S3Server, bucket: str) -> None:
    """The ETag of a small upload is its MD5; the store says, asked with a signed HEAD, that it is not encrypted."""
    content = gguf(rows=100)
    await s3.upload(bucket, "small.gguf", content)
    source = open_source(f"s3://{bucket}/small.gguf", s3.options)
    (ref,) = await source.list()
    await check_etag(source, ref, hashlib.md5(content, usedforsecurity=False).hexdigest())
    with pytest.raises(DigestMismatch, match=r"'small.gguf' in bucket .* arrived with MD5 0{32}, the store's own is"):
        await check_etag(source, ref, "0" * 32)


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


async def test_connection_that_stays_cut(manifest: Manifest, proxy: FlakyProxy, tmp_path: Path) -> None:
    """Field case B02: "incomplete download, N of M bytes", nothing partial visible, and a later attempt brings the rest."""
    cache = small_chunks(tmp_path)
    await cache.open()
    proxy.break_after(len(CONTENT) * 6 // 10, Fault.RESET_ALWAYS)
    with pytest.raises(IncompleteDownload, match=rf"incomplete download, \d+ of {len(CONTENT)} bytes.*goes on from there"):
        await cache.ensure(manifest, ignore)
    assert cache.contents() == ()
    assert cache.locate(manifest.digest) is None
    assert not any((tmp_path / "artifacts").iterdir())
    proxy.heal()
    await brings_the_rest(cache, manifest, proxy)
    assert not any((tmp_path / "tmp").iterdir())


async def test_what_was_brought_goes_when_room_is_needed(
    s3: S3Server, bucket: str, manifest: Manifest, proxy: FlakyProxy, tmp_path: Path
) -> None:
    """Half a download must not keep another artifact out."""
    await s3.upload(bucket, "other/model.gguf", gguf(rows=180_000, seed=2))
    other = await inspect(f"s3://{bucket}/other/", s3.options)
    cache = ArtifactCache(tmp_path, len(CONTENT) + 100, CacheOptions(fetch=IMPATIENT))
    await cache.open()
    proxy.break_after(len(CONTENT) * 6 // 10, Fault.RESET_ALWAYS)
    with pytest.raises(IncompleteDownload):
        await cache.ensure(manifest, ignore)
    assert len(list((tmp_path / "tmp").iterdir())) == 1
    await cache.ensure(other, ignore)
    assert not any((tmp_path / "tmp").iterdir())
    proxy.heal()


async def test_cut_within_the_first_chunks(manifest: Manifest, proxy: FlakyProxy, tmp_path: Path) -> None:
    """Bytes came, if no whole chunk: that is an incomplete download, not an unreachable store."""
    proxy.break_after(len(CONTENT) // 4, Fault.RESET_ALWAYS)
    with pytest.raises(IncompleteDownload, match=rf"incomplete download, 0 of {len(CONTENT)} bytes"):
        await fetch(manifest, tmp_path / "out", ignore, options=FetchOptions(backoff=(0.01,)))


async def test_store_that_never_answers(manifest: Manifest, proxy: FlakyProxy, tmp_path: Path) -> None:
    """Not a byte came: the store is unreachable, nothing is incomplete."""
    proxy.break_after(0, Fault.RESET_ALWAYS)
    with pytest.raises(SourceUnreachable, match="check the endpoint URL"):
        await fetch(manifest, tmp_path / "out", ignore, options=IMPATIENT)


async def test_stopped_agent_goes_on_where_it_was(manifest: Manifest, proxy: FlakyProxy, tmp_path: Path) -> None:
    """An orderly end in the middle; the next cache on the same root brings only what is missing."""
    first = small_chunks(tmp_path)
    await first.open()
    proxy.break_after(len(CONTENT) * 6 // 10, Fault.STALL)
    caller = asyncio.create_task(first.ensure(manifest, ignore))
    await asyncio.wait_for(proxy.hit.wait(), DEADLINE)
    await first.close()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not any((tmp_path / "artifacts").iterdir())
    proxy.heal()
    second = small_chunks(tmp_path)
    await second.open()
    await brings_the_rest(second, manifest, proxy)
    assert not any((tmp_path / "tmp").iterdir())


async def test_object_changed_after_an_interrupted_download(
    s3: S3Server, bucket: str, manifest: Manifest, proxy: FlakyProxy, tmp_path: Path
) -> None:
    """What was brought of the old bytes is neither mixed with the new ones nor kept."""
    cache = small_chunks(tmp_path)
    await cache.open()
    proxy.break_after(len(CONTENT) * 6 // 10, Fault.RESET_ALWAYS)
    with pytest.raises(IncompleteDownload):
        await cache.ensure(manifest, ignore)
    proxy.heal()
    await s3.upload(bucket, "m/model.gguf", gguf(rows=180_000, seed=1))
    with pytest.raises(ArtifactChanged):
        await cache.ensure(manifest, ignore)
    assert nothing_partial(tmp_path)


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
    download = asyncio.create_task(fetch(manifest, tmp_path / "out", ignore, options=FetchOptions(chunk_bytes=1 << 20)))
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
    """Field case B02: kill -9 of the process that downloads; the next one checks what is there and brings the rest."""
    proxy.break_after(len(CONTENT) * 6 // 10, Fault.STALL)
    child = await start_child(s3, tmp_path, manifest, "-m", "support.cache_child", chunk_bytes=SMALL_CHUNK)
    await asyncio.wait_for(proxy.hit.wait(), DEADLINE)
    root = tmp_path / "cache"
    assert len(list((root / "tmp").iterdir())) == 1
    assert list((root / "artifacts").iterdir()) == []
    child.send_signal(signal.SIGKILL)
    await child.communicate()
    proxy.heal()
    cache = small_chunks(root)
    await cache.open()
    before = proxy.answered
    assert (await cache.ensure(manifest, ignore) / "model.gguf").read_bytes() == CONTENT
    assert proxy.answered - before < len(CONTENT) * 3 // 4
    assert not any((root / "tmp").iterdir())
    await cache.verify(manifest.digest)


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


async def start_child(
    s3: S3Server, folder: Path, manifest: Manifest, *how: str, chunk_bytes: int | None = None
) -> asyncio.subprocess.Process:
    """Start a process of its own on the cache ``folder/cache``."""
    note = folder / "manifest.json"
    note.write_text(manifest.model_dump_json())
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    return await asyncio.create_subprocess_exec(
        sys.executable, *how, str(folder / "cache"), str(note), *([str(chunk_bytes)] if chunk_bytes else []),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **s3.env()}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
