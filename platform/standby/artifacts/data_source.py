"""SageMaker's ways to say where a model lies, mapped onto our URIs. Pure.

Source: the shapes ``S3ModelDataSource``, ``ModelDataSource`` and ``ContainerDefinition`` of the SageMaker API.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from standby.artifacts.location import archive_name, parse_s3
from standby.domain.errors import InvalidInput


class SourceHint(StrEnum):
    """What the caller says about the URI, beyond what it shows itself."""

    FOLDER = "folder"
    OBJECT = "object"
    ARCHIVE = "archive"


_KINDS: Final[Mapping[tuple[str, str], SourceHint]] = {
    ("S3Prefix", "None"): SourceHint.FOLDER,
    ("S3Object", "None"): SourceHint.OBJECT,
    ("S3Object", "Gzip"): SourceHint.ARCHIVE,
}
# ModelAccessConfig holds the acceptance of a licence, which is between the caller and the model's owner.
_KNOWN: Final = frozenset({"S3Uri", "S3DataType", "CompressionType", "ModelAccessConfig"})


def from_s3_data_source(data: Mapping[str, Any]) -> tuple[str, SourceHint]:
    """Return the URI and the kind of source that ``data`` names.

    ``data`` is a ``S3DataSource``, or holds one of ``S3DataSource``, ``ModelDataSource`` and ``ModelDataUrl``. Raises
    InvalidInput for contradictions, unknown values and what is not supported, naming the field.
    """
    given = [name for name in ("ModelDataUrl", "ModelDataSource", "S3DataSource", "S3Uri") if data.get(name) is not None]
    if len(given) != 1:
        what = f"{' and '.join(given)} are both there" if given else "there is neither ModelDataUrl nor ModelDataSource"
        raise InvalidInput(f"model data: {what}", remedy="give exactly one of ModelDataUrl and ModelDataSource")
    if given == ["ModelDataUrl"]:
        uri = _uri(data["ModelDataUrl"], "ModelDataUrl")
        if uri.endswith("/"):
            raise InvalidInput(
                f"ModelDataUrl {uri!r} ends in '/', and names a gzip archive",
                remedy="for a folder use ModelDataSource with S3DataType S3Prefix and CompressionType None",
            )
        return uri, SourceHint.ARCHIVE
    if given == ["S3Uri"]:
        return _s3_data_source(data)
    inner = data[given[0]]
    if not isinstance(inner, Mapping):
        raise InvalidInput(f"{given[0]} is no object", remedy="give it the fields S3DataType, CompressionType and S3Uri")
    return from_s3_data_source(inner)


def _s3_data_source(data: Mapping[str, Any]) -> tuple[str, SourceHint]:
    uri = _uri(data["S3Uri"], "S3Uri")
    kind, compression = data.get("S3DataType"), data.get("CompressionType")
    missing = [name for name, value in (("S3DataType", kind), ("CompressionType", compression)) if value is None]
    if missing:
        raise InvalidInput(f"S3DataSource has no {' and no '.join(missing)}", remedy="e.g. S3Prefix and the word None")
    hint = _KINDS.get((str(kind), str(compression)))
    if hint is None:
        raise InvalidInput(
            f"S3DataType {str(kind)[:40]!r} with CompressionType {str(compression)[:40]!r} is not possible",
            remedy="use S3Prefix with None, S3Object with None, or S3Object with Gzip",
        )
    unknown = sorted(name for name, value in data.items() if name not in _KNOWN and value is not None)
    if unknown:
        raise InvalidInput(f"S3DataSource: {', '.join(unknown)[:200]} not supported", remedy="leave these fields out")
    if hint is SourceHint.FOLDER and not uri.endswith("/"):
        raise InvalidInput(f"S3Uri {uri!r} with S3DataType S3Prefix does not end in '/'", remedy=f"write {uri}/")
    if hint is not SourceHint.FOLDER and uri.endswith("/"):
        raise InvalidInput(
            f"S3Uri {uri!r} with S3DataType S3Object ends in '/'", remedy="name one object, or use S3DataType S3Prefix"
        )
    if hint is SourceHint.OBJECT and archive_name(uri):
        raise InvalidInput(
            f"S3Uri {uri!r} names an archive, which CompressionType None leaves packed", remedy="use CompressionType Gzip"
        )
    return uri, hint


def _uri(value: object, field: str) -> str:
    if not isinstance(value, str) or not value.startswith("s3://"):
        raise InvalidInput(f"{field} {str(value)[:200]!r} is no s3:// URI", remedy="write s3://bucket/key")
    parse_s3(value)
    return value
