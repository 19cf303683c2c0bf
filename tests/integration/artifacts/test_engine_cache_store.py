"""Engine caches of several nodes over a real S3 server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import obstore
import pytest

from standby.artifacts.credentials import Credentials
from standby.artifacts.inspection import inspect
from standby.artifacts.s3 import open_store
from standby.domain.errors import EmptySource
from standby.domain.model import SourceOptions
from standby.warm_pool.engine_cache import EngineCache, EngineCacheOptions, Origin
from standby.warm_pool.engine_cache_shelf import BESIDE, Shelf, shelf_for
from support.gguf_builder import gguf
from support.s3_server import S3Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

FIRST = "a" * 64
CONTENT = {"torch/kernel.so": b"\x7fELF" * 300_000, "torch/index.py": b"x = 1\n"}


async def node(folder: Path, secret: bytes = b"secret", **options: float) -> EngineCache:
    options = {"seed_limit_s": 60.0, **options}
    cache = EngineCache(folder, EngineCacheOptions(secret=secret, **options))  # type: ignore[arg-type]  # floats only
    await cache.open()
    return cache


def compile_into(folder: Path, files: dict[str, bytes] = CONTENT) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def captured_by_a(folder: Path, shelf: Shelf) -> None:
    a = await node(folder / "a")
    compile_into((await a.prepare(FIRST, "i1", shelf)).path)
    done = await a.capture(FIRST, shelf)
    assert done.shared, done.note


async def test_captured_on_one_node_and_seeded_on_another(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    shelf = Shelf(f"s3://{bucket}/caches/", s3.options)
    await captured_by_a(tmp_path, shelf)
    b = await node(tmp_path / "b")
    starts = await asyncio.gather(*(b.prepare(FIRST, f"i{number}", shelf) for number in range(4)))
    assert sorted(start.origin for start in starts) == [Origin.LOCAL, Origin.LOCAL, Origin.LOCAL, Origin.STORE]
    assert tree(starts[0].path) == CONTENT


async def test_one_changed_byte_and_another_key_are_refused(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    shelf = Shelf(f"s3://{bucket}/caches/", s3.options)
    await captured_by_a(tmp_path, shelf)
    other = await (await node(tmp_path / "b", b"another secret")).prepare(FIRST, "i1", shelf)
    assert (other.origin, "signature" in other.note) == (Origin.EMPTY, True)
    store, key = open_store(bucket, s3.options), f"caches/{FIRST}.cache1"
    content = bytearray((await obstore.get_async(store, key)).bytes())
    content[len(content) // 2] ^= 1
    await obstore.put_async(store, key, bytes(content))
    c = await node(tmp_path / "c")
    tampered = await c.prepare(FIRST, "i1", shelf)
    assert (tampered.origin, tree(tampered.path)) == (Origin.EMPTY, {})
    assert "signature is not of this deployment's key, or it was changed" in tampered.note
    compile_into(tampered.path)
    assert (await c.capture(FIRST, shelf)).shared
    mended = await (await node(tmp_path / "d")).prepare(FIRST, "i1", shelf)
    assert (mended.origin, tree(mended.path)) == (Origin.STORE, CONTENT)


async def test_a_store_that_refuses_is_said_and_the_start_goes_on(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    shelf = Shelf(f"s3://{bucket}/caches/", s3.options, Credentials("nobody", "wrong"))
    a = await node(tmp_path / "a")
    prepared = await a.prepare(FIRST, "i1", shelf)
    assert (prepared.origin, "HTTP 403" in prepared.note) == (Origin.EMPTY, True)
    # Not asked again at once: a store that is away must not hold up every start.
    assert (await a.prepare(FIRST, "i2", shelf)).note == ""
    compile_into(prepared.path)
    captured = await a.capture(FIRST, shelf)
    assert (captured.shared, "HTTP 403" in captured.note) == (False, True)


async def test_a_silent_store_holds_up_a_start_for_its_limit_only(tmp_path: Path, bucket: str) -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        shelf = Shelf(f"s3://{bucket}/caches/", SourceOptions(endpoint_url=f"http://127.0.0.1:{port}"))
        cache = await node(tmp_path / "a", seed_limit_s=0.2)
        prepared = await cache.prepare(FIRST, "i1", shelf)
        assert (prepared.origin, "took too long" in prepared.note) == (Origin.EMPTY, True)


async def test_beside_a_model_it_is_no_part_of_the_model(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    store = open_store(bucket, s3.options)
    await obstore.put_async(store, "m7/model.gguf", gguf())
    uri = f"s3://{bucket}/m7/"
    before = await inspect(uri, s3.options)
    shelf = shelf_for(BESIDE, before)
    assert shelf is not None
    await captured_by_a(tmp_path, shelf)
    await obstore.put_async(store, "m7/.standby/engine-cache/model.gguf", gguf())
    keys = [meta["path"] async for page in obstore.list(store, "m7") for meta in page]
    assert f"m7/.standby/engine-cache/{FIRST}.cache1" in keys
    after = await inspect(uri, s3.options)
    assert after == before
    await obstore.delete_async(store, "m7/model.gguf")
    with pytest.raises(EmptySource):
        await inspect(uri, s3.options)
