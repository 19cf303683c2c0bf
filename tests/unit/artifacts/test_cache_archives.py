"""Archives in the cache: fetched, unpacked, and then as any other artifact; the tar itself is not kept."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from standby.artifacts.sources import open_source
from standby.domain.errors import ArtifactChanged, DiskFull
from standby.domain.model import Archive, Compression, Manifest, Member, ModelFormat, SourceOptions
from standby.warm_pool.cache import ArtifactCache
from support.small_disk import small_file_system

FILES = {"config.json": b"{}", "sub/model.safetensors": bytes(range(256)) * 40_000}
UNPACKED = sum(map(len, FILES.values()))


def ignore(_done: int, _total: int) -> None:
    pass


async def registered(folder: Path, *, gz: bool = True) -> Manifest:
    folder.mkdir(exist_ok=True)
    path = folder / "model.tar.gz"
    with tarfile.open(path, "w:gz" if gz else "w") as tar:
        for name, content in FILES.items():
            member = tarfile.TarInfo(f"m7/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    members = tuple(Member(path=name, size=len(content)) for name, content in FILES.items())
    uri = f"file://{path}"
    return Manifest(
        source_uri=uri,
        format=ModelFormat.SAFETENSORS,
        objects=tuple(await open_source(uri, SourceOptions()).list()),
        archive=Archive(compression=Compression.GZIP if gz else Compression.NONE, members=members, wrapper="m7"),
    )


async def opened(root: Path, capacity: int = 1 << 30) -> ArtifactCache:
    cache = ArtifactCache(root, capacity)
    await cache.open()
    return cache


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_members_lie_in_the_cache_and_the_archive_does_not(tmp_path: Path) -> None:
    manifest = await registered(tmp_path / "source")
    cache = await opened(tmp_path / "cache")
    seen: list[tuple[int, int]] = []
    told: list[tuple[str, bytes]] = []
    folder = await cache.ensure(
        manifest, lambda done, total: seen.append((done, total)), lambda path: told.append((path.name, path.read_bytes()))
    )
    assert tree(folder) == FILES
    assert sorted(path.name for path in folder.parent.iterdir()) == ["files", "manifest.json"]
    assert told == [("config.json", FILES["config.json"]), ("model.safetensors", FILES["sub/model.safetensors"])]
    assert seen[-1] == (manifest.total_bytes + UNPACKED,) * 2
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert cache.used_bytes == UNPACKED
    assert cache.sha256(manifest.digest) == {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    again = await opened(tmp_path / "cache")
    await again.verify(manifest.digest)
    described = again.describe(manifest.digest)
    assert (described.files, described.source_uri, described.bytes) == (2, manifest.source_uri, UNPACKED)


async def test_archive_that_is_not_what_was_registered(tmp_path: Path) -> None:
    manifest = await registered(tmp_path / "source")
    assert manifest.archive is not None
    members = (*manifest.archive.members, Member(path="merges.txt", size=1))
    more = manifest.model_copy(update={"archive": manifest.archive.model_copy(update={"members": members})})
    cache = await opened(tmp_path / "cache")
    with pytest.raises(ArtifactChanged, match=r"'merges.txt' was registered and is not in it"):
        await cache.ensure(more, ignore)
    assert tree(tmp_path / "cache" / "tmp") == tree(tmp_path / "cache" / "artifacts") == {}


async def test_the_disk_needs_room_for_both_and_the_cap_for_the_members(tmp_path: Path) -> None:
    manifest = await registered(tmp_path / "source", gz=False)
    assert (await (await opened(tmp_path / "cache", UNPACKED)).ensure(manifest, ignore)).is_dir()
    with small_file_system(tmp_path / "small", "32m") as root:  # 16 MiB of it stay free
        cache = await opened(root)
        with pytest.raises(DiskFull, match="bytes free on the disk"):
            await cache.ensure(manifest, ignore)
        assert tree(root / "tmp") == tree(root / "artifacts") == {}
        assert cache.contents() == ()
