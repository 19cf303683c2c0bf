"""Answers of AWS's query protocol, which is XML: by shape, every value escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from xml.sax.saxutils import escape

from botocore.model import Shape

from standby.sagemaker.shapes.answers import plain
from standby.sagemaker.shapes.services import operation, service_model

_NOT_IN_XML: Final = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 65534, 65535, *range(55296, 57344)))


def answer_query(service: str, name: str, output: Mapping[str, Any], request_id: str) -> bytes:
    """Return the document of an answer. Raises ShapeMismatch."""
    shape = operation(service, name).output_shape
    namespace = service_model(service).metadata["xmlNamespace"]
    result = ""
    if shape is not None:
        wrapper = shape.serialization.get("resultWrapper", f"{name}Result")
        inside = "".join(_members(shape, plain(shape, output, name, moments=True)))
        result = f"<{wrapper}>{inside}</{wrapper}>"
    end = f"<ResponseMetadata><RequestId>{_text(request_id)}</RequestId></ResponseMetadata>"
    return f'<{name}Response xmlns="{_text(namespace)}">{result}{end}</{name}Response>'.encode()


def error_document(code: str, message: str, *, sender: bool, request_id: str) -> bytes:
    """Return the document of an error; ``sender`` says that the caller must change something."""
    kind = "Sender" if sender else "Receiver"
    error = f"<Error><Type>{kind}</Type><Code>{_text(code)}</Code><Message>{_text(message)}</Message></Error>"
    return f"<ErrorResponse>{error}<RequestId>{_text(request_id)}</RequestId></ErrorResponse>".encode()


def _members(shape: Shape, value: Mapping[str, Any]) -> Iterator[str]:
    for name, item in value.items():
        own = shape.members[name]
        yield from _element(own.serialization.get("name", name), own, item)


def _element(tag: str, shape: Shape, value: Any) -> Iterator[str]:
    match shape.type_name:
        case "structure":
            yield f"<{tag}>{''.join(_members(shape, value))}</{tag}>"
        case "list":
            inner = shape.member.serialization.get("name", "member")
            flat = shape.serialization.get("flattened", False)
            items = "".join("".join(_element(tag if flat else inner, shape.member, item)) for item in value)
            yield items if flat else f"<{tag}>{items}</{tag}>"
        case "timestamp":
            moment: datetime = value.astimezone(UTC)
            yield f"<{tag}>{moment.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z</{tag}>"
        case "boolean":
            yield f"<{tag}>{'true' if value else 'false'}</{tag}>"
        case _:
            yield f"<{tag}>{_text(str(value))}</{tag}>"


def _text(value: str) -> str:
    return escape(value.translate(_NOT_IN_XML), {'"': "&quot;"})
