"""Where an artifact is: ``s3://bucket/prefix/``, one object, an archive, and ``file:///`` of all of these."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from standby.domain.errors import InvalidInput, SourceUnreachable, UnsupportedArtifact

PIECE_BYTES: Final = 1 << 20
"""Of a download, what is in memory at a time for each connection, or twice that."""

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_MAX_NAME_BYTES: Final = 255
_ARCHIVES: Final = (".tar.gz", ".tgz", ".tar")
_REMEDY: Final = "write s3://bucket/prefix/, s3://bucket/model.gguf, s3://bucket/model.tar.gz or file:///absolute/path"


class SourceInterrupted(SourceUnreachable):
    """A store did not answer, or broke off when it had ``begun``; another attempt may succeed."""

    begun = False


@dataclass(frozen=True)
class S3Location:
    """A bucket and a key; ``folder`` is true when the URI ends in a slash and can only mean a prefix."""

    bucket: str
    key: str
    folder: bool

    @property
    def prefix(self) -> str:
        """The prefix to list: with its trailing slash, so that ``m7-instruct/`` is never taken for ``m7``."""
        return f"{self.key}/" if self.key else ""


def parse_s3(uri: str) -> S3Location:
    """Return what ``s3://…`` names. Raises InvalidInput."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise InvalidInput(f"{uri!r} has no legal bucket name: {bucket!r}", remedy=_REMEDY)
    trimmed = key.removesuffix("/")
    if trimmed and not is_clean(trimmed):
        raise InvalidInput(f"{uri!r}: the key may not hold empty, '.' or '..' parts or control characters", remedy=_REMEDY)
    return S3Location(bucket=bucket, key=trimmed, folder=key.endswith("/") or not key)


def parse_file(uri: str) -> Path:
    """Return the absolute path that ``file:///…`` names. Raises InvalidInput."""
    path = unquote(uri.removeprefix("file://"))
    if not path.startswith("/") or "\0" in path:
        raise InvalidInput(f"{uri!r} does not name an absolute path on this machine", remedy=_REMEDY)
    return Path(path)


def scheme_of(uri: str) -> str:
    """Return ``s3`` or ``file``. Raises InvalidInput for any other scheme."""
    scheme, found, _ = uri.partition("://")
    if not found or scheme not in {"s3", "file"}:
        raise InvalidInput(f"source {uri[:200]!r} is neither s3:// nor file://", remedy=_REMEDY)
    return scheme


def archive_name(path: str) -> bool:
    """Return True when the path or URI ends as tar archives do."""
    return path.lower().endswith(_ARCHIVES)


def checked_path(path: str) -> str:
    """Return ``path`` if it can only name something below the artifact's own folder.

    Raises UnsupportedArtifact for an absolute path, ``..``, empty parts, backslashes, control characters and names
    that no file system takes.
    """
    too_long = any(len(part.encode()) > _MAX_NAME_BYTES for part in path.split("/"))
    if not is_clean(path) or "\\" in path or too_long:
        raise UnsupportedArtifact(
            f"object path {path[:200]!r} would not stay inside the artifact's folder or is no legal file name",
            remedy="rename the object and register again",
        )
    return path


def is_clean(path: str) -> bool:
    """Return True when ``path`` is relative, with no empty, ``.`` or ``..`` part and no control character."""
    return not _CONTROL.search(path) and all(part not in {"", ".", ".."} for part in path.split("/"))
