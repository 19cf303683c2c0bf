"""One small protocol in front of every store, and the function that opens it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from typing_extensions import Buffer

from standby.artifacts.credentials import Credentials, require_opened
from standby.artifacts.files import FileSource
from standby.artifacts.location import parse_file, parse_s3, scheme_of
from standby.artifacts.s3 import S3Source
from standby.domain.model import ObjectRef, SourceOptions


class Source(Protocol):
    """A store seen from one URI. Nothing of the store's own errors leaves it."""

    @property
    def where(self) -> str:
        """The place in words, for messages: e.g. ``bucket 'b', prefix 'm7/'``."""

    async def list(self) -> list[ObjectRef]:
        """Return every object below the URI, zero-byte ones included, ordered by path.

        Raises SourceUnreachable; UnsupportedArtifact for keys that are no legal paths.
        """

    async def pin(self, ref: ObjectRef) -> ObjectRef | None:
        """Return ``ref`` with the ETag and version the store gives when asked for it; None when it is a folder marker.

        Raises SourceUnreachable, also when it may be listed and not read.
        """

    async def read(self, ref: ObjectRef, start: int, length: int) -> Buffer:
        """Return exactly ``length`` bytes from ``start``, of the very object that ``ref`` describes.

        Raises ArtifactChanged when it is another one now; SourceInterrupted when another attempt may help;
        SourceUnreachable when not.
        """

    def read_blocking(self, ref: ObjectRef, start: int, length: int) -> Buffer:
        """Do ``read`` without an event loop, for parsers in a thread."""

    def pieces(self, ref: ObjectRef, start: int, length: int) -> Iterator[Buffer]:
        """Yield the same bytes as they come, about ``PIECE_BYTES`` at a time, in a thread; raises also between pieces."""


class OpenedSource(Source, Protocol):
    """A source that was opened by its URI."""

    @property
    def options(self) -> SourceOptions:
        """How the store was reached: as asked for, but with the region in which the bucket was found."""


def open_source(
    uri: str,
    options: SourceOptions,
    *,
    environment: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
) -> OpenedSource:
    """Return the source that ``uri`` names; nothing is asked of the store yet, nor of whoever holds the keys.

    ``credentials`` win; else ``environment`` holds them, else they are found as the AWS SDK finds them. Raises
    InvalidInput; SourceUnreachable when ``options`` name stored credentials and none are given.
    """
    require_opened(credentials, options, f"{uri!r} is to be read")
    if scheme_of(uri) == "s3":
        return S3Source(parse_s3(uri), options, environment=environment, credentials=credentials)
    return FileSource(parse_file(uri), options)
