"""Writing an object to a real S3 server and to a folder: all or nothing, never over another's unless asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from standby.artifacts import store_put
from standby.artifacts.credentials import Credentials
from standby.artifacts.sources import open_source
from standby.artifacts.store_put import Sink, open_sink
from standby.domain.errors import InvalidInput, SourceUnreachable
from standby.domain.model import SourceOptions
from support.s3_server import S3Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


def file_of(folder: Path, content: bytes, name: str = "file") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


async def stored(uri: str, options: SourceOptions) -> bytes:
    source = open_source(uri, options)
    (ref,) = await source.list()
    return bytes(await source.read(ref, 0, ref.size))


@pytest.fixture(params=["s3", "file"])
def place(request: pytest.FixtureRequest, s3: S3Server, bucket: str, tmp_path: Path) -> tuple[str, SourceOptions]:
    if request.param == "s3":
        return f"s3://{bucket}/deep/er/object", s3.options
    return f"file://{tmp_path}/deep/er/object", SourceOptions()


async def test_first_writer_wins_and_overwriting_is_asked_for(place: tuple[str, SourceOptions], tmp_path: Path) -> None:
    uri, options = place
    sink: Sink = open_sink(uri, options)
    assert await sink.put(file_of(tmp_path, b"one"), overwrite=False)
    assert not await sink.put(file_of(tmp_path, b"two"), overwrite=False)
    assert await stored(uri, options) == b"one"
    assert await sink.put(file_of(tmp_path, b"three"), overwrite=True)
    assert await stored(uri, options) == b"three"


async def test_of_many_at_once_one_wins(place: tuple[str, SourceOptions], tmp_path: Path) -> None:
    uri, options = place
    files = [file_of(tmp_path, bytes([number]) * 1000, f"f{number}") for number in range(6)]
    won = await asyncio.gather(*(open_sink(uri, options).put(file, overwrite=False) for file in files))
    assert sum(won) == 1
    assert await stored(uri, options) == files[won.index(True)].read_bytes()


async def test_a_large_object_goes_in_parts(s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_put, "_CONDITIONAL_BYTES", 1 << 20)
    monkeypatch.setattr(store_put, "_PART_BYTES", 5 << 20)
    content = bytes(range(256)) * (12 << 12)
    uri = f"s3://{bucket}/large"
    assert await open_sink(uri, s3.options).put(file_of(tmp_path, content), overwrite=False)
    assert await stored(uri, s3.options) == content
    assert not await open_sink(uri, s3.options).put(file_of(tmp_path, content[:-1]), overwrite=False)
    assert await open_sink(uri, s3.options).put(file_of(tmp_path, content[:-1]), overwrite=True)
    assert await stored(uri, s3.options) == content[:-1]


async def test_refusals_name_the_place_and_no_secret(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    wrong = Credentials("nobody", "wrong-secret")
    with pytest.raises(SourceUnreachable, match="HTTP 403") as refused:
        await open_sink(f"s3://{bucket}/x", s3.options, credentials=wrong).put(file_of(tmp_path, b"1"), overwrite=False)
    assert "wrong-secret" not in str(refused.value)
    with pytest.raises(SourceUnreachable, match=r"NoSuchBucket|404"):
        await open_sink("s3://no-such-bucket/x", s3.options).put(file_of(tmp_path, b"1"), overwrite=False)
    (tmp_path / "wall").write_text("no folder")
    with pytest.raises(SourceUnreachable, match="cannot be written"):
        await open_sink(f"file://{tmp_path}/wall/x", SourceOptions()).put(file_of(tmp_path, b"1"), overwrite=False)


async def test_a_tenant_s_place_is_never_written_with_the_process_s_keys(s3: S3Server, bucket: str) -> None:
    options = s3.options.model_copy(update={"credentials": "theirs"})
    with pytest.raises(SourceUnreachable, match="stored credentials 'theirs'"):
        open_sink(f"s3://{bucket}/x", options)
    with pytest.raises(InvalidInput, match="names a folder"):
        open_sink(f"s3://{bucket}/x/", s3.options)
