"""A packed engine cache: the same content makes the same bytes, and nothing but the deployment's own is unpacked."""

from __future__ import annotations

import hmac
import io
import os
import tarfile
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.warm_pool.engine_cache_archive import (
    HEAD_BYTES,
    MAGIC,
    CacheFile,
    CacheManifest,
    ChangedMeanwhile,
    RefusedCache,
    Stopped,
    pack,
    signing_key,
    survey,
    unpack,
)

FINGERPRINT, OTHER = "a" * 64, "b" * 64
KEY = signing_key(b"the deployment's secret")
CAP = 1 << 20
FILES = {"rank_0/kernel.so": b"\x7fELF" + bytes(5000), "rank_0/index.py": b"x = 1\n", "empty": b"", "z/ü.bin": b"\xff" * 999}
GO = threading.Event()


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def packed_at(folder: Path, files: dict[str, bytes], fingerprint: str = FINGERPRINT, key: bytes = KEY) -> Path:
    source = written(folder / "source", files)
    manifest, _ = survey(source, fingerprint, "1.2.3")
    pack(source, manifest, folder / "packed", key, GO)
    return folder / "packed"


def taken(packed: Path, into: Path, *, fingerprint: str = FINGERPRINT, key: bytes = KEY, cap: int = CAP) -> CacheManifest:
    return unpack(packed, into, fingerprint, key, cap, GO)


def test_what_is_packed_comes_out_again(tmp_path: Path) -> None:
    manifest = taken(packed_at(tmp_path, FILES), tmp_path / "out")
    assert tree(tmp_path / "out") == FILES
    assert [file.path for file in manifest.files] == sorted(FILES)
    assert (manifest.standby, manifest.total_bytes) == ("1.2.3", sum(map(len, FILES.values())))


def test_the_same_content_makes_the_same_bytes(tmp_path: Path) -> None:
    first = packed_at(tmp_path / "1", FILES)
    second = packed_at(tmp_path / "2", dict(reversed(FILES.items())))
    os.utime(tmp_path / "2" / "source" / "empty", (5, 5))
    assert first.read_bytes() == second.read_bytes()


def test_links_and_unspeakable_names_stay_behind(tmp_path: Path) -> None:
    source = written(tmp_path / "source", {"good": b"1", "back\\slash": b"2", "a\nb": b"3"})
    (source / "link").symlink_to("/etc/passwd")
    (source / "pipe").parent.mkdir(exist_ok=True)
    os.mkfifo(source / "pipe")
    (source / "folder-link").symlink_to("/etc")
    manifest, _ = survey(source, FINGERPRINT, "")
    assert [file.path for file in manifest.files] == ["good"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        packed = packed_at(Path(folder), FILES)
        content = bytearray(packed.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= data.draw(st.integers(1, 255))
        packed.write_bytes(content)
        with pytest.raises(RefusedCache):
            taken(packed, Path(folder) / "out")
        assert not (Path(folder) / "out").exists(), "nothing is written before the signature is found right"


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_shortened_or_lengthened_file_is_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        packed = packed_at(Path(folder), FILES)
        content = packed.read_bytes()
        cut = data.draw(st.integers(0, len(content) - 1))
        packed.write_bytes(data.draw(st.sampled_from([content[:cut], content + bytes(cut + 1)])))
        with pytest.raises(RefusedCache):
            taken(packed, Path(folder) / "out")


def test_another_key_another_fingerprint_and_too_much_are_refused_in_words(tmp_path: Path) -> None:
    packed = packed_at(tmp_path, FILES)
    with pytest.raises(RefusedCache, match="not of this deployment's key"):
        taken(packed, tmp_path / "1", key=signing_key(b"another secret"))
    with pytest.raises(RefusedCache, match=f"is of fingerprint {'a' * 12}, and {'b' * 12} was asked for"):
        taken(packed, tmp_path / "2", fingerprint=OTHER)
    with pytest.raises(RefusedCache, match="more than the cap of 5000"):
        taken(packed, tmp_path / "3", cap=5000)


def signed(folder: Path, fill: Callable[[tarfile.TarFile], None], key: bytes = KEY) -> Path:
    """A tar of any content with a signature that is right: what a node would make if it could be talked into it."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        fill(tar)
    body = raw.getvalue()
    folder.mkdir(exist_ok=True)
    (folder / "packed").write_bytes(MAGIC + hmac.digest(key, body, "sha256") + body)
    return folder / "packed"


def member(tar: tarfile.TarFile, name: str, content: bytes = b"", **changes: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in changes.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(content))


def manifest_of(*files: CacheFile) -> bytes:
    return CacheManifest(fingerprint=FINGERPRINT, files=files).model_dump_json().encode()


KNOWN = CacheFile(path="k", size=1, sha256="2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881")  # of b"x"
HOSTILE: dict[str, tuple[list[tuple[str, bytes, dict[str, object]]], str]] = {
    "no manifest": ([("files/k", b"x", {})], "no manifest"),
    "two manifests": ([("manifest.json", manifest_of(), {}), ("manifest.json", manifest_of(), {})], "there twice"),
    "unnamed": ([("manifest.json", manifest_of(), {}), ("files/k", b"x", {})], "not in its manifest"),
    "other bytes": ([("manifest.json", manifest_of(KNOWN), {}), ("files/k", b"y", {})], "other bytes than its manifest"),
    "missing": ([("manifest.json", manifest_of(KNOWN), {})], "1 files of its manifest are missing"),
    "dots": ([("manifest.json", manifest_of(), {}), ("files/../../x", b"x", {})], "holds '..'"),
    "absolute": ([("manifest.json", manifest_of(), {}), ("/etc/x", b"x", {})], "absolute path"),
    "link": ([("manifest.json", manifest_of(), {}), ("files/k", b"", {"type": tarfile.SYMTYPE, "linkname": "/"})], "symbolic"),
    "hardlink": ([("manifest.json", manifest_of(), {}), ("files/k", b"", {"type": tarfile.LNKTYPE, "linkname": "m"})], "hard"),
    "no json": ([("manifest.json", b"{", {})], "broken"),
    "escaping manifest": (
        [("manifest.json", manifest_of(KNOWN.model_copy(update={"path": "../k"})), {}), ("files/../k", b"x", {})],
        "holds '..'",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_right_signature_excuses_nothing(tmp_path: Path, name: str) -> None:
    entries, words = HOSTILE[name]

    def fill(tar: tarfile.TarFile) -> None:
        for path, content, changes in entries:
            member(tar, path, content, **changes)

    with pytest.raises(RefusedCache, match=words):
        taken(signed(tmp_path / "hostile", fill), tmp_path / "out")
    assert not (tmp_path / "k").exists()


def test_a_file_that_changes_while_it_is_packed_is_noticed(tmp_path: Path) -> None:
    source = written(tmp_path / "source", FILES)
    manifest, times = survey(source, FINGERPRINT, "")
    assert times.keys() == FILES.keys()
    for number, (name, content) in enumerate({"empty": b"grown", "rank_0/index.py": b"y = 2\n"}.items()):
        (source / name).write_bytes(content)
        with pytest.raises(ChangedMeanwhile):
            pack(source, manifest, tmp_path / f"packed{number}", KEY, GO)
        (source / name).write_bytes(FILES[name])
    (source / "empty").unlink()
    with pytest.raises(ChangedMeanwhile):
        pack(source, manifest, tmp_path / "packed", KEY, GO)


def test_it_can_be_stopped(tmp_path: Path) -> None:
    packed = packed_at(tmp_path, FILES)
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        unpack(packed, tmp_path / "out", FINGERPRINT, KEY, CAP, stop)
    assert packed.stat().st_size > HEAD_BYTES
