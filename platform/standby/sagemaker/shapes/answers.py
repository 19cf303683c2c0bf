"""Answers by shape: JSON bodies and headers; a member that the shape does not have is a mistake of ours."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from botocore.model import Shape

from standby.sagemaker.shapes.services import RUNTIME, operation

Headers = list[tuple[bytes, bytes]]

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "timestamp": (datetime, int, float),
    "blob": (bytes,),
}
_IN_THE_HEAD: Final = frozenset({"header", "headers", "statusCode"})


class ShapeMismatch(ValueError):
    """An answer that its shape does not allow: a mistake in our code, never the caller's."""


def answer_json(service: str, name: str, output: Mapping[str, Any]) -> bytes:
    """Return the body of an answer; datetimes become epoch seconds, None is left out. Raises ShapeMismatch."""
    shape = operation(service, name).output_shape
    if shape is None:
        if output:
            raise ShapeMismatch(f"{name} answers nothing, it was given {sorted(output)}")
        return b""
    return _dump(plain(shape, output, name))


def answer_values(service: str, name: str, output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked members of an answer with datetimes and bytes as they are, for CBOR. Raises ShapeMismatch."""
    shape = operation(service, name).output_shape
    return {} if shape is None else plain(shape, output, name, moments=True)


def rest_headers(name: str, output: Mapping[str, Any]) -> Headers:
    """Return the headers of an answer of the runtime; members that lie in the body are left to it. Raises ShapeMismatch."""
    shape = operation(RUNTIME, name).output_shape
    found: Headers = []
    for member, value in output.items():
        own = _member(shape, member, name)
        if value is None or own.serialization.get("location") != "header":
            continue
        text = str(value)
        if not text.isprintable():
            raise ShapeMismatch(f"{name}.{member} holds characters that no header may hold")
        found.append((own.serialization["name"].encode(), text.encode("latin-1", "replace")))
    return found


def rest_body(name: str, output: Mapping[str, Any]) -> bytes:
    """Return the JSON body of an answer of the runtime: the members that are no headers. Raises ShapeMismatch."""
    shape = operation(RUNTIME, name).output_shape
    inside = {
        member: value
        for member, value in output.items()
        if _member(shape, member, name).serialization.get("location") not in _IN_THE_HEAD
    }
    return _dump(plain(shape, inside, name))


def plain(shape: Shape, value: Any, path: str, *, moments: bool = False) -> Any:
    """Return a value of the shape as JSON has it, or with ``moments`` with datetimes and bytes. Raises ShapeMismatch."""
    match shape.type_name:
        case "structure":
            if not isinstance(value, Mapping):
                raise _mismatch(path, value, shape)
            return {
                name: plain(_member(shape, name, path), item, f"{path}.{name}", moments=moments)
                for name, item in value.items()
                if item is not None
            }
        case "list":
            if not isinstance(value, list | tuple):
                raise _mismatch(path, value, shape)
            return [plain(shape.member, item, f"{path}[]", moments=moments) for item in value]
        case "map":
            if not isinstance(value, Mapping):
                raise _mismatch(path, value, shape)
            return {str(key): plain(shape.value, item, f"{path}.{key}", moments=moments) for key, item in value.items()}
        case _:
            return _scalar(shape, value, path, moments=moments)


def _scalar(shape: Shape, value: Any, path: str, *, moments: bool) -> Any:
    kind: str = shape.type_name
    fits = isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if not fits:
        raise _mismatch(path, value, shape)
    if kind == "timestamp":
        exact = value if isinstance(value, datetime) else datetime.fromtimestamp(value, UTC)
        return exact if moments else exact.timestamp()
    if kind == "blob" and not moments:
        return base64.b64encode(value).decode()
    return str(value) if kind == "string" else value


def _member(shape: Shape, name: str, path: str) -> Shape:
    if shape is None or name not in shape.members:
        raise ShapeMismatch(f"{path} has no member {name}")
    return shape.members[name]


def _mismatch(path: str, value: Any, shape: Shape) -> ShapeMismatch:
    return ShapeMismatch(f"{path} is a {shape.type_name}, it was given a {type(value).__name__}")


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
