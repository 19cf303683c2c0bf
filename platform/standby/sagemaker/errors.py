"""An error as AWS's clients know it: a code, a status, a message, and members that some errors carry besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from standby.domain import errors


@dataclass(eq=False)  # an exception is itself, not its values: it stays hashable
class AwsError(Exception):
    """``code`` is AWS's name of the error, e.g. ValidationException; ``members`` go into the body beside the message.

    ``retry_after_ms`` becomes ``x-amz-retry-after``, by which SDKs wait before they try again.
    """

    code: str
    message: str | None
    status: int = 400
    members: Mapping[str, Any] = field(default_factory=dict)
    retry_after_ms: int | None = None

    def __str__(self) -> str:
        return f"{self.code} ({self.status}): {self.message}"


def validation(message: str) -> AwsError:
    """Return the control plane's usual refusal."""
    return AwsError("ValidationException", message)


def runtime_validation(message: str) -> AwsError:
    """Return the runtime's usual refusal, which has another name."""
    return AwsError("ValidationError", message)


def internal_failure(request_id: str) -> AwsError:
    """Return the answer for a mistake of ours: the id leads to the log, nothing of the mistake itself is told."""
    return AwsError("InternalFailure", f"An internal error happened; the log has it under request id {request_id}", 500)


# The first class that fits decides; what is not here is a mistake of ours.
_CONTROL: Final[tuple[tuple[type[errors.StandbyError], str, int], ...]] = (
    (errors.RevisionConflict, "ConflictException", 400),
    (errors.Unavailable, "ServiceUnavailable", 503),
    (errors.LeaseLost, "ServiceUnavailable", 503),
    (errors.QueueFull, "ThrottlingException", 400),
    (errors.Forbidden, "AccessDeniedException", 400),
    (errors.NotAuthenticated, "UnrecognizedClientException", 403),
    (errors.InvalidInput, "ValidationException", 400),
    (errors.NotFound, "ValidationException", 400),
    (errors.Conflict, "ValidationException", 400),
    (errors.PayloadTooLarge, "RequestEntityTooLargeException", 413),
    (errors.ArtifactError, "ValidationException", 400),
)


def of_standby(error: errors.StandbyError) -> AwsError | None:
    """Return a platform error as the control plane tells it; None for those that are no caller's business."""
    for kind, code, status in _CONTROL:
        if isinstance(error, kind):
            after = None if error.retry_after_s is None else int(error.retry_after_s * 1000)
            return AwsError(code, str(error), status, retry_after_ms=after)
    return None
