"""Which operation a request means, in each protocol that arrives at one port, and how its members are read and answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from standby.sagemaker.errors import AwsError, validation
from standby.sagemaker.shapes import cbor
from standby.sagemaker.shapes.answers import answer_json, answer_values
from standby.sagemaker.shapes.faults import Protocol
from standby.sagemaker.shapes.query import parse_form, parse_query
from standby.sagemaker.shapes.requests import parse_json, parse_values
from standby.sagemaker.shapes.services import AUTOSCALING, CLOUDWATCH, SAGEMAKER, STS, service_model
from standby.sagemaker.shapes.xml import answer_query

METHOD_NOT_ALLOWED: Final = 405
# RPC v2: /service/{target prefix}/operation/{operation}
RPC_PREFIX: Final = "/service/"

_FORM: Final = b"application/x-www-form-urlencoded"
_ONCE: Final = frozenset({b"authorization", b"content-encoding", b"content-length", b"content-type", b"host",
                          b"smithy-protocol", b"transfer-encoding"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request as it came; header names in lower case."""

    method: str
    raw_path: bytes
    raw_query: bytes
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """The operation that a request means."""

    service: str
    operation: str
    protocol: Protocol


def protocol_of(path: str, headers: Sequence[tuple[bytes, bytes]]) -> Protocol:
    """Return the protocol by the head alone, so that even a refusal of the body is told in the caller's own."""
    if path.startswith(RPC_PREFIX):
        return "cbor"
    if header(headers, b"x-amz-target") is not None:
        return "json"
    content_type = (header(headers, b"content-type") or b"").partition(b";")[0].strip().lower()
    return "query" if content_type == _FORM else "json"


def check_head(method: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Refuse what two readers of one head could understand in two ways, and every method but POST. Raises AwsError."""
    if method != "POST":
        raise AwsError("UnknownOperationException", "This is the endpoint of AWS clients: use POST", METHOD_NOT_ALLOWED)
    counts = Counter(name for name, _ in headers if name in _ONCE or name.startswith(b"x-amz-"))
    for name, count in counts.items():
        if count > 1:
            raise validation(f"The header {name.decode('latin-1')} was sent more than once")
    if b"content-length" in counts and b"transfer-encoding" in counts:
        raise validation("A request has a content-length or a transfer-encoding, not both")
    if b"content-encoding" in counts and header(headers, b"content-encoding") not in (b"identity", b""):
        raise validation("Bodies with a content-encoding are not read here")


def header(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the value of a header, or None; ``name`` in lower case."""
    return next((value for key, value in headers if key == name), None)


def asked_by(arrival: Arrival, served: Container[tuple[str, str]]) -> Asked:
    """Return the operation that is meant. Raises AwsError UnknownOperationException, also for those not ``served``."""
    path = arrival.raw_path.decode("latin-1").partition("?")[0]
    match protocol_of(path, arrival.headers):
        case "cbor":
            asked = _of_path(path)
        case "query":
            asked = _of_form(arrival.body)
        case _:
            asked = _of_target((header(arrival.headers, b"x-amz-target") or b"").decode("latin-1"))
    if (asked.service, asked.operation) not in served:
        raise _unknown(asked.operation)
    return asked


def request_of(asked: Asked, arrival: Arrival) -> dict[str, Any]:
    """Return the checked members of the request. Raises AwsError SerializationException or ValidationException."""
    if asked.protocol == "query":
        return parse_query(asked.service, asked.operation, parse_form(arrival.body))
    if asked.protocol == "cbor":
        return parse_values(asked.service, asked.operation, cbor.decode(arrival.body))
    return parse_json(asked.service, asked.operation, arrival.body)


def answer_of(asked: Asked, output: Mapping[str, Any], request_id: str) -> bytes:
    """Return the body of the answer. Raises ShapeMismatch."""
    if asked.protocol == "query":
        return answer_query(asked.service, asked.operation, output, request_id)
    if asked.protocol == "cbor":
        return cbor.encode(answer_values(asked.service, asked.operation, output))
    return answer_json(asked.service, asked.operation, output)


def _of_target(target: str) -> Asked:
    prefix, _, name = target.rpartition(".")
    service = _by_prefix().get(prefix)
    if service is None:
        raise _unknown(target)
    return Asked(service, name, "json")


def _of_path(path: str) -> Asked:
    parts = path.split("/")
    if len(parts) != 5 or parts[3] != "operation" or parts[2] not in _by_prefix():
        raise _unknown(path)
    return Asked(_by_prefix()[parts[2]], parts[4], "cbor")


def _of_form(body: bytes) -> Asked:
    form = parse_form(body)
    name, version = form.get("Action", ""), form.get("Version", "")
    service = _by_version().get(version)
    if service is None:
        raise AwsError("InvalidAction", f"Could not find operation {name[:80]} for version {version[:40]}")
    return Asked(service, name, "query")


@cache
def _by_prefix() -> dict[str, str]:
    return {service_model(name).metadata["targetPrefix"]: name for name in (SAGEMAKER, AUTOSCALING, CLOUDWATCH)}


@cache
def _by_version() -> dict[str, str]:
    return {service_model(name).api_version: name for name in (STS, CLOUDWATCH)}


def _unknown(name: str) -> AwsError:
    told = f"The operation {name[:200]} is not known here" if name else "The header X-Amz-Target is missing"
    return AwsError("UnknownOperationException", told)
