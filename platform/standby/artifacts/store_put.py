"""Writing one object to a store, by the same addresses, keys and words of refusal as reading."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import S3Store

from standby.artifacts import volume
from standby.artifacts.credentials import Credentials, require_opened
from standby.artifacts.crew import uninterrupted
from standby.artifacts.location import parse_file, parse_s3, scheme_of
from standby.artifacts.s3 import S3Source
from standby.domain.errors import InvalidInput, SourceUnreachable
from standby.domain.model import SourceOptions

_CONDITIONAL_BYTES: Final = 32 << 20
"""Up to here the store itself refuses to overwrite: such a request is one piece, all of it in memory."""
_PART_BYTES: Final = 16 << 20
_PARALLEL_PARTS: Final = 4


class Sink(Protocol):
    """One place in a store where an object may be put."""

    async def put(self, file: Path, *, overwrite: bool) -> bool:
        """Store the bytes of ``file``, all or nothing; False where an object is already and ``overwrite`` is not asked.

        Raises SourceUnreachable when the store refuses or does not answer.
        """


def open_sink(
    uri: str,
    options: SourceOptions,
    *,
    environment: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
) -> Sink:
    """Return the place that ``uri`` (s3://bucket/key or file:///path) names; nothing is asked of the store yet.

    Keys as in ``standby.artifacts.sources.open_source``. Raises InvalidInput; SourceUnreachable when ``options`` name
    stored credentials and none are given.
    """
    if uri.endswith("/"):
        raise InvalidInput(f"{uri!r} names a folder, and an object is to be written", remedy="name the object itself")
    require_opened(credentials, options, f"{uri!r} is to be written")
    if scheme_of(uri) == "s3":
        return S3Sink(parse_s3(uri), options, environment=environment, credentials=credentials)
    return FileSink(parse_file(uri))


class S3Sink(S3Source):
    """One object in S3; follows the bucket into its region as reading does."""

    async def put(self, file: Path, *, overwrite: bool) -> bool:
        """Store the bytes of ``file``. A large one is sent in parts, and then two writers at once may both succeed."""
        key = self._location.key
        large = file.stat().st_size > _CONDITIONAL_BYTES
        if large and not overwrite and await self._head(key) is not None:
            return False

        async def send(store: S3Store) -> bool:
            try:
                await obstore.put_async(
                    store, key, file,
                    mode="overwrite" if overwrite or large else "create",
                    use_multipart=large,
                    chunk_size=_PART_BYTES,
                    max_concurrency=_PARALLEL_PARTS,
                )  # fmt: skip
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

        return await self._ask(send, key)


class FileSink:
    """One file of this machine or of a shared volume."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def put(self, file: Path, *, overwrite: bool) -> bool:
        """Copy ``file`` there; its folders are made."""
        return await uninterrupted(partial(self._put, file, overwrite=overwrite))

    def _put(self, file: Path, *, overwrite: bool) -> bool:
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        try:
            if self._path.exists() and not overwrite:
                return False
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(file, temporary)
                volume.flush(temporary)
                return _appear(temporary, self._path, overwrite=overwrite)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise SourceUnreachable(
                f"{str(self._path)!r} cannot be written: {error.strerror}", remedy="check the path and its permissions"
            ) from None


def _appear(temporary: Path, path: Path, *, overwrite: bool) -> bool:
    """Give a whole file its name in one step; False where another writer was first."""
    try:
        if overwrite:
            temporary.replace(path)
        else:
            os.link(temporary, path)
    except FileExistsError:
        return False
    volume.flush_folder(path.parent)
    return True
