"""What becomes of an asynchronous invocation, as it is written and told. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import pydantic_core

from standby.domain.async_invocation import AsyncInvocation
from standby.domain.errors import PayloadTooLarge, SourceUnreachable, StandbyError
from standby.domain.events import AsyncInvocationEnded
from standby.sagemaker.errors import AwsError, runtime_validation
from standby.sagemaker.runtime import answers
from standby.sagemaker.runtime.answers import Place
from standby.sagemaker.runtime.contract import Answer, ContainerAnswered

MAX_REASON = 1024
_BINARY = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``reason`` is empty where it went well."""

    content: bytes
    content_type: str
    reason: str = ""

    @property
    def good(self) -> bool:
        """Whether it is a result."""
        return not self.reason


def completed(answer: Answer) -> Outcome:
    """Return the outcome that is the container's answer, as it is."""
    content_type = dict(answer.headers).get(b"content-type", _BINARY.encode())
    return Outcome(answer.body, content_type.decode("latin-1"))


def failed(error: AwsError | StandbyError | ContainerAnswered, place: Place) -> Outcome:
    """Return the outcome that tells of an error with the code, message and members that a normal invocation would have."""
    told = _told(error, place)
    content = {"ErrorCode": told.code, "Message": told.message, **told.members}
    reason = f"{told.code}: {told.message}"[:MAX_REASON]
    return Outcome(pydantic_core.to_json(content), "application/json", reason)


def expired(work: AsyncInvocation, waited_for: str) -> AwsError:
    """The request has waited for longer than it may."""
    why = f" ({waited_for})" if waited_for else ""
    return AwsError("RequestExpired", f"The request has expired: it waited for {work.ttl_s:g} s, its RequestTTLSeconds{why}.")


def gave_up(deliveries: int) -> AwsError:
    """Whoever worked on it was lost, again and again."""
    return AwsError("InternalFailure", f"The request was given up: {deliveries} processes that worked on it were lost.", 500)


def deleted(work: AsyncInvocation) -> AwsError:
    """The endpoint that was asked is gone."""
    return runtime_validation(
        f"Endpoint {work.endpoint} of account {work.tenant} was deleted before the request was processed."
    )


def event_of(
    work: AsyncInvocation, outcome: Outcome, *, event_id: str, now: float, source: str, location: str
) -> AsyncInvocationEnded:
    """Return what is told of it; ``location`` is the object that was written."""
    return AsyncInvocationEnded(
        id=event_id,
        at=now,
        source=source,
        tenant=work.tenant,
        endpoint=work.endpoint,
        inference_id=work.inference_id,
        status="Completed" if outcome.good else "Failed",
        topic=work.success_topic if outcome.good else work.error_topic,
        location=location,
        input_location=work.input_uri or "",
        reason=outcome.reason,
        received_at=work.accepted_at,
    )


def _told(error: AwsError | StandbyError | ContainerAnswered, place: Place) -> AwsError:
    if isinstance(error, AwsError):
        return error
    if isinstance(error, ContainerAnswered):
        return answers.container_error(error, place)
    if isinstance(error, (SourceUnreachable, PayloadTooLarge)):
        return runtime_validation(str(error))
    return answers.aws_error(error, place)
