"""The runtime's paths and what a request's headers ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from standby.domain.durations import parse_duration
from standby.domain.errors import InvalidInput
from standby.sagemaker.errors import runtime_validation
from standby.sagemaker.runtime.contract import Headers
from standby.sagemaker.shapes.requests import parse_rest

PREFIX: Final = "/endpoints/"
_INVOCATIONS: Final = "/invocations"
_STREAM: Final = "/invocations-response-stream"
_ASYNC: Final = "/async-invocations"
_OPENAI: Final = "/openai/v1/chat/completions"
_COMPONENTS: Final = "/inference-components/"

_MAX_HEARTBEAT_S: Final = 60.0
_MIN_HEARTBEAT_S: Final = 0.1
_OWN: Final = b"x-amzn-sagemaker-"
# The model wants one; what is in it is not looked at here.
_ANY_BODY: Final = b"{}"
# Longer than any path with legal names.
_LONGEST_REMEMBERED: Final = 256
# What a container is shown of the caller's headers, besides content type and accept.
_SHOWN: Final = frozenset(
    {
        b"traceparent",
        b"tracestate",
        b"x-amzn-sagemaker-custom-attributes",
        b"x-amzn-sagemaker-inference-id",
        b"x-amzn-sagemaker-session-id",
    }
)


class Operation(StrEnum):
    """Which operation, by AWS's name where it has one."""

    INVOKE = "InvokeEndpoint"
    STREAM = "InvokeEndpointWithResponseStream"
    ASYNC = "InvokeEndpointAsync"
    OPENAI = "OpenAI"


_OPERATIONS: Final = {
    _INVOCATIONS: Operation.INVOKE,
    _STREAM: Operation.STREAM,
    _ASYNC: Operation.ASYNC,
    _OPENAI: Operation.OPENAI,
}


class RuntimeRoute(NamedTuple):
    """A path, taken apart."""

    operation: Operation
    endpoint: str
    component: str | None = None


def route_of(path: str) -> RuntimeRoute | None:
    """Return what a decoded path asks for, or None where it is none of the runtime's."""
    # Nobody has shown a key yet: long paths of strangers are not remembered.
    return _remembered(path) if len(path) <= _LONGEST_REMEMBERED else _taken_apart(path)


def _taken_apart(path: str) -> RuntimeRoute | None:
    if not path.startswith(PREFIX):
        return None
    endpoint, slash, rest = path[len(PREFIX) :].partition("/")
    rest = slash + rest
    operation = _OPERATIONS.get(rest)
    if operation is not None:
        return RuntimeRoute(operation, endpoint)
    if rest.startswith(_COMPONENTS) and rest.endswith(_OPENAI):
        component = rest[len(_COMPONENTS) : -len(_OPENAI)]
        if component and "/" not in component:
            return RuntimeRoute(Operation.OPENAI, endpoint, component)
    return None


_remembered: Final = lru_cache(maxsize=1024)(_taken_apart)


def check_name(route: RuntimeRoute) -> None:
    """Say so where a name can be no endpoint's. Raises AwsError ValidationError."""
    parse_rest(Operation.INVOKE.value, path={"EndpointName": route.endpoint}, headers=(), body=_ANY_BODY)


class Wishes(NamedTuple):
    """What the headers of a request ask for, checked against AWS's model of the operation."""

    variant: str | None = None
    session: str | None = None
    component: str | None = None


_NONE: Final = Wishes()


def wishes(route: RuntimeRoute, headers: Sequence[tuple[bytes, bytes]]) -> Wishes:
    """Return the wishes of a request. Raises AwsError ValidationError for what breaks the model and for what is not served."""
    # Parsing by shape costs a request as much as all the rest of the way: most have none of these headers.
    for name, _ in headers:
        if name.startswith(_OWN):
            break
    else:
        return _NONE
    if route.operation is Operation.OPENAI:
        if any(name == b"x-amzn-sagemaker-inference-component" for name, _ in headers):
            raise runtime_validation(
                "Inference Component Name header is not allowed on this route; name it in the path: "
                f"/endpoints/{route.endpoint}/inference-components/NAME/openai/v1/chat/completions"
            )
        return _NONE
    asked = parse_rest(route.operation.value, path={"EndpointName": route.endpoint}, headers=headers, body=_ANY_BODY)
    _refuse_unserved(asked, route.endpoint)
    return Wishes(asked.get("TargetVariant"), asked.get("SessionId"), asked.get("InferenceComponentName"))


def _refuse_unserved(asked: Mapping[str, Any], endpoint: str) -> None:
    if "TargetModel" in asked:
        raise runtime_validation(
            f"Endpoint {endpoint} is not a multi-model endpoint and does not support target model header "
            f"{asked['TargetModel']}."
        )
    if "TargetContainerHostname" in asked:
        raise runtime_validation(
            f"Endpoint {endpoint} is not a multi-container endpoint with direct invocation and does not support target "
            f"container hostname header {asked['TargetContainerHostname']}."
        )
    if "EnableExplanations" in asked:
        raise runtime_validation(f"Endpoint {endpoint} has no explainer and does not support enable explanations header.")


def container_headers(route: RuntimeRoute, headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Return the headers that a container is shown: the operation's own spelling of Accept becomes the plain one."""
    accept = b"x-amzn-sagemaker-accept" if route.operation is Operation.STREAM else b"accept"
    shown: Headers = []
    for name, value in headers:
        if name == b"content-type" or name in _SHOWN:
            shown.append((name, value))
        elif name == accept:
            shown.append((b"accept", value))
    return shown


def heartbeat_of(header: bytes | None, tag: str | None) -> float | None:
    """Return the seconds between heartbeats that the header, else the endpoint's tag, asks for; None: no heartbeats.

    Raises AwsError ValidationError.
    """
    text = tag if header is None else header.decode("latin-1")
    if text is None or text.strip() in ("", "0", "off"):
        return None
    try:
        seconds = parse_duration(text.strip())
    except InvalidInput as error:
        raise runtime_validation(f"heartbeat: {error}") from None
    if not _MIN_HEARTBEAT_S <= seconds <= _MAX_HEARTBEAT_S:
        raise runtime_validation(f"heartbeat {text[:40]!r} is not between {_MIN_HEARTBEAT_S:g} s and {_MAX_HEARTBEAT_S:g} s")
    return seconds
