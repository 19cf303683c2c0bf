"""Requests by shape: AWS JSON 1.1 of the control plane and the headers of the runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from botocore.model import Shape

from standby.sagemaker.errors import AwsError, runtime_validation, validation
from standby.sagemaker.shapes import constraints
from standby.sagemaker.shapes.coercion import coerce, decode, scalar_of_text
from standby.sagemaker.shapes.services import RUNTIME, operation

Style = Literal["control", "runtime"]


def parse_json(service: str, name: str, body: bytes) -> dict[str, Any]:
    """Return the members of an AWS JSON request, in the model's spelling: epoch seconds as datetimes, nulls left out.

    Raises AwsError SerializationException where the body is not of the shape, ValidationException where it breaks rules.
    """
    return parse_values(service, name, decode(body))


def parse_values(service: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a request that was decoded already. Raises as ``parse_json`` does."""
    shape = operation(service, name).input_shape
    if shape is None:
        return {}
    request: dict[str, Any] = coerce(shape, given)
    check(shape, request)
    return request


def check(shape: Shape, value: Mapping[str, Any], *, style: Style = "control") -> None:
    """Check a coerced request. Raises AwsError ValidationException (ValidationError on the runtime), all faults in one."""
    broken = constraints.violations(shape, value)
    if broken:
        raise (validation if style == "control" else runtime_validation)(constraints.message(broken))


def broken(path: str, value: Any, rule: str) -> AwsError:
    """Return the refusal for one rule that AWS has and its model has not, e.g. memory in steps of 1024."""
    return validation(constraints.message([constraints.told(path, value, rule)]))


def parse_rest(name: str, *, path: Mapping[str, str], headers: Sequence[tuple[bytes, bytes]], body: bytes) -> dict[str, Any]:
    """Return the members of a request of the runtime.

    ``path`` holds the labels of the URI, decoded; header names are in lower case, as ASGI has them. Headers that the
    operation does not know are left out, and so is an empty body. Raises AwsError ValidationError.
    """
    shape = operation(RUNTIME, name).input_shape
    by_header, labels, payload = _places(name)
    request: dict[str, Any] = {member: path[label] for label, member in labels.items() if label in path}
    for header, value in headers:
        member = by_header.get(header)
        if member is None:
            continue
        if member in request:
            raise runtime_validation(f"The header {header.decode('latin-1')} was sent more than once")
        request[member] = _of_text(shape.members[member], header, value.decode("latin-1"))
    if payload is not None and body:
        request[payload] = body
    check(shape, request, style="runtime")
    return request


def _of_text(shape: Shape, header: bytes, text: str) -> Any:
    try:
        return scalar_of_text(shape, text)
    except AwsError as error:
        raise runtime_validation(f"The header {header.decode('latin-1')} is not valid: {error.message}") from None


@cache
def _places(name: str) -> tuple[dict[bytes, str], dict[str, str], str | None]:
    """Return members by header (lower case) and by label of the URI, and the member that is the body."""
    shape = operation(RUNTIME, name).input_shape
    headers: dict[bytes, str] = {}
    labels: dict[str, str] = {}
    for member, own in shape.members.items():
        where = own.serialization
        if where.get("location") == "header":
            headers[where["name"].lower().encode()] = member
        elif where.get("location") == "uri":
            labels[where["name"]] = member
    return headers, labels, shape.serialization.get("payload")
