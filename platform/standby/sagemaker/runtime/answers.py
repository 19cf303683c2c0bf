"""What went wrong, in the runtime's words: AWS's errors with their codes, statuses and members, or OpenAI's envelope. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import pydantic_core

from standby.domain.errors import (
    ColdWaitExceeded,
    EndpointFailed,
    EndpointNotFound,
    EngineDied,
    EngineError,
    Forbidden,
    InvalidInput,
    InvocationTimeout,
    NotAuthenticated,
    PayloadTooLarge,
    PoisonRequest,
    QueueFull,
    StandbyError,
    Throttled,
    Unavailable,
    VariantNotFound,
)
from standby.sagemaker.auth import refusals
from standby.sagemaker.errors import AwsError, runtime_validation
from standby.sagemaker.runtime.contract import ContainerAnswered, Headers

CLIENT_ERROR: Final = "CLIENT_ERROR_FROM_MODEL"
SERVER_ERROR: Final = "INTERNAL_FAILURE_FROM_MODEL"
NO_SUCH_ENDPOINT: Final = "NO_SUCH_ENDPOINT"
MAX_ORIGINAL_MESSAGE: Final = 16 * 1024
_DEFAULT_RETRY_S: Final = 1.0

TIMED_OUT: Final = (
    "Your invocation timed out while waiting for a response from container primary. "
    "Review the latency metrics for each container, resolve the issue, and try again."
)


# The first class that fits decides.
_NAMES: Final[tuple[tuple[type[StandbyError] | tuple[type[StandbyError], ...], str, int], ...]] = (
    ((Throttled, QueueFull), "ThrottlingException", 400),
    (ColdWaitExceeded, "ModelNotReadyException", 429),
    ((PayloadTooLarge, InvalidInput, VariantNotFound), "ValidationError", 400),
    (Forbidden, "AccessDeniedException", 400),
    (Unavailable, "ServiceUnavailable", 503),
)
# What AWS tells as a container's failure and is the platform's own word: OpenAI's clients get our status.
_OUR_STATUS: Final[Mapping[str, int]] = MappingProxyType(
    {kind.code: kind.http_status for kind in (EndpointFailed, EngineDied, EngineError, InvocationTimeout, PoisonRequest)}
)
# Errors that have a code of ours on the OpenAI route; a container's own, and what AWS validates, have AWS's there.
_OUR_CODES: Final = frozenset({"ModelError", "ThrottlingException", "ModelNotReadyException", "ServiceUnavailable"})
_RETRIED: Final = frozenset({"ThrottlingException", "ModelNotReadyException", "ServiceUnavailable"})


class Place:
    """Where a request was going: it fills in names and ARNs."""

    __slots__ = ("endpoint", "region", "tenant")

    def __init__(self, region: str, tenant: str, endpoint: str) -> None:
        self.region = region
        self.tenant = tenant
        self.endpoint = endpoint

    @property
    def log_stream_arn(self) -> str:
        """The log group of the endpoint, under the name that AWS gives it."""
        return f"arn:aws:logs:{self.region}:{self.tenant}:log-group:/aws/sagemaker/Endpoints/{self.endpoint}"

    @property
    def arn(self) -> str:
        """The endpoint's ARN."""
        return f"arn:aws:sagemaker:{self.region}:{self.tenant}:endpoint/{self.endpoint}"


def aws_error(error: StandbyError, place: Place) -> AwsError:
    """Return one of the domain's errors as AWS's runtime would call it, with our own code and remedy beside AWS's members.

    What a retry may mend is what SDKs repeat (throttling, 5xx), what it cannot is a ModelError or ValidationError, which
    they do not (field case B46).
    """
    told = _named(error, place)
    members = {**told.members, "StandbyCode": error.code, **({"Remedy": error.remedy} if error.remedy else {})}
    return replace(told, members=members)


def _named(error: StandbyError, place: Place) -> AwsError:
    if isinstance(error, InvocationTimeout):
        return model_error(0, TIMED_OUT, place)
    if isinstance(error, (EndpointFailed, EngineError)):
        after = None if error.retry_after_s is None else _retry_ms(error)
        return replace(model_error(500, error.message, place), retry_after_ms=after)
    if isinstance(error, EndpointNotFound):
        return not_found(place)
    if isinstance(error, NotAuthenticated):
        return refusals.unknown_client()
    for kinds, code, status in _NAMES:
        if isinstance(error, kinds):
            after = _retry_ms(error) if code in _RETRIED else None
            return AwsError(code, error.message, status, retry_after_ms=after)
    return AwsError("InternalFailure", error.message, 500)


def not_found(place: Place) -> AwsError:
    """No endpoint of that name in the caller's account, in the same words whether another account has one."""
    members = {"ErrorCode": NO_SUCH_ENDPOINT}
    return AwsError("ValidationError", f"Endpoint {place.endpoint} of account {place.tenant} not found.", members=members)


def too_large(size: int, limit: int, what: str) -> AwsError:
    """A body above its limit."""
    return runtime_validation(f"The {what} of {size} bytes is above the limit of {limit} bytes ({limit / 2**20:g} MiB).")


def container_error(answered: ContainerAnswered, place: Place) -> AwsError:
    """The engine's own error, as AWS tells of a container's."""
    return model_error(answered.status, answered.body.decode("utf-8", "replace"), place)


def model_error(status: int, message: str, place: Place) -> AwsError:
    """Return a ModelError; ``status`` is what the container answered, 0 where it did not answer in time."""
    kind, code = ("client", CLIENT_ERROR) if 400 <= status < 500 else ("server", SERVER_ERROR)
    original = message[:MAX_ORIGINAL_MESSAGE]
    return AwsError(
        "ModelError",
        f'Received {kind} error ({status}) from primary with message "{original}". '
        f"See /aws/sagemaker/Endpoints/{place.endpoint} in account {place.tenant} for more information.",
        424,
        {
            "ErrorCode": code,
            "OriginalStatusCode": status,
            "OriginalMessage": original,
            "LogStreamArn": place.log_stream_arn,
        },
    )


def openai_answer(error: AwsError) -> tuple[int, Headers, bytes]:
    """Return status, headers and body of an error on the OpenAI route.

    OpenAI's clients know 429 for throttling, where AWS's have 400; a container's error keeps the container's own status. An
    error of the platform's own has our code, and where AWS would tell it as a container's, our status, too: what an engine
    has died of must not look like what a client repeats.
    """
    model = error.code == "ModelError"
    ours = str(error.members.get("StandbyCode") or "") if error.code in _OUR_CODES else ""
    status = error.status
    if error.code in ("ThrottlingException", "ModelNotReadyException"):
        status = 429
    elif model and ours in _OUR_STATUS:
        status = _OUR_STATUS[ours]
    elif model:
        original = int(error.members.get("OriginalStatusCode") or 504)
        status = original if 400 <= original < 600 else 502
    kind = "invalid_request_error" if status < 500 else "server_error"
    message = error.members.get("OriginalMessage") if model else error.message
    content: dict[str, Any] = {
        "message": _inner_message(str(message or error.code)),
        "type": kind,
        "param": None,
        "code": ours or ("model_error" if model else "validation_error" if status < 500 else error.code),
    }
    headers = []
    if error.retry_after_ms is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_ms / 1000))).encode()))
    return status, headers, pydantic_core.to_json({"error": content})


def _inner_message(text: str) -> str:
    """Return the message inside an engine's own error envelope, or the text as it is."""
    try:
        content = pydantic_core.from_json(text)
    except ValueError:
        return text
    error = content.get("error") if isinstance(content, dict) else None
    return str(error["message"]) if isinstance(error, dict) and error.get("message") else text


def _retry_ms(error: StandbyError) -> int:
    return int(1000 * (error.retry_after_s or _DEFAULT_RETRY_S))
