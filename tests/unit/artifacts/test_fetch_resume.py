"""What a download does besides copying: order, early files, going on after a failure, checks, caps, other origins."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from standby.artifacts import checksums
from standby.artifacts.credentials import Credentials
from standby.artifacts.fetch import FetchOptions, fetch, in_order
from standby.artifacts.journal import read_journal
from standby.artifacts.location import SourceInterrupted
from standby.artifacts.pace import Pacer
from standby.artifacts.sources import open_source
from standby.domain.errors import ArtifactChanged, DigestMismatch, IncompleteDownload
from standby.domain.model import Manifest, ModelFormat, ObjectRef, SourceOptions
from support.small_disk import reflinking_file_system

CHUNK = 1000
WEIGHTS = bytes(range(256)) * 40
FILES = {"model.safetensors": WEIGHTS, "tokenizer.json": b"t" * 700, "config.json": b"{}" * 900, "empty.txt": b""}


def ignore(_done: int, _total: int) -> None:
    pass


class Memory:
    """A source that has its objects in memory, counts what is read, and breaks on demand."""

    where = "memory"
    options = SourceOptions()

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.reads: list[tuple[str, int]] = []
        self.breaks: Callable[[str, int], bool] = lambda _path, _start: False
        self.error: Exception = SourceInterrupted("the line is cut")

    async def list(self) -> list[ObjectRef]:
        return list(manifest_of(self.files).objects)

    async def pin(self, ref: ObjectRef) -> ObjectRef | None:
        return ref

    async def read(self, ref: ObjectRef, start: int, length: int) -> bytes:
        return self.read_blocking(ref, start, length)

    def read_blocking(self, ref: ObjectRef, start: int, length: int) -> bytes:
        self.reads.append((ref.path, start))
        if self.breaks(ref.path, start):
            raise self.error
        return self.files[ref.path][start : start + length]

    def pieces(self, ref: ObjectRef, start: int, length: int) -> Iterator[bytes]:
        content = self.read_blocking(ref, start, length)
        yield content[: length // 2]
        yield content[length // 2 :]


def manifest_of(files: dict[str, bytes], etags: dict[str, str] | None = None) -> Manifest:
    objects = tuple(
        ObjectRef(key=path, path=path, size=len(content), etag=(etags or {}).get(path, path)) for path, content in files.items()
    )
    return Manifest(source_uri="file:///memory", format=ModelFormat.SAFETENSORS, objects=objects)


def options_for(source: Memory, journal: Path | None = None) -> FetchOptions:
    return FetchOptions(opener=lambda _manifest: source, journal=journal, chunk_bytes=CHUNK, backoff=())


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_config_first_then_small_then_weights() -> None:
    paths = ["b.safetensors", "tokenizer.json", "a.safetensors", "config.json", "merges.txt"]
    sizes = [9, 5, 9, 7, 2]
    objects = tuple(ObjectRef(key=path, path=path, size=size) for path, size in zip(paths, sizes, strict=True))
    assert [ref.path for ref in in_order(objects)] == [
        "config.json", "merges.txt", "tokenizer.json", "b.safetensors", "a.safetensors",
    ]  # fmt: skip


async def test_small_files_are_told_while_weights_still_arrive(tmp_path: Path) -> None:
    """An engine can start on its config and tokenizer: they are whole on the disk before the weights are."""
    source, told, config_told = Memory(FILES), list[str](), asyncio.Event()
    may_end = source.files["model.safetensors"]
    loop = asyncio.get_running_loop()

    def wait_for_small(path: str, start: int) -> bool:
        if path.endswith(".safetensors") and start > 5000:
            asyncio.run_coroutine_threadsafe(config_told.wait(), loop).result(10)
        return False

    def heard(path: str) -> None:
        told.append(path)
        assert (tmp_path / "out" / path).read_bytes() == FILES[path]
        if len(told) == 3:
            config_told.set()

    source.breaks = wait_for_small
    await fetch(manifest_of(FILES), tmp_path / "out", ignore, on_file=heard, options=options_for(source))
    assert told == ["config.json", "empty.txt", "tokenizer.json", "model.safetensors"]
    assert may_end == (tmp_path / "out" / "model.safetensors").read_bytes()


async def test_a_second_attempt_reads_only_what_is_missing(tmp_path: Path) -> None:
    source, journal = Memory(FILES), tmp_path / "journal"
    source.breaks = lambda path, start: path == "model.safetensors" and start >= 6000
    with pytest.raises(IncompleteDownload, match=r"incomplete download, \d+ of 12740 bytes.*goes on from there"):
        await fetch(manifest_of(FILES), tmp_path / "out", ignore, options=options_for(source, journal))
    told = read_journal(journal)
    assert told is not None
    had = {(path, index * CHUNK) for path, index in told.chunks}
    source.breaks = lambda _path, _start: False
    source.reads.clear()
    sha256 = await fetch(manifest_of(FILES), tmp_path / "out", ignore, options=options_for(source, journal))
    assert had
    assert not had & set(source.reads)
    assert content_of(tmp_path / "out") == FILES
    assert sha256 == {path: hashlib.sha256(content).hexdigest() for path, content in FILES.items()}


@pytest.mark.parametrize("damage", ["changed byte", "lost end", "torn journal", "no journal line", "other size of chunks"])
async def test_a_second_attempt_trusts_nothing_that_it_cannot_check(tmp_path: Path, damage: str) -> None:
    """Whatever a crash or a bad disk has done to the first attempt's bytes: the second one's are right."""
    source, out, journal = Memory(FILES), tmp_path / "out", tmp_path / "journal"
    source.breaks = lambda path, start: path == "model.safetensors" and start >= 9000
    with pytest.raises(IncompleteDownload):
        await fetch(manifest_of(FILES), out, ignore, options=options_for(source, journal))
    source.breaks = lambda _path, _start: False
    options = options_for(source, journal)
    model = out / "model.safetensors"
    match damage:
        case "changed byte":
            with model.open("r+b") as file:
                file.seek(1500)
                file.write(b"\xff\xfe")
        case "lost end":
            with model.open("r+b") as file:
                file.truncate(2500)
        case "torn journal":
            journal.write_bytes(journal.read_bytes()[:-9])
        case "no journal line":
            journal.write_bytes(journal.read_bytes().split(b"\n")[0] + b"\n")
        case _:
            options = replace(options, chunk_bytes=333)
    sha256 = await fetch(manifest_of(FILES), out, ignore, options=options)
    assert content_of(out) == FILES
    assert sha256["model.safetensors"] == hashlib.sha256(WEIGHTS).hexdigest()


async def test_what_was_brought_of_another_version_is_not_used(tmp_path: Path) -> None:
    source, journal = Memory(FILES), tmp_path / "journal"
    source.breaks = lambda path, start: path == "model.safetensors" and start >= 5000
    with pytest.raises(IncompleteDownload):
        await fetch(manifest_of(FILES), tmp_path / "out", ignore, options=options_for(source, journal))
    newer = {**FILES, "config.json": b"[]" * 900}
    source = Memory(newer)
    manifest = manifest_of(newer, {"config.json": "newer"})
    await fetch(manifest, tmp_path / "out", ignore, options=options_for(source, journal))
    assert content_of(tmp_path / "out") == newer


async def test_a_failure_that_does_not_pass_keeps_nothing(tmp_path: Path) -> None:
    source, journal = Memory(FILES), tmp_path / "journal"
    source.breaks = lambda path, start: path == "model.safetensors" and start >= 5000
    source.error = ArtifactChanged("it is another one now")
    with pytest.raises(ArtifactChanged):
        await fetch(manifest_of(FILES), tmp_path / "out", ignore, options=options_for(source, journal))
    assert not journal.exists()
    assert content_of(tmp_path / "out") == {}


async def test_md5_in_the_etag_is_compared(tmp_path: Path) -> None:
    """A store that hands out other bytes than it took in is found out, although sizes and ETags fit."""
    right = hashlib.md5(WEIGHTS, usedforsecurity=False).hexdigest()
    manifest = manifest_of(FILES, {"model.safetensors": f'"{right}"'})
    await fetch(manifest, tmp_path / "right", ignore, options=options_for(Memory(FILES)))
    rotten = Memory({**FILES, "model.safetensors": WEIGHTS[:-1] + b"!"})
    with pytest.raises(DigestMismatch, match=rf"'model.safetensors' in memory .* MD5 \w+, the store's own is {right}"):
        await fetch(manifest, tmp_path / "rotten", ignore, options=options_for(rotten))
    assert content_of(tmp_path / "rotten") == {}


@pytest.mark.parametrize("etag", ["", '"0123-2"', f'"{"a" * 32}-17"', "abc", '"d41d8cd98f00b204e9800998ecf8427"'])
def test_etags_that_are_no_md5(etag: str) -> None:
    assert checksums.md5_of(etag) is None


@pytest.mark.parametrize(
    ("headers", "encrypted"),
    [
        ({}, False),
        ({"x-amz-server-side-encryption": "AES256"}, False),
        ({"x-amz-server-side-encryption": "aws:kms"}, True),
        ({"x-amz-server-side-encryption-customer-algorithm": "AES256"}, True),
    ],
)
def test_encryption_under_which_an_etag_is_no_md5(headers: dict[str, str], encrypted: bool) -> None:
    assert checksums.says_encrypted(httpx.Headers(headers)) is encrypted


@pytest.mark.parametrize("encryption", ["aws:kms", "AES256"])
async def test_the_store_is_asked_whether_its_etag_is_an_md5(encryption: str) -> None:
    """Under a key of KMS the ETag looks like an MD5 and is none: the bytes are right all the same."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"?")[0])
        head = (
            f"HTTP/1.1 200 OK\r\ncontent-length: 10\r\nx-amz-server-side-encryption: {encryption}\r\nconnection: close\r\n\r\n"
        )
        writer.write(head.encode())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        source = open_source(
            "s3://bucket/a.gguf",
            SourceOptions(endpoint_url=f"http://127.0.0.1:{port}"),
            credentials=Credentials("key", "secret"),
        )
        ref = ObjectRef(key="a.gguf", path="a.gguf", size=10, etag=f'"{"1" * 32}"')
        if encryption == "aws:kms":
            await checksums.check_etag(source, ref, "0" * 32)
        else:
            with pytest.raises(DigestMismatch):
                await checksums.check_etag(source, ref, "0" * 32)
    assert asked == [b"HEAD /bucket/a.gguf"]


async def test_bandwidth_cap(tmp_path: Path) -> None:
    """12.7 kB at 1 kB/s take twelve seconds of the injected clock."""
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    options = replace(options_for(Memory(FILES)), pacer=Pacer(1000, now=lambda: now, sleep=sleep))
    await fetch(manifest_of(FILES), tmp_path / "out", ignore, options=options)
    assert now >= 12.0
    assert content_of(tmp_path / "out") == FILES


async def test_files_on_the_same_disk_are_cloned(tmp_path: Path) -> None:
    """On a file system with reflinks a whole model comes without one byte being copied, and stays apart from its source."""
    with reflinking_file_system(tmp_path / "disk") as disk:
        (disk / "m").mkdir()
        content = WEIGHTS * 500
        (disk / "m" / "model.safetensors").write_bytes(content)
        source = open_source(f"file://{disk}/m", SourceOptions())
        objects = tuple(await source.list())
        manifest = Manifest(source_uri=f"file://{disk}/m", format=ModelFormat.SAFETENSORS, objects=objects)
        await fetch(manifest, disk / "out", ignore)
        assert shared_extents(disk / "out" / "model.safetensors")
        with (disk / "m" / "model.safetensors").open("r+b") as file:
            file.write(b"rewritten in place")
        assert (disk / "out" / "model.safetensors").read_bytes() == content
        with pytest.raises(ArtifactChanged):
            await fetch(manifest, disk / "again", ignore)


def shared_extents(path: Path) -> bool:
    """Whether the file shares its bytes with another one, as filefrag (e2fsprogs) sees it."""
    shown = subprocess.run(["filefrag", "-v", path], capture_output=True, check=True).stdout
    return b"shared" in shown
