"""Engine caches of nodes that share one place: seeded, captured, refused, set aside; a shared folder stands for the store."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from standby.domain.errors import InvalidInput
from standby.domain.model import ObjectRef, SourceOptions
from standby.warm_pool import engine_cache
from standby.warm_pool.engine_cache import EngineCache, EngineCacheOptions, Origin
from standby.warm_pool.engine_cache_shelf import BESIDE, Shelf, bring, check_setting, shelf_for
from support.builders import a_manifest

FIRST, SECOND, THIRD = "a" * 64, "b" * 64, "c" * 64
CONTENT = {"torch/kernel.so": b"\x7fELF" * 300, "torch/index.py": b"x = 1\n"}


class Nodes:
    """Nodes by name, each with its own disk, and the one shelf."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1000.0
        self.shelf = Shelf(f"file://{folder}/store/")

    async def node(self, name: str, *, secret: bytes | None = b"secret", cap: int = 1 << 20) -> EngineCache:
        cache = EngineCache(self.folder / name, EngineCacheOptions(cap, secret, "9.9", wall=self.wall, monotonic=self.wall))
        await cache.open()
        return cache

    def wall(self) -> float:
        self.now += 1.0
        return self.now

    @property
    def packed(self) -> Path:
        return self.folder / "store" / f"{FIRST}.cache1"


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def compile_into(folder: Path, files: dict[str, bytes] | None = None) -> None:
    for name, content in (CONTENT if files is None else files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def compiled(
    cache: EngineCache, shelf: Shelf | None, name: str = FIRST, *, files: dict[str, bytes] | None = None
) -> None:
    """A first good start."""
    prepared = await cache.prepare(name, "i1", shelf)
    compile_into(prepared.path, files)
    assert await cache.validated(name, "i1", ok=True) == ""
    await cache.capture(name, shelf)
    await cache.release(name, "i1")


async def test_one_node_compiles_and_another_starts_from_it(nodes: Nodes) -> None:
    a, b = await nodes.node("a"), await nodes.node("b")
    assert (await a.prepare(FIRST, "i1", nodes.shelf)).origin is Origin.EMPTY
    compile_into((await a.prepare(FIRST, "i1", nodes.shelf)).path)
    captured = await a.capture(FIRST, nodes.shelf)
    assert (captured.files, captured.changed, captured.shared, captured.note) == (2, True, True, "")
    seeded = await b.prepare(FIRST, "i7", nodes.shelf)
    assert (seeded.origin, seeded.note, seeded.bytes) == (Origin.STORE, "", sum(map(len, CONTENT.values())))
    assert tree(seeded.path) == CONTENT
    again = await b.capture(FIRST, nodes.shelf)
    assert (again.changed, again.shared) == (False, True)
    assert (await b.prepare(FIRST, "i8", nodes.shelf)).origin is Origin.LOCAL
    assert list((nodes.folder / "b" / "tmp").iterdir()) == []


async def test_nothing_of_one_fingerprint_reaches_another(nodes: Nodes) -> None:
    a, b = await nodes.node("a"), await nodes.node("b")
    await compiled(a, nodes.shelf)
    nodes.packed.rename(nodes.packed.with_name(f"{SECOND}.cache1"))
    seeded = await b.prepare(SECOND, "i1", nodes.shelf)
    assert seeded.origin is Origin.EMPTY
    assert "it is of fingerprint aaaaaaaaaaaa, and bbbbbbbbbbbb was asked for" in seeded.note
    assert tree(seeded.path) == {}
    assert b.refusals(SECOND) == ("it is of fingerprint aaaaaaaaaaaa, and bbbbbbbbbbbb was asked for",)


async def test_without_a_key_nothing_leaves_and_nothing_comes(nodes: Nodes) -> None:
    await compiled(await nodes.node("a"), nodes.shelf)
    assert (await (await nodes.node("b", secret=None)).prepare(FIRST, "i1", nodes.shelf)).origin is Origin.EMPTY
    nodes.packed.unlink()
    local = await nodes.node("c", secret=None)
    await compiled(local, nodes.shelf)
    assert not nodes.packed.exists()
    assert (await local.prepare(FIRST, "i2", nodes.shelf)).origin is Origin.LOCAL


async def test_what_another_key_signed_is_refused_and_replaced_after_a_good_start(nodes: Nodes) -> None:
    await compiled(await nodes.node("x", secret=b"another deployment"), nodes.shelf, files={"evil.so": b"boo"})
    a = await nodes.node("a")
    prepared = await a.prepare(FIRST, "i1", nodes.shelf)
    assert prepared.origin is Origin.EMPTY
    assert "signature is not of this deployment's key" in prepared.note
    compile_into(prepared.path)
    assert (await a.capture(FIRST, nodes.shelf)).shared
    b = await (await nodes.node("b")).prepare(FIRST, "i1", nodes.shelf)
    assert (b.origin, tree(b.path)) == (Origin.STORE, CONTENT)


async def test_the_first_good_one_stays_and_one_with_more_in_it_replaces_it(nodes: Nodes) -> None:
    a, b = await nodes.node("a"), await nodes.node("b")
    empty = await b.prepare(FIRST, "i1", nodes.shelf)
    await compiled(a, nodes.shelf)
    before = nodes.packed.read_bytes()
    compile_into(empty.path, {**CONTENT, "torch/index.py": b"x = 2\n"})
    assert (await b.capture(FIRST, nodes.shelf)).shared
    assert nodes.packed.read_bytes() == before
    compile_into(empty.path, {"torch/second.so": bytes(5000)})
    assert (await b.capture(FIRST, nodes.shelf)).shared
    assert nodes.packed.stat().st_size > len(before)


async def test_any_number_of_starts_at_once_bring_it_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    await compiled(await nodes.node("a"), nodes.shelf)
    b, times = await nodes.node("b"), 0
    real = bring

    async def counted(shelf: Shelf, fingerprint: str, into: Path, cap_bytes: int) -> bool:
        nonlocal times
        times += 1
        return await real(shelf, fingerprint, into, cap_bytes)

    monkeypatch.setattr(engine_cache, "bring", counted)
    prepared = await asyncio.gather(*(b.prepare(FIRST, f"i{number}", nodes.shelf) for number in range(8)))
    assert times == 1
    assert sorted(one.origin for one in prepared) == [*[Origin.LOCAL] * 7, Origin.STORE]
    assert {one.path for one in prepared} == {prepared[0].path}


async def test_a_cache_that_breaks_starts_is_set_aside_and_never_used_again(nodes: Nodes) -> None:
    await compiled(await nodes.node("a"), nodes.shelf)
    b = await nodes.node("b")
    assert (await b.prepare(FIRST, "i1", nodes.shelf)).origin is Origin.STORE
    assert "set aside" in await b.validated(FIRST, "i1", ok=False)
    without = await b.prepare(FIRST, "i2", nodes.shelf)
    assert (without.origin, tree(without.path)) == (Origin.EMPTY, {})
    compile_into(without.path, {"good.so": b"good"})
    assert "never used again" in await b.validated(FIRST, "i2", ok=True)
    # What this node knows to be bad is replaced for the others, and not brought back here.
    assert (await b.capture(FIRST, nodes.shelf)).shared
    third = await (await nodes.node("c")).prepare(FIRST, "i1", nodes.shelf)
    assert tree(third.path) == {"good.so": b"good"}


async def test_a_convicted_cache_is_not_brought_back(nodes: Nodes) -> None:
    await compiled(await nodes.node("a"), nodes.shelf)
    b = await nodes.node("b")
    await b.prepare(FIRST, "i1", nodes.shelf)
    await b.validated(FIRST, "i1", ok=False)
    await b.prepare(FIRST, "i2", nodes.shelf)
    await b.validated(FIRST, "i2", ok=True)
    await b.release(FIRST, "i2")
    b = await nodes.node("b")
    again = await b.prepare(FIRST, "i3", nodes.shelf)
    assert again.origin is Origin.EMPTY
    assert "a start with it failed, and one without it succeeded" in again.note


async def test_a_cache_is_innocent_when_a_start_without_it_fails_too(nodes: Nodes) -> None:
    b = await nodes.node("b")
    await compiled(b, nodes.shelf)
    for _ in range(2):
        assert (await b.prepare(FIRST, "i1", nodes.shelf)).origin is Origin.LOCAL
        await b.validated(FIRST, "i1", ok=False)
        without = await b.prepare(FIRST, "i1", nodes.shelf)
        compile_into(without.path, {"half": b"done"})
        assert "failed as well" in await b.validated(FIRST, "i1", ok=False)
    assert tree((await b.prepare(FIRST, "i1", nodes.shelf)).path) == CONTENT


async def test_what_another_instance_uses_is_not_set_aside(nodes: Nodes) -> None:
    a = await nodes.node("a")
    await compiled(a, None)
    await a.prepare(FIRST, "running")
    await a.prepare(FIRST, "failing")
    assert await a.validated(FIRST, "failing", ok=False) == ""
    assert (await a.prepare(FIRST, "next")).origin is Origin.LOCAL


async def test_a_suspicion_survives_a_restart_of_the_node(nodes: Nodes) -> None:
    a = await nodes.node("a")
    await compiled(a, None)
    await a.prepare(FIRST, "i1")
    await a.validated(FIRST, "i1", ok=False)
    a = await nodes.node("a")
    assert (await a.prepare(FIRST, "i2")).origin is Origin.EMPTY
    await a.validated(FIRST, "i2", ok=False)
    assert (await a.prepare(FIRST, "i3")).origin is Origin.LOCAL


async def test_what_a_cut_short_start_left_is_used_once_more(nodes: Nodes) -> None:
    a = await nodes.node("a")
    compile_into((await a.prepare(FIRST, "i1")).path, {"half.so": b"1"})
    await a.validated(FIRST, "i1", ok=False)
    assert (await a.prepare(FIRST, "i2")).origin is Origin.LOCAL
    assert "set aside" in await a.validated(FIRST, "i2", ok=False)
    assert (await a.prepare(FIRST, "i3")).origin is Origin.EMPTY


async def test_damage_on_the_disk_is_noticed_after_a_restart_and_mended_from_the_store(nodes: Nodes) -> None:
    await compiled(await nodes.node("a"), nodes.shelf)
    torn = nodes.folder / "a" / FIRST / "files" / "torch" / "kernel.so"
    state = torn.stat()
    torn.write_bytes(bytes(state.st_size))
    os.utime(torn, ns=(state.st_atime_ns, state.st_mtime_ns))
    prepared = await (await nodes.node("a")).prepare(FIRST, "i1", nodes.shelf)
    assert (prepared.origin, tree(prepared.path)) == (Origin.STORE, CONTENT)
    assert "kernel.so is not what it was" in prepared.note


async def test_what_the_engine_wrote_anew_is_no_damage(nodes: Nodes) -> None:
    await compiled(await nodes.node("a"), None)
    rewritten = nodes.folder / "a" / FIRST / "files" / "torch" / "index.py"
    rewritten.write_bytes(b"x = 3\n")
    os.utime(rewritten, (5, 5))
    (nodes.folder / "a" / FIRST / "files" / "torch" / "kernel.so").unlink()
    prepared = await (await nodes.node("a")).prepare(FIRST, "i1")
    assert (prepared.origin, prepared.note) == (Origin.LOCAL, "")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"])
async def test_a_damaged_note_is_a_cache_that_is_not_used(nodes: Nodes, content: bytes) -> None:
    await compiled(await nodes.node("a"), None)
    (nodes.folder / "a" / FIRST / "state.json").write_bytes(content)
    prepared = await (await nodes.node("a")).prepare(FIRST, "i1")
    assert (prepared.origin, tree(prepared.path)) == (Origin.EMPTY, {})
    assert "state.json is damaged" in prepared.note


async def test_a_folder_under_another_fingerprint_s_name_is_not_used(nodes: Nodes) -> None:
    await compiled(await nodes.node("a"), None)
    (nodes.folder / "a" / FIRST).rename(nodes.folder / "a" / SECOND)
    prepared = await (await nodes.node("a")).prepare(SECOND, "i1")
    assert prepared.origin is Origin.EMPTY
    assert "it is of fingerprint aaaaaaaaaaaa" in prepared.note


async def test_those_used_longest_ago_go_and_those_in_use_stay(nodes: Nodes) -> None:
    a = await nodes.node("a", cap=50_000)
    await a.prepare(FIRST, "keeps")
    for name in (FIRST, SECOND, THIRD):
        await compiled(a, None, name, files={"big.so": bytes(15_000)})
    await a.release(THIRD, "nobody")
    left = {path.name for path in (nodes.folder / "a").iterdir() if len(path.name) == 64}
    assert left == {FIRST, THIRD}
    assert (await a.prepare(SECOND, "i1")).origin is Origin.EMPTY


async def test_more_than_the_cap_is_neither_sent_nor_brought(nodes: Nodes) -> None:
    a = await nodes.node("a", cap=10_000)
    prepared = await a.prepare(FIRST, "i1", nodes.shelf)
    compile_into(prepared.path, {"big.so": bytes(20_000)})
    captured = await a.capture(FIRST, nodes.shelf)
    assert (captured.shared, "more than the cap of 10000" in captured.note) == (False, True)
    await compiled(await nodes.node("b"), nodes.shelf, files={"big.so": bytes(20_000)})
    seeded = await (await nodes.node("c", cap=10_000)).prepare(FIRST, "i1", nodes.shelf)
    assert seeded.origin is Origin.EMPTY
    assert "the cap is 10000" in seeded.note or "cap of 10000" in seeded.note


async def test_a_place_that_cannot_be_written_is_said_once_and_stops_nothing(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    (nodes.folder / "store").write_text("a file where the folder should be")
    a = await nodes.node("a")
    compile_into((await a.prepare(FIRST, "i1", None)).path)
    with caplog.at_level(logging.WARNING):
        notes = [(await a.capture(FIRST, nodes.shelf)).note for _ in range(3)]
    assert all("cannot be written" in note for note in notes)
    assert sum("was not shared" in record.message for record in caplog.records) == 1
    (nodes.folder / "store").unlink()
    assert (await a.capture(FIRST, nodes.shelf)).shared, "a sending that failed is tried again at the next start"


async def test_an_empty_cache_is_nothing_to_capture(nodes: Nodes) -> None:
    a = await nodes.node("a")
    await a.prepare(FIRST, "i1", nodes.shelf)
    assert not (await a.capture(FIRST, nodes.shelf)).shared
    assert not nodes.packed.exists()


async def test_half_done_work_of_an_earlier_process_goes(nodes: Nodes) -> None:
    await nodes.node("a")
    (nodes.folder / "a" / "tmp" / "left").mkdir()
    await nodes.node("a")
    assert list((nodes.folder / "a" / "tmp").iterdir()) == []


@pytest.mark.decision
@pytest.mark.parametrize(
    ("uri", "key", "folder"),
    [
        ("s3://bkt/m/", "m/model.gguf", "s3://bkt/m/"),
        ("s3://bkt/m", "m/model.gguf", "s3://bkt/m/"),
        ("s3://bkt/m/model.gguf", "m/model.gguf", "s3://bkt/m/"),
        ("s3://bkt/model.tar.gz", "model.tar.gz", "s3://bkt/"),
        ("file:///models/m", "/models/m/model.gguf", "file:///models/m/"),
        ("file:///models/m/model.gguf", "/models/m/model.gguf", "file:///models/m/"),
    ],
)
def test_beside_is_the_folder_of_the_model(uri: str, key: str, folder: str) -> None:
    options = SourceOptions(endpoint_url="http://127.0.0.1:1", region="eu-central-1")
    objects = (ObjectRef(key=key, path="model.gguf", size=1),)
    shelf = shelf_for(BESIDE, a_manifest(source_uri=uri, objects=objects, source=options))
    assert shelf == Shelf(f"{folder}.standby/engine-cache/", options)


@pytest.mark.decision
def test_an_operator_s_place_has_nothing_of_the_model_s() -> None:
    manifest = a_manifest(source=SourceOptions(credentials="tenants-own"))
    assert shelf_for("s3://ops/caches", manifest) == Shelf("s3://ops/caches/")
    assert shelf_for(None, manifest) is None
    assert shelf_for("", manifest) is None


@pytest.mark.decision
@pytest.mark.parametrize("setting", ["s3://UPPER/x", "http://host/x", "caches", "file://relative", "s3://bucket/x?versionId=1"])
def test_a_setting_that_is_no_place_is_named(setting: str) -> None:
    with pytest.raises(InvalidInput):
        check_setting(setting)


@pytest.mark.decision
@pytest.mark.parametrize("setting", ["beside", "s3://bucket/prefix/", "s3://bucket", "file:///srv/caches"])
def test_a_setting_that_is_a_place_is_taken(setting: str) -> None:
    assert check_setting(setting) == setting
