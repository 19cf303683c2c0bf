"""Downloads from a folder: what can go wrong on the disk, without any server."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from standby.artifacts import volume
from standby.artifacts.fetch import FetchOptions, fetch
from standby.artifacts.inspection import inspect
from standby.domain.errors import (
    ArtifactChanged,
    DiskFull,
    EmptySource,
    IncompleteDownload,
    SourceUnreachable,
    UnsupportedArtifact,
)
from standby.domain.model import Manifest, ModelFormat, ObjectRef, SourceOptions
from support.gguf_builder import gguf

OPTIONS = SourceOptions()


def ignore(_done: int, _total: int) -> None:
    pass


def manifest_of(source: Path, *paths: str) -> Manifest:
    """A manifest made by hand, as a hostile or broken registration would make it."""
    objects = tuple(ObjectRef(key=str(source / "x"), path=path, size=4) for path in paths)
    return Manifest(source_uri=f"file://{source}", format=ModelFormat.GGUF, objects=objects)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "model.gguf").write_bytes(gguf(rows=5000))
    return folder


async def test_bytes_hash_and_progress(source: Path, tmp_path: Path) -> None:
    manifest = await inspect(f"file://{source}", OPTIONS)
    seen: list[tuple[int, int]] = []
    options = FetchOptions(chunk_bytes=65536)
    sha256 = await fetch(manifest, tmp_path / "out", lambda done, total: seen.append((done, total)), options=options)
    content = (source / "model.gguf").read_bytes()
    assert (tmp_path / "out" / "model.gguf").read_bytes() == content
    assert sha256 == {"model.gguf": hashlib.sha256(content).hexdigest()}
    assert seen[0] == (0, len(content))
    assert seen[-1] == (len(content), len(content))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


async def test_one_file_uri(source: Path) -> None:
    manifest = await inspect(f"file://{source}/model.gguf", OPTIONS)
    assert [ref.path for ref in manifest.objects] == ["model.gguf"]
    assert manifest.facts.architecture == "llama"


async def test_missing_folder_is_empty(tmp_path: Path) -> None:
    with pytest.raises(EmptySource, match=r"nowhere.*0 objects"):
        await inspect(f"file://{tmp_path}/nowhere", OPTIONS)


async def test_unreadable_path(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(SourceUnreachable, match="cannot be read: Too many levels"):
        await inspect(f"file://{tmp_path}/loop", OPTIONS)


async def test_changed_file_is_refused(source: Path, tmp_path: Path) -> None:
    """Field case B04: the same URI, new bytes."""
    manifest = await inspect(f"file://{source}", OPTIONS)
    (source / "model.gguf").write_bytes(gguf(rows=5000, seed=1))
    with pytest.raises(ArtifactChanged, match=r"artifact changed since it was registered.*register again"):
        await fetch(manifest, tmp_path / "out", ignore)
    assert list((tmp_path / "out").iterdir()) == []


async def test_removed_file_is_refused(source: Path, tmp_path: Path) -> None:
    manifest = await inspect(f"file://{source}", OPTIONS)
    (source / "model.gguf").unlink()
    with pytest.raises(ArtifactChanged, match="it is gone"):
        await fetch(manifest, tmp_path / "out", ignore)


@pytest.mark.parametrize("path", ["../escaped", "/tmp/escaped", "a/../../escaped", "a\\..\\escaped"])
async def test_path_outside_the_folder(path: str, tmp_path: Path) -> None:
    """Field case B06: nothing is written outside, also not beside a folder whose name begins alike."""
    (tmp_path / "x").write_bytes(b"evil")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UnsupportedArtifact, match="would not stay inside"):
        await fetch(manifest_of(tmp_path, path), tmp_path / "out", ignore)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a/b"), ("a/b/c", "a/b")])
async def test_two_objects_with_one_path(paths: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArtifact, match="same path"):
        await fetch(manifest_of(tmp_path, *paths), tmp_path / "out", ignore)


async def test_full_disk_is_seen_before_the_download(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = await inspect(f"file://{source}", OPTIONS)
    monkeypatch.setattr(volume, "free_bytes", lambda _folder: 1000)
    with pytest.raises(DiskFull, match=r"disk full: \d+ bytes needed below .*, 1000 free"):
        await fetch(manifest, tmp_path / "out", ignore)
    assert list((tmp_path / "out").iterdir()) == []


async def test_disk_that_fills_up_in_the_middle(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third write finds no space, as on a file system that does not reserve: nothing is left behind."""
    manifest = await inspect(f"file://{source}", OPTIONS)
    really_write, writes = os.pwrite, iter(range(1, 1000))

    def write(descriptor: int, content: bytes, offset: int) -> int:
        if next(writes) >= 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really_write(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(DiskFull, match="No space left on device"):
        await fetch(manifest, tmp_path / "out", ignore, options=FetchOptions(chunk_bytes=16384))
    assert list((tmp_path / "out").iterdir()) == []


async def test_file_that_lost_bytes_on_the_disk(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash is of what lies on the disk; a file cut behind our back is an incomplete download."""
    manifest = await inspect(f"file://{source}", OPTIONS)
    really_write = os.pwrite

    def write(descriptor: int, content: bytes, offset: int) -> int:
        written = really_write(descriptor, content, offset)
        os.ftruncate(descriptor, offset)
        return written

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(IncompleteDownload, match="ends after"):
        await fetch(manifest, tmp_path / "out", ignore)


async def test_folder_in_use_is_refused(source: Path, tmp_path: Path) -> None:
    manifest = await inspect(f"file://{source}", OPTIONS)
    (tmp_path / "other").write_bytes(b"someone else's")
    with pytest.raises(UnsupportedArtifact, match="is not empty"):
        await fetch(manifest, tmp_path, ignore)
    assert (tmp_path / "other").exists()
