"""A process that is killed at any moment leaves a cache that opens whole, with every pin that it had acknowledged."""

from __future__ import annotations

import asyncio
import io
import os
import random
import sys
import tarfile
from pathlib import Path

from pydantic import TypeAdapter

from standby.artifacts.journal import read_journal
from standby.artifacts.sources import open_source
from standby.domain.model import Archive, Compression, Manifest, Member, ModelFormat, SourceOptions
from standby.warm_pool.cache import ArtifactCache
from support.cache_crasher import CAPACITY, OPTIONS, ignore

KILLS = 20
LONGEST_S = 0.25
DEADLINE = 60.0
SIZE = 400_000


async def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Twenty times kill -9 among downloads, unpacking, pins and evictions; the same cache goes on after each."""
    manifests = [await folder(tmp_path, name) for name in "abc"] + [await archive(tmp_path, name) for name in "de"]
    note = tmp_path / "manifests.json"
    note.write_bytes(TypeAdapter(list[Manifest]).dump_json(manifests))
    chance, pinned, root = random.Random(7), set[str](), tmp_path / "cache"
    met: set[str] = set()
    for seed in range(KILLS):
        said = await run_and_kill(root, note, seed, chance.uniform(0, LONGEST_S))
        pinned = settled(pinned, said)
        met |= {entry.name.partition("-")[0] for entry in (root / "tmp").iterdir()}
        await check(root, pinned)
    assert met, "at least one kill fell into the middle of something"
    cache = ArtifactCache(root, CAPACITY, OPTIONS)
    await cache.open()
    for digest in [item.digest for item in cache.contents()]:
        await cache.let_go(digest)
    for manifest in manifests:
        await cache.ensure(manifest, ignore)
        await cache.verify(manifest.digest)


def settled(pinned: set[str], said: list[str]) -> set[str]:
    """Return what must be pinned: acknowledged, and no removal has begun since."""
    for line in said:
        what, _, digest = line.partition(" ")
        if what == "pinned":
            pinned = pinned | {digest}
        elif what == "unpinning":
            pinned = pinned - {digest}
    return pinned


async def check(root: Path, pinned: set[str]) -> None:
    cache = ArtifactCache(root, CAPACITY, OPTIONS)
    await cache.open()
    assert cache.used_bytes <= CAPACITY
    assert cache.statistics().quarantined == 0, "nothing half-made ever lies under a final name"
    contents = {item.digest: item for item in cache.contents()}
    assert {entry.name for entry in (root / "artifacts").iterdir()} == contents.keys()
    assert all(contents[digest].pinned_by == "ops" for digest in pinned)
    for digest in contents:
        await cache.verify(digest)
    for entry in (root / "tmp").iterdir():
        told = read_journal(entry / "journal")
        assert told is not None, "only what a later download can use is kept"


async def run_and_kill(root: Path, note: Path, seed: int, after_s: float) -> list[str]:
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.cache_crasher", str(root), str(note), str(seed),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    try:
        ready = await asyncio.wait_for(child.stdout.readline(), DEADLINE)
        # The moment of the kill is the random input of this test.
        await asyncio.sleep(after_s)
    finally:
        child.kill()
    rest, _ = await child.communicate()
    assert ready == b"ready\n"
    lines = rest.decode().split("\n")
    return lines[:-1]


async def folder(tmp_path: Path, name: str) -> Manifest:
    (tmp_path / name).mkdir()
    (tmp_path / name / "model.gguf").write_bytes(random.Random(name).randbytes(SIZE))
    return await registered(f"file://{tmp_path}/{name}", None)


async def archive(tmp_path: Path, name: str) -> Manifest:
    (tmp_path / name).mkdir()
    path = tmp_path / name / "model.tar.gz"
    members = (Member(path="config.json", size=2000), Member(path="model.safetensors", size=SIZE))
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            header = tarfile.TarInfo(member.path)
            header.size = member.size
            tar.addfile(header, io.BytesIO(random.Random(name).randbytes(member.size)))
    return await registered(f"file://{path}", Archive(compression=Compression.GZIP, members=members))


async def registered(uri: str, unpacked: Archive | None) -> Manifest:
    objects = tuple(await open_source(uri, SourceOptions()).list())
    return Manifest(source_uri=uri, format=ModelFormat.SAFETENSORS, objects=objects, archive=unpacked)
