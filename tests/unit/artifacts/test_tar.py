"""The tar reader: right where the standard library's is, and unmoved by broken and hostile archives."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.artifacts.archive_rules import ArchiveLimits, BrokenArchive, MemberKind
from standby.artifacts.streams import ForwardStream, GzipStream, PlainStream
from standby.artifacts.tar import TarEntry, members
from support.archive_builder import entry, tar

LONG = "long/" * 30 + "ü" * 40 + ".json"
FILES = {"config.json": b"{}", "m/model.bin": bytes(range(256)) * 5, "m/empty": b"", LONG: b"x" * 513}
LIMITS = ArchiveLimits()


def plain(content: bytes) -> PlainStream:
    def read(offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= len(content), "asked for bytes outside the file"
        return content[offset : offset + length]

    return PlainStream(read, len(content))


def packed(content: bytes, *, chunk: int = 100, limits: ArchiveLimits = LIMITS) -> GzipStream:
    def chunks() -> Iterator[bytes]:
        for start in range(0, len(content), chunk):
            yield content[start : start + chunk]

    return GzipStream(chunks(), limits)


def listing(stream: ForwardStream, limits: ArchiveLimits = LIMITS) -> list[tuple[TarEntry, bytes]]:
    return [(found, body.take(body.left)) for found, body in members(stream, limits)]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_formats(form: int) -> None:
    files = FILES if form != tarfile.USTAR_FORMAT else {name: content for name, content in FILES.items() if name != LONG}
    content = tar(files, form=form)
    for stream in (plain(content), packed(gzip.compress(content)), packed(gzip.compress(content), chunk=1)):
        assert {found.name: body for found, body in listing(stream)} == files


def test_what_the_caller_leaves_is_skipped() -> None:
    content = tar(FILES)
    assert [found.name for found, _ in members(plain(content), LIMITS)] == list(FILES)
    partly = [body.take(3) for _, body in members(packed(gzip.compress(content)), LIMITS)]
    assert partly == [body[:3] for body in FILES.values()]


def test_a_plain_tar_is_read_by_its_headers_only() -> None:
    """Bodies larger than the window are never asked for."""
    content = tar({"a": bytes(3 << 20), "b": bytes(3 << 20)})
    asked = 0

    def read(offset: int, length: int) -> bytes:
        nonlocal asked
        asked += length
        return content[offset : offset + length]

    assert [found.size for found, _ in members(PlainStream(read, len(content)), LIMITS)] == [3 << 20, 3 << 20]
    assert asked < 1 << 20


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (tarfile.SYMTYPE, MemberKind.SYMLINK),
        (tarfile.LNKTYPE, MemberKind.HARDLINK),
        (tarfile.CHRTYPE, MemberKind.DEVICE),
        (tarfile.BLKTYPE, MemberKind.DEVICE),
        (tarfile.FIFOTYPE, MemberKind.FIFO),
        (tarfile.DIRTYPE, MemberKind.FOLDER),
        (tarfile.CONTTYPE, MemberKind.FILE),
        (b"M", MemberKind.OTHER),
    ],
)
def test_kinds(kind: bytes, expected: MemberKind) -> None:
    found = [item for item, _ in listing(plain(tar([entry("w", kind=kind, link="/etc")])))]
    assert found == [TarEntry("w/" if kind == tarfile.DIRTYPE else "w", expected, 0)]


def test_old_folders_are_files_with_a_slash() -> None:
    assert listing(plain(tar([entry("m/")])))[0][0].kind is MemberKind.FOLDER


def pax(key: str, value: str, *, kind: bytes = tarfile.XHDTYPE) -> bytes:
    record = f" {key}={value}\n".encode()
    length = len(record) + len(str(len(record) + 2))
    return tar([entry("pax", str(length).encode() + record, kind=kind), entry("w", b"x")])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "ends without the end mark"),
        (b"x" * 100, "ends without the end mark"),
        (b"x" * 512, "checksum is no number: no tar"),
        (b"0" * 512, "checksum is wrong: no tar"),
        (tar({"a": b"x" * 600})[:600], "member 'a' lacks its last 512 bytes"),
        (tar({"a": b"x"})[:1024], "ends without the end mark"),
        (tar({"a": b"x"}) + b"more", "more data after its end mark"),
        (tar({"a": b"x"}) + tar({"b": b"y"}), "more data after its end mark"),
        (pax("path", "a\0b"), "a name with a zero byte"),
        (pax("size", "-1"), "gives the size b'-1'"),
        (pax("size", "9" * 30), "gives the size"),
        (pax("size", "99999"), "lacks its last"),
        (pax("GNU.sparse.major", "1"), "sparse"),
        (pax("path", "x", kind=tarfile.XGLTYPE), "names or sizes all members at once"),
        (tar([entry("pax", b"99 path=x\n", kind=tarfile.XHDTYPE), entry("w")]), "not made of records"),
        (tar([entry("pax", b"no record", kind=tarfile.XHDTYPE), entry("w")]), "not made of records"),
        (tar([entry("l", b"x" * 600, kind=tarfile.GNUTYPE_LONGNAME)])[:800], "ends inside an extended header"),
        (tar([entry("l", b"x", kind=tarfile.GNUTYPE_LONGNAME)] * 2), "two extended headers name or size the same member"),
        (tar([entry("l", b"x", kind=tarfile.GNUTYPE_LONGNAME)]), "an extended header with no member behind it"),
        (tar([entry("l", b"x", kind=tarfile.GNUTYPE_LONGLINK)] * 5), "more than 4 extended headers in a row"),
        (tar([entry("l", b"x" * (1 << 20) + b"x", kind=tarfile.GNUTYPE_LONGNAME)]), "1048577 bytes, more than 1048576"),
    ],
)
def test_broken_tar(content: bytes, says: str) -> None:
    with pytest.raises(BrokenArchive, match=says) as caught:
        listing(plain(content))
    assert caught.value.remedy


def test_a_size_that_is_negative_or_absurd() -> None:
    """A size beyond the archive is truncation; a negative one, which would step back, is no number."""
    for field, says in ((b"\x80" + b"\xff" * 11, "lacks its last"), (b"\xff" * 12, "no number")):
        block = bytearray(tar({"a": b"x"}))
        block[124:136] = field
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block[:512])
        with pytest.raises(BrokenArchive, match=says):
            listing(plain(bytes(block)))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gzip.compress(tar(FILES))[:-1], "truncated gzip"),
        (gzip.compress(tar(FILES))[:-20], "truncated gzip"),
        (gzip.compress(tar(FILES))[:-8] + b"\0" * 8, "damaged gzip"),
        (b"\x1f\x8b" + b"x" * 100, "damaged gzip"),
        (gzip.compress(tar(FILES)) + b"garbage", "bytes that are no gzip follow"),
        (gzip.compress(tar(FILES)) * 2, "more data after its end mark"),
    ],
)
def test_broken_gzip(content: bytes, says: str) -> None:
    with pytest.raises(BrokenArchive, match=says):
        listing(packed(content))


@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_gzip_in_several_pieces_with_padding(chunk: int) -> None:
    whole = tar(FILES)
    content = gzip.compress(whole[:700]) + gzip.compress(whole[700:]) + bytes(3000)
    assert [found.name for found, _ in listing(packed(content, chunk=chunk))] == list(FILES)


def test_compression_bomb() -> None:
    """Field case B06: refused when it has unpacked a little, not when the memory is full."""
    bomb = gzip.compress(tar({"a": bytes(40 << 20)}), compresslevel=9)
    stream = packed(bomb, chunk=1 << 20)
    with pytest.raises(BrokenArchive, match="more than 200 for one: a compression bomb"):
        listing(stream)
    assert stream.unpacked_bytes <= 18 << 20


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_damage_is_refused_or_the_reference_agrees(data: st.DataObject) -> None:
    """Bytes changed, cut out or put in end in our own error, or in members that the standard library sees alike."""
    content = bytearray(tar({"a.json": b"{}", LONG: b"x" * 513, "b": b"y"}, form=data.draw(st.sampled_from([1, 2]))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(len(content), 4096) - 1))
        match data.draw(st.sampled_from(["change", "cut", "block", "checksum"])):
            case "change":
                content[at] = data.draw(st.integers(0, 255))
            case "cut":
                del content[at : at + data.draw(st.integers(1, 600))]
            case "block":
                at = at // 512 * 512
                content[at:at] = content[at : at + 512]
            case _:
                at = at // 512 * 512
                content[at + data.draw(st.integers(0, 511))] = data.draw(st.sampled_from(b"\0 017xgLK5/"))
                content[at + 148 : at + 156] = b" " * 8
                content[at + 148 : at + 156] = b"%06o\0 " % (sum(content[at : at + 512]) % (1 << 18))
        if not content:
            return
    agrees(bytes(content))


def agrees(content: bytes) -> None:
    try:
        found = [(item.name.rstrip("/"), body) for item, body in listing(plain(content)) if item.kind is MemberKind.FILE]
    except BrokenArchive:
        return
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            expected = [(item.name.rstrip("/"), read(archive, item)) for item in archive if item.isreg()]
    except tarfile.ReadError:
        # What it calls unreadable is, for us, an archive without files.
        expected = []
    assert found == expected


def read(archive: tarfile.TarFile, item: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(item)
    assert file is not None
    return file.read()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_damage_to_a_gzip_is_noticed(data: st.DataObject) -> None:
    whole = gzip.compress(tar({"a": b"x" * 300}))
    content = bytearray(whole)
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = listing(packed(bytes(content)))
    except BrokenArchive:
        return
    # Only the fields of the gzip's own header (time, system) may change without consequence.
    assert found == listing(packed(whole))
    assert zlib.decompress(bytes(content), 31) == zlib.decompress(whole, 31)
