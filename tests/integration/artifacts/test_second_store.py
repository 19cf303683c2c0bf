"""A second opinion on what S3 is: a part of the matrix against Ceph's radosgw instead of SeaweedFS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from standby.artifacts.credentials import Credentials
from standby.artifacts.fetch import FetchOptions
from standby.artifacts.inspection import inspect
from standby.domain.errors import (
    ArtifactChanged,
    EmptySource,
    IncompleteDownload,
    SourceUnreachable,
    StandbyError,
    UnsupportedArtifact,
)
from standby.domain.model import Manifest, ModelFormat
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.cache_options import CacheOptions
from support.archive_builder import tar_gz, wrapped
from support.ceph_server import INSTALL, CephServer, ceph_server, missing_programs
from support.flaky_proxy import Fault, flaky_proxy
from support.gguf_builder import gguf
from support.s3_server import put_raw
from support.safetensors_builder import model

pytestmark = [
    pytest.mark.ceph,
    pytest.mark.drill,
    pytest.mark.skipif(bool(missing_programs()), reason=f"Ceph is not installed; as root: {INSTALL}"),
    pytest.mark.asyncio(loop_scope="session"),
]

Files = Mapping[str, bytes]

LARGE = gguf(rows=180_000)  # 11.5 MB: uploaded in parts
ONE = {"model.gguf": gguf()}
SHARDS = model(shards=3)
NEIGHBOURS = {"m7-instruct/model.gguf": gguf(seed=1), "m7.gguf": gguf(seed=2)}

TAKEN: Mapping[str, tuple[Files, str, ModelFormat, Files]] = {
    "prefix": (wrapped("team/m7", ONE), "team/m7/", ModelFormat.GGUF, ONE),
    "prefix without slash, beside its neighbours": ({**wrapped("m7", ONE), **NEIGHBOURS}, "m7", ModelFormat.GGUF, ONE),
    "single object": ({"team/model.gguf": gguf(), "team/b.gguf": gguf(seed=1)}, "team/model.gguf", ModelFormat.GGUF, ONE),
    "object in parts": ({"model.gguf": LARGE}, "model.gguf", ModelFormat.GGUF, {"model.gguf": LARGE}),
    "shards": (wrapped("m", SHARDS), "m/", ModelFormat.SAFETENSORS, SHARDS),
    "tar.gz": ({"m/model.tar.gz": tar_gz(wrapped("m7", SHARDS))}, "m/model.tar.gz", ModelFormat.SAFETENSORS, SHARDS),
    "key with a space and an umlaut": (wrapped("ä b", ONE), "ä b/", ModelFormat.GGUF, ONE),
    "key with signs of URLs": (wrapped("a+b%20?c=d#e", ONE), "a+b%20?c=d#e/", ModelFormat.GGUF, ONE),
}
REFUSED: Mapping[str, tuple[Files, str, type[StandbyError], str]] = {
    "missing prefix": (wrapped("team/m7", ONE), "team/typo/", EmptySource, "'team/typo/'.*0 objects"),
    "only the neighbours are there": (NEIGHBOURS, "m7", EmptySource, "0 objects"),
    "object with a slash": ({"model.gguf": gguf()}, "model.gguf/", EmptySource, "0 objects"),
    "empty object": ({"m/model.gguf": b""}, "m/", EmptySource, "1 objects, every one of 0 bytes"),
    "missing shard": (
        {f"m/{path}": body for path, body in SHARDS.items() if "00002-of" not in path}, "m/", UnsupportedArtifact,
        "model-00002-of-00003.safetensors",
    ),
    "truncated": ({"m/model.gguf": gguf()[:-1]}, "m/", UnsupportedArtifact, "truncated GGUF"),
    "pickle": ({"m/pytorch_model.bin": b"x", "m/config.json": b"{}"}, "m/", UnsupportedArtifact, "runs whatever code"),
}  # fmt: skip


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def s3(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CephServer]:
    """Ceph where the other tests of this folder have SeaweedFS; ``bucket`` then lies in it."""
    async with ceph_server(tmp_path_factory.mktemp("second-store")) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def cache(tmp_path: Path) -> AsyncIterator[ArtifactCache]:
    options = CacheOptions(fetch=FetchOptions(chunk_bytes=256 << 10, backoff=(0.01,)))
    opened = ArtifactCache(tmp_path / "cache", 1 << 30, options)
    await opened.open()
    yield opened
    await opened.close()


async def put(s3: CephServer, bucket: str, objects: Files) -> None:
    for key, content in objects.items():
        await s3.upload(bucket, key, content)


async def brought(cache: ArtifactCache, manifest: Manifest) -> dict[str, bytes]:
    folder = await cache.ensure(manifest, lambda _done, _total: None)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", TAKEN)
async def test_model_is_registered_and_brought(s3: CephServer, bucket: str, cache: ArtifactCache, case: str) -> None:
    objects, where, form, files = TAKEN[case]
    await put(s3, bucket, objects)
    manifest = await inspect(f"s3://{bucket}/{where}", s3.options)
    assert manifest.format is form
    assert all(ref.etag for ref in manifest.objects)
    assert await brought(cache, manifest) == files
    assert manifest == await inspect(f"s3://{bucket}/{where}", s3.options), "the same bytes are the same version"


@pytest.mark.parametrize("case", REFUSED)
async def test_refusal_names_what_is_wrong(s3: CephServer, bucket: str, case: str) -> None:
    objects, where, kind, says = REFUSED[case]
    await put(s3, bucket, objects)
    with pytest.raises(kind, match=says) as caught:
        await inspect(f"s3://{bucket}/{where}", s3.options)
    assert "Debug source" not in str(caught.value), "the store library's own text reached the user"


async def test_folder_markers_are_skipped(s3: CephServer, bucket: str, cache: ArtifactCache) -> None:
    await put(s3, bucket, wrapped("m", SHARDS))
    await put_raw(s3, bucket, "m/")
    await put_raw(s3, bucket, "m/model.safetensors.index.json/")
    assert await brought(cache, await inspect(f"s3://{bucket}/m/", s3.options)) == SHARDS


async def test_listing_of_several_pages(s3: CephServer, bucket: str) -> None:
    """One answer holds at most 1000 keys; the model's own comes after them."""
    gate = asyncio.Semaphore(32)

    async def note(number: int) -> None:
        async with gate:
            await s3.upload(bucket, f"m/a{number:04}.txt", b"x")

    await asyncio.gather(*(note(number) for number in range(1000)))
    await put(s3, bucket, wrapped("m", ONE))
    manifest = await inspect(f"s3://{bucket}/m/", s3.options)
    assert [member.path for member in manifest.files] == ["model.gguf"]


async def test_changed_object(s3: CephServer, bucket: str, cache: ArtifactCache) -> None:
    """Field case B04: the same key overwritten with as many other bytes."""
    await put(s3, bucket, {"m/model.gguf": LARGE})
    manifest = await inspect(f"s3://{bucket}/m/", s3.options)
    await put(s3, bucket, {"m/model.gguf": gguf(rows=180_000, seed=1)})
    with pytest.raises(ArtifactChanged, match=r"artifact changed since it was registered.*register again"):
        await brought(cache, manifest)
    assert cache.contents() == ()


async def test_removed_object(s3: CephServer, bucket: str, cache: ArtifactCache) -> None:
    await put(s3, bucket, wrapped("m", ONE))
    manifest = await inspect(f"s3://{bucket}/m/", s3.options)
    await s3.delete(bucket, "m/model.gguf")
    with pytest.raises(ArtifactChanged, match="it is gone"):
        await brought(cache, manifest)


async def test_registered_version_is_brought(s3: CephServer, bucket: str, cache: ArtifactCache) -> None:
    """In a bucket that keeps versions, another upload or a deletion takes nothing from who registered before."""
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    await put_raw(s3, bucket, "", body, setting="versioning")
    await put(s3, bucket, wrapped("m", ONE))
    first = await inspect(f"s3://{bucket}/m/", s3.options)
    await put(s3, bucket, {"m/model.gguf": gguf(seed=1)})
    second = await inspect(f"s3://{bucket}/m/", s3.options)
    await s3.delete(bucket, "m/model.gguf")
    assert first.objects[0].version_id
    assert first.objects[0].version_id != second.objects[0].version_id
    assert await brought(cache, first) == ONE
    assert await brought(cache, second) == {"model.gguf": gguf(seed=1)}


async def test_connection_is_cut(s3: CephServer, bucket: str, cache: ArtifactCache) -> None:
    """Field case B02: once is mended unseen; for ever is an incomplete download, which goes on where it was."""
    await put(s3, bucket, {"m/model.gguf": LARGE, "n/model.gguf": gguf(rows=180_000, seed=1)})
    async with flaky_proxy(s3.url) as proxy:
        options = s3.options.model_copy(update={"endpoint_url": proxy.url})
        other, manifest = [await inspect(f"s3://{bucket}/{name}/", options) for name in ("n", "m")]
        proxy.break_after(len(LARGE) * 6 // 10, Fault.RESET_ONCE)
        assert await brought(cache, other) == {"model.gguf": gguf(rows=180_000, seed=1)}
        assert proxy.resets == 1
        proxy.break_after(len(LARGE) * 6 // 10, Fault.RESET_ALWAYS)
        with pytest.raises(IncompleteDownload, match=rf"incomplete download, \d+ of {len(LARGE)} bytes.*goes on from there"):
            await brought(cache, manifest)
        assert cache.locate(manifest.digest) is None
        proxy.heal()
        before = proxy.answered
        assert await brought(cache, manifest) == {"model.gguf": LARGE}
        assert proxy.answered - before < len(LARGE) * 3 // 4


@pytest.mark.parametrize("known", [True, False])
async def test_wrong_keys(s3: CephServer, bucket: str, known: bool) -> None:
    await put(s3, bucket, wrapped("m", ONE))
    keys = Credentials(s3.access_key if known else "nobody", "wrong-secret")
    with pytest.raises(SourceUnreachable, match=r"HTTP 403 \w+; check the stored keys") as caught:
        await inspect(f"s3://{bucket}/m/", s3.options, credentials=keys)
    assert "wrong-secret" not in str(caught.value)


async def test_anonymous_where_nobody_may(s3: CephServer, bucket: str) -> None:
    with pytest.raises(SourceUnreachable, match="check that the bucket is public"):
        await inspect(f"s3://{bucket}/m/", s3.options.model_copy(update={"anonymous": True}))


async def test_missing_bucket(s3: CephServer, bucket: str) -> None:
    with pytest.raises(SourceUnreachable, match=r"'no-such-bucket'.*HTTP 404 NoSuchBucket.*check the bucket's name"):
        await inspect("s3://no-such-bucket/m/", s3.options)


async def test_server_is_private_and_leaves_nothing(tmp_path: Path) -> None:
    """All that it listens on is loopback, and no process of it stays."""
    async with ceph_server(tmp_path, "some-bucket") as server:
        children = [psutil.Process(pid) for pid in server.pids]
        listening = [each.laddr for child in children for each in child.net_connections() if each.status == psutil.CONN_LISTEN]
        assert len(children) == 3
        assert {address.ip for address in listening} == {"127.0.0.1"}
    assert not [child for child in children if child.is_running()]
