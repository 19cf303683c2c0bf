"""Whole small objects of a store: read one, and write one that a repeated writer writes only once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import S3Store

from standby.artifacts.credentials import Credentials, require_opened
from standby.artifacts.location import parse_s3
from standby.artifacts.s3 import S3Source
from standby.domain.errors import InvalidInput, PayloadTooLarge
from standby.domain.model import SourceOptions

MARK: Final = "standby-request"
"""Metadata of an object that names the request for which it was written."""


class ObjectPlace(Protocol):
    """One object in a store, there or not."""

    async def read(self, limit: int) -> bytes:
        """Return the object. Raises SourceUnreachable, SourceInterrupted; PayloadTooLarge above ``limit`` bytes."""

    async def written_for(self, mark: str) -> bool:
        """Whether the object is there and was written for ``mark``. Raises as ``read`` does."""

    async def put_once(self, content: bytes, mark: str, content_type: str) -> bool:
        """Write the object in one piece; False where it was written for this ``mark`` already, and then it stays as it is.

        What was written for another mark, or by somebody else, is replaced. Raises SourceUnreachable, SourceInterrupted.
        """


def open_object(
    uri: str,
    options: SourceOptions,
    *,
    environment: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
) -> ObjectPlace:
    """Return the object that ``uri`` (s3://bucket/key) names; nothing is asked of the store yet.

    Keys as in ``standby.artifacts.sources.open_source``. Raises InvalidInput; SourceUnreachable when ``options`` name
    stored credentials and none are given.
    """
    if not uri.startswith("s3://") or uri.endswith("/"):
        raise InvalidInput(f"{uri[:200]!r} names no object in S3", remedy="write s3://bucket/key")
    require_opened(credentials, options, f"{uri[:200]!r} is to be opened")
    return S3Object(parse_s3(uri), options, environment=environment, credentials=credentials)


class S3Object(S3Source):
    """One object in S3; follows the bucket into its region as all reading does."""

    async def read(self, limit: int) -> bytes:  # type: ignore[override] # a whole object, not a part of a pinned one
        """Return the object; one that is too large is not fetched."""
        key = self._location.key

        async def get(store: S3Store) -> bytes:
            answer = await obstore.get_async(store, key)
            size = answer.meta["size"]
            if size > limit:
                raise PayloadTooLarge(
                    f"object {key!r} in bucket {self._location.bucket!r} has {size} bytes, the limit is {limit}",
                    remedy="send less, or raise STANDBY_ASYNC_BODY_BYTES",
                )
            return bytes(await answer.bytes_async())

        return await self._ask(get, key)

    async def written_for(self, mark: str) -> bool:
        """Ask for the object's metadata, which only a read tells; its bytes are not fetched."""
        key = self._location.key

        async def ask(store: S3Store) -> bool:
            try:
                answer = await obstore.get_async(store, key)
            except FileNotFoundError:
                return False
            return answer.attributes.get(MARK) == mark

        return await self._ask(ask, key)

    async def put_once(self, content: bytes, mark: str, content_type: str) -> bool:
        """Write where nothing is; what is there decides about the rest."""
        if await self._put(content, mark, content_type, overwrite=False):
            return True
        if await self.written_for(mark):
            return False
        return await self._put(content, mark, content_type, overwrite=True)

    async def _put(self, content: bytes, mark: str, content_type: str, *, overwrite: bool) -> bool:
        key = self._location.key

        async def send(store: S3Store) -> bool:
            try:
                await obstore.put_async(
                    store,
                    key,
                    content,
                    attributes={"Content-Type": content_type, MARK: mark},
                    mode="overwrite" if overwrite else "create",
                    use_multipart=False,
                )
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

        return await self._ask(send, key)
