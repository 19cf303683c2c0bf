"""From JSON's values to the types that a shape names; wrong types are refused with the words of AWS's services."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from botocore.model import Shape

from standby.sagemaker.errors import AwsError

_BOUNDS: Final = {"integer": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}
_JAVA_NAMES: Final = {
    "string": "String",
    "integer": "Integer",
    "long": "Long",
    "float": "Float",
    "double": "Double",
    "boolean": "Boolean",
    "timestamp": "Timestamp",
    "blob": "Blob",
}
_LARGEST_FLOAT: Final = 3.4028234663852886e38


def serialization(message: str) -> AwsError:
    """Return the refusal of a body that is not what the shape says."""
    return AwsError("SerializationException", message)


def decode(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; an empty one is an empty object, of equal keys the last counts (as for AWS).

    Raises AwsError SerializationException for anything else, also for what JSON itself does not allow (NaN), for numbers
    and depths beyond any use, and for text that is no Unicode.
    """
    if not body.strip():
        return {}
    try:
        text = body.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            # Half of a surrogate pair is legal in JSON's grammar and breaks whoever writes the text out again.
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise serialization("The body is not UTF-8") from None
    except RecursionError:
        raise serialization("The body is nested too deeply") from None
    except ValueError:
        raise serialization("The body is not valid JSON") from None
    if not isinstance(value, dict):
        raise serialization(f"{_token(value)} where the start of a structure was expected.")
    return value


def coerce(shape: Shape, value: Any) -> Any:
    """Return ``value`` in the shape's type: epoch seconds become datetimes, base64 becomes bytes.

    Members that the shape does not have are left out, and so are nulls in structures. Raises AwsError
    SerializationException.
    """
    match shape.type_name:
        case "structure":
            return _structure(shape, value)
        case "list":
            if not isinstance(value, list):
                raise serialization("Expected list or null")
            return [None if item is None else coerce(shape.member, item) for item in value]
        case "map":
            if not isinstance(value, dict):
                raise serialization("Expected map or null")
            return {key: None if item is None else coerce(shape.value, item) for key, item in value.items()}
        case kind:
            return _scalar(kind, value)


def scalar_of_text(shape: Shape, text: str) -> Any:
    """Return a header's or form's text in the shape's type. Raises AwsError SerializationException."""
    match shape.type_name:
        case "integer" | "long" | "float" | "double":
            try:
                number = json.loads(text, parse_constant=_refuse_constant)
            except (ValueError, RecursionError):
                number = text
            return _scalar(shape.type_name, number)
        case "boolean":
            return _scalar("boolean", {"true": True, "false": False}.get(text.lower(), text))
        case kind:
            return _scalar(kind, text)


def moment(value: Any) -> datetime:
    """Return epoch seconds or an ISO 8601 text as a datetime in UTC. Raises AwsError SerializationException."""
    try:
        if isinstance(value, datetime):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, tz=UTC)
        read = datetime.fromisoformat(value)
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        raise _wrong(value, "timestamp") from None


def _structure(shape: Shape, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise serialization(f"{_token(value)} where the start of a structure was expected.")
    members = shape.members
    return {name: coerce(members[name], item) for name, item in value.items() if item is not None and name in members}


def _scalar(kind: str, value: Any) -> Any:
    if kind in _BOUNDS:
        return _whole(kind, value)
    if kind in {"float", "double"}:
        return _real(kind, value)
    if kind == "timestamp":
        return moment(value)
    if kind == "blob":
        return _blob(value)
    if isinstance(value, bool if kind == "boolean" else str):
        return value
    raise _wrong(value, kind)


def _blob(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _wrong(value, "blob")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise serialization("A Blob is not valid base64") from None


def _whole(kind: str, value: Any) -> int:
    low, high = _BOUNDS[kind]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, kind)
    if isinstance(value, float) and not value.is_integer():
        raise _wrong(value, kind)
    if not low <= value <= high:
        raise serialization(f"A number is out of range for {_JAVA_NAMES[kind]}")
    return int(value)


def _real(kind: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, kind)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or (kind == "float" and abs(number) > _LARGEST_FLOAT):
        raise serialization(f"A number is out of range for {_JAVA_NAMES[kind]}")
    return number


def _wrong(value: Any, kind: str) -> AwsError:
    if isinstance(value, list | dict):
        return serialization(f"{_token(value)} found where not expected.")
    return serialization(f"{_token(value)} can not be converted to {_JAVA_NAMES.get(kind, kind)}")


def _token(value: Any) -> str:
    if isinstance(value, dict):
        return "Start of structure or map"
    if isinstance(value, list):
        return "Start of list"
    if value is None:
        return "NULL_VALUE"
    if isinstance(value, bool):
        return "TRUE_VALUE" if value else "FALSE_VALUE"
    if isinstance(value, str):
        return "STRING_VALUE"
    return "DECIMAL_VALUE" if isinstance(value, float) else "NUMBER_VALUE"


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)
