"""Unpacking on a node: only what was registered, nothing outside, nothing left behind."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from standby.artifacts.archive_rules import ArchiveLimits
from standby.artifacts.unpack import unpack
from standby.domain.errors import ArtifactChanged, ArtifactError, DiskFull, UnsupportedArtifact
from standby.domain.model import Archive, Compression, Member
from support.small_disk import small_file_system

FILES = {"config.json": b"{}", "sub/model.safetensors": bytes(range(256)) * 9000, "empty.txt": b""}
Fill = Callable[[tarfile.TarFile], None]


def add(tar: tarfile.TarFile, name: str, content: bytes = b"", **changes: object) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for field, value in changes.items():
        setattr(member, field, value)
    tar.addfile(member, io.BytesIO(content))


def packed(folder: Path, fill: Fill, *, gz: bool = True) -> Path:
    path = folder / ("model.tar.gz" if gz else "model.tar")
    with tarfile.open(path, "w:gz" if gz else "w") as tar:
        fill(tar)
    return path


def files(tar: tarfile.TarFile, prefix: str = "") -> None:
    for name, content in FILES.items():
        add(tar, f"{prefix}{name}", content)


def archive_of(contents: Mapping[str, bytes], *, gz: bool = True, wrapper: str = "") -> Archive:
    members = tuple(Member(path=path, size=len(content)) for path, content in contents.items())
    return Archive(compression=Compression.GZIP if gz else Compression.NONE, members=members, wrapper=wrapper)


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("gz", [True, False])
async def test_members_and_their_hashes(tmp_path: Path, gz: bool) -> None:
    told: list[tuple[str, int]] = []
    path = packed(tmp_path, files, gz=gz)
    sha256 = await unpack(path, archive_of(FILES, gz=gz), tmp_path / "out", on_file=lambda *what: told.append(what))
    assert tree(tmp_path / "out") == FILES
    assert sha256 == {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    assert told == [(name, len(content)) for name, content in FILES.items()]


async def test_wrapper_is_taken_off_and_code_is_left_out(tmp_path: Path) -> None:
    def fill(tar: tarfile.TarFile) -> None:
        add(tar, "./m7/", type=tarfile.DIRTYPE)
        files(tar, "./m7/")
        add(tar, "./m7/code/inference.py", b"import os" * 100_000)
        add(tar, "./._m7", b"junk")

    await unpack(packed(tmp_path, fill), archive_of(FILES, wrapper="m7"), tmp_path / "out")
    assert tree(tmp_path / "out") == FILES


HOSTILE: dict[str, tuple[Fill, str]] = {
    "dots": (lambda tar: add(tar, "../../agent.conf", b"x"), "holds '..'"),
    "absolute": (lambda tar: add(tar, "/etc/passwd", b"x"), "absolute path"),
    "symlink": (lambda tar: add(tar, "w", type=tarfile.SYMTYPE, linkname="/etc"), "symbolic link"),
    "hardlink": (lambda tar: add(tar, "w", type=tarfile.LNKTYPE, linkname="config.json"), "hard link"),
    "fifo": (lambda tar: add(tar, "w", type=tarfile.FIFOTYPE), "FIFO"),
    "device": (lambda tar: add(tar, "w", type=tarfile.CHRTYPE), "device"),
    "file as folder": (lambda tar: add(tar, "config.json/x", b"x"), "folder that is also a file"),
    "twice": (lambda tar: add(tar, "config.json", b"[]"), "is there twice"),
    "control character": (lambda tar: add(tar, "a\nb", b"x"), "no legal file name"),
    "bomb": (lambda tar: add(tar, "sub/zeros", bytes(64 << 20)), "compression bomb"),
    "long header": (lambda tar: add(tar, "x", b"x", pax_headers={"comment": "c" * (2 << 20)}), "extended header"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_archives(tmp_path: Path, name: str) -> None:
    """Field case B06: refused in words, nothing outside the folder, nothing in it, also beside a name that begins alike."""
    evil, words = HOSTILE[name]

    def fill(tar: tarfile.TarFile) -> None:
        files(tar)
        evil(tar)

    path = packed(tmp_path, fill)
    (tmp_path / "out-evil").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UnsupportedArtifact, match=words):
        await unpack(path, archive_of({**FILES, "sub/zeros": bytes(64 << 20)}), tmp_path / "out")
    assert tree(tmp_path / "out") == {}
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "out"])
    assert not any((tmp_path / "out-evil").iterdir())


async def test_caps(tmp_path: Path) -> None:
    path = packed(tmp_path, files)
    with pytest.raises(UnsupportedArtifact, match="more than 2 members"):
        await unpack(path, archive_of(FILES), tmp_path / "few", limits=ArchiveLimits(members=2))
    with pytest.raises(UnsupportedArtifact, match=r"past the limit|more than the limit"):
        await unpack(path, archive_of(FILES), tmp_path / "small", limits=ArchiveLimits(unpacked_bytes=1000))
    assert tree(tmp_path / "few") == tree(tmp_path / "small") == {}


async def test_members_must_be_those_of_the_manifest(tmp_path: Path) -> None:
    path = packed(tmp_path, files)
    fewer = {name: content for name, content in FILES.items() if name != "empty.txt"}
    await unpack(path, archive_of(fewer), tmp_path / "extra")
    assert tree(tmp_path / "extra") == fewer, "what was not chosen at registration is not unpacked"
    with pytest.raises(ArtifactChanged, match=r"'merges.txt' was registered and is not in it any more"):
        await unpack(path, archive_of({**FILES, "merges.txt": b"m"}), tmp_path / "missing")
    with pytest.raises(ArtifactChanged, match=r"'config.json' has 2 bytes instead of 3"):
        await unpack(path, archive_of({**FILES, "config.json": b"{ }"}), tmp_path / "size")
    assert [tree(tmp_path / name) for name in ("missing", "size")] == [{}, {}]


@pytest.mark.parametrize("gz", [True, False])
async def test_damage_at_any_place_is_never_unpacked_as_right(tmp_path: Path, gz: bool) -> None:
    """Truncated or with a byte changed: an error of ours and an empty folder, or exactly the right names and sizes."""
    whole = packed(tmp_path, files, gz=gz).read_bytes()
    step = max(1, len(whole) // 25)
    for number, place in enumerate(range(0, len(whole), step)):
        for kind, content in (("cut", whole[:place]), ("flip", whole[:place] + b"\x5a" + whole[place + 1 :])):
            path = tmp_path / "damaged"
            path.write_bytes(content)
            out = tmp_path / f"{kind}{number}"
            try:
                await unpack(path, archive_of(FILES, gz=gz), out)
            except ArtifactError:
                assert tree(out) == {}
            else:
                assert {name: len(found) for name, found in tree(out).items()} == {n: len(c) for n, c in FILES.items()}
                assert not gz or tree(out) == FILES, "gzip has a checksum of its own"


async def test_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """A real file system that is too small, and one on which another writer takes the space meanwhile."""
    path = packed(tmp_path, files)
    with small_file_system(tmp_path / "small", "17m") as root:
        (root / "out").mkdir()
        with pytest.raises(DiskFull, match=r"disk full: \d+ bytes needed"):
            await unpack(path, archive_of(FILES), root / "out" / "new")
        assert tree(root) == {}


async def test_disk_that_fills_up_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path, files)
    with small_file_system(tmp_path / "small", "1m") as root:
        monkeypatch.setattr("standby.artifacts.volume.DISK_MARGIN", -(64 << 20))
        with pytest.raises(DiskFull, match="No space left on device"):
            await unpack(path, archive_of(FILES), root / "out")
        assert tree(root) == {}


async def test_cancelled_leaves_nothing(tmp_path: Path) -> None:
    """Cancelled while the second of two members is written."""
    contents = {"first": b"x", "second": bytes(range(256)) * (1 << 19)}

    def fill(tar: tarfile.TarFile) -> None:
        for name, content in contents.items():
            add(tar, name, content)

    path = packed(tmp_path, fill, gz=False)
    begun = asyncio.Event()
    told: list[str] = []

    def heard(name: str, _size: int) -> None:
        told.append(name)
        begun.set()

    work = asyncio.create_task(unpack(path, archive_of(contents, gz=False), tmp_path / "out", on_file=heard))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert told == ["first"]
    assert tree(tmp_path / "out") == {}


async def test_existing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "other").write_bytes(b"someone else's")
    with pytest.raises(FileExistsError):
        await unpack(packed(tmp_path, files), archive_of(FILES), tmp_path / "out")
    assert tree(tmp_path / "out") == {"other": b"someone else's"}
