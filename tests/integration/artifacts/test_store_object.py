"""One object of a real S3 server: read within a limit, and written once for one request."""

from __future__ import annotations

import asyncio

import pytest

from standby.artifacts.credentials import Credentials
from standby.artifacts.store_object import ObjectPlace, open_object
from standby.domain.errors import InvalidInput, PayloadTooLarge, SourceUnreachable
from standby.domain.model import SourceOptions
from support.s3_server import S3Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def place(s3: S3Server, bucket: str) -> ObjectPlace:
    return open_object(f"s3://{bucket}/deep/er/i.out", s3.options)


async def test_the_first_of_one_request_stays(place: ObjectPlace) -> None:
    assert not await place.written_for("r1")
    assert await place.put_once(b"one", "r1", "application/json")
    assert not await place.put_once(b"two", "r1", "application/json")
    assert await place.read(10) == b"one"
    assert await place.written_for("r1")
    assert not await place.written_for("r2")


async def test_another_request_and_a_strangers_object_are_replaced(s3: S3Server, bucket: str, place: ObjectPlace) -> None:
    await s3.upload(bucket, "deep/er/i.out", b"uploaded by hand")
    assert await place.put_once(b"one", "r1", "application/json")
    assert await place.put_once(b"two", "r2", "application/json")
    assert await place.read(10) == b"two"


async def test_of_many_executions_of_one_request_one_is_seen(place: ObjectPlace) -> None:
    contents = [bytes([number]) * 1000 for number in range(6)]
    won = await asyncio.gather(*(place.put_once(content, "r", "text/plain") for content in contents))
    assert sum(won) == 1
    assert await place.read(1000) == contents[won.index(True)]


async def test_refusals_are_told_and_the_platforms_keys_never_stand_in(s3: S3Server, bucket: str, place: ObjectPlace) -> None:
    await place.put_once(b"12345", "r", "text/plain")
    with pytest.raises(PayloadTooLarge, match="5 bytes, the limit is 4"):
        await place.read(4)
    with pytest.raises(SourceUnreachable, match="NoSuchKey"):
        await open_object(f"s3://{bucket}/none", s3.options).read(4)
    wrong = open_object(f"s3://{bucket}/x", s3.options, credentials=Credentials("nobody", "wrong-secret"))
    with pytest.raises(SourceUnreachable, match="HTTP 403"):
        await wrong.put_once(b"", "r", "text/plain")
    with pytest.raises(SourceUnreachable, match="were not opened here"):
        open_object(f"s3://{bucket}/x", SourceOptions(credentials="own"))
    for uri in (f"s3://{bucket}/folder/", "file:///etc/passwd", "https://x/y"):
        with pytest.raises(InvalidInput):
            open_object(uri, s3.options)
