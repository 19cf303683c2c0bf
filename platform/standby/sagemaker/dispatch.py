"""``POST /`` of AWS's clients: which operation, who asks, may they, what came of it.

Order of the steps: the head is looked at, the body is read (a signature covers it), the operation is found, the caller is
authenticated, the request is parsed by its shape, the handler runs, the answer is written by its shape. Nothing of a
request is looked into before its caller is known.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from starlette.types import Receive, Scope, Send

from standby.domain import access
from standby.domain.errors import PayloadTooLarge, QueueFull, StandbyError
from standby.sagemaker.auth.caller import Caller
from standby.sagemaker.errors import AwsError, internal_failure, of_standby
from standby.sagemaker.protocols import (
    METHOD_NOT_ALLOWED,
    RPC_PREFIX,
    Arrival,
    Asked,
    answer_of,
    asked_by,
    check_head,
    protocol_of,
    request_of,
)
from standby.sagemaker.shapes.answers import Headers
from standby.sagemaker.shapes.faults import error_answer, head
from standby.sagemaker.shapes.services import STS, signed_as

log = logging.getLogger(__name__)

MAX_BODY: Final = 1024 * 1024

_READS: Final = ("Describe", "List", "Get")


class Authenticate(Protocol):
    """Checks the signature of a request. Raises AwsError."""

    def __call__(
        self,
        method: str,
        raw_path: bytes,
        raw_query: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        /,
        *,
        now: float,
        service: str | None = "sagemaker",
    ) -> Caller: ...


# Carries out one operation: the caller, the request's id, the members of the request; returns those of the answer.
Operation = Callable[[Caller, str, dict[str, Any]], Awaitable[dict[str, Any]]]
Operations = Mapping[tuple[str, str], Operation]


@dataclass(frozen=True, slots=True)
class Audited:
    """A change that a caller asked for, and what came of it: ``outcome`` is ``ok`` or the error's code."""

    caller: Caller
    service: str
    operation: str
    request: Mapping[str, Any]
    request_id: str
    outcome: str


Audit = Callable[[Audited], Awaitable[None]]


# Reads a body up to a limit; None where the caller left. Raises PayloadTooLarge, or QueueFull where too much arrives at once.
ReadBody = Callable[[Scope, Receive, int], Awaitable[bytes | None]]


@dataclass(frozen=True)
class ControlPlane:
    """The ASGI application of the control plane; ``now`` is seconds since the epoch."""

    authenticate: Authenticate
    operations: Operations
    read: ReadBody
    audit: Audit | None = None
    now: Callable[[], float] = time.time
    max_body: int = MAX_BODY
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())

    def takes(self, scope: Scope) -> bool:
        """Whether a request is one for this application."""
        path: str = scope["path"]
        return path == "/" or path.startswith(RPC_PREFIX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever happens, it is an answer in AWS's form with a request id."""
        request_id = self.new_id()
        protocol = protocol_of(scope["path"], scope["headers"])
        try:
            answer = await self._outcome(scope, receive, request_id)
            if answer is None:
                return
            status, headers = 200, head(protocol, request_id)
        except AwsError as error:
            status, headers, answer = error_answer(error, protocol=protocol, request_id=request_id)
            if status == METHOD_NOT_ALLOWED:
                headers.append((b"allow", b"POST"))
        except Exception as error:  # noqa: BLE001 # the boundary: a mistake becomes an answer without its traceback
            failure = _failure("a request", request_id, error)
            status, headers, answer = error_answer(failure, protocol=protocol, request_id=request_id)
        await _send(send, status, headers, answer, silent=scope["method"] == "HEAD")

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _outcome(self, scope: Scope, receive: Receive, request_id: str) -> bytes | None:
        """Return the body of the answer, None where the caller left. Raises AwsError."""
        check_head(scope["method"], scope["headers"])
        body = await self._body(scope, receive)
        if body is None:
            return None
        arrival = _arrival(scope, body)
        return await self._answer(arrival, asked_by(arrival, self.operations), request_id)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        try:
            return await self.read(scope, receive, self.max_body)
        except PayloadTooLarge:
            raise AwsError("RequestEntityTooLargeException", f"The body is larger than {self.max_body} bytes", 413) from None
        except QueueFull as error:
            raise AwsError("ThrottlingException", str(error)) from error

    async def _answer(self, arrival: Arrival, asked: Asked, request_id: str) -> bytes:
        caller = self.authenticate(
            arrival.method,
            arrival.raw_path,
            arrival.raw_query,
            arrival.headers,
            arrival.body,
            now=self.now(),
            service=signed_as(asked.service),
        )
        if asked.service != STS:
            caller.require(access.Scope.CONTROL, f"{signed_as(asked.service)}:{asked.operation}")
        request = request_of(asked, arrival)
        try:
            answer = await self._carry_out(caller, asked, request, request_id)
        except AwsError as error:
            await self._tell(caller, asked, request, request_id, error.code)
            raise
        await self._tell(caller, asked, request, request_id, "ok")
        return answer

    async def _carry_out(self, caller: Caller, asked: Asked, request: dict[str, Any], request_id: str) -> bytes:
        try:
            output = await self.operations[asked.service, asked.operation](caller, request_id, request)
            return answer_of(asked, output, request_id)
        except AwsError:
            raise
        except Exception as error:  # the boundary: a mistake becomes an answer without its traceback
            told = of_standby(error) if isinstance(error, StandbyError) else None
            raise (told or _failure(asked.operation, request_id, error)) from error

    async def _tell(self, caller: Caller, asked: Asked, request: Mapping[str, Any], request_id: str, outcome: str) -> None:
        if self.audit is None or asked.operation.startswith(_READS):
            return
        try:
            await self.audit(Audited(caller, asked.service, asked.operation, request, request_id, outcome))
        except Exception:  # what was done is done, whether or not it could be told
            log.exception("an audit record of %s was lost", asked.operation, extra={"request_id": request_id})


def _arrival(scope: Scope, body: bytes) -> Arrival:
    raw_path = scope.get("raw_path") or scope["path"].encode()
    return Arrival(scope["method"], raw_path, scope["query_string"], scope["headers"], body)


def _failure(what: str, request_id: str, error: Exception) -> AwsError:
    log.error("%s failed", what, exc_info=error, extra={"request_id": request_id})
    return internal_failure(request_id)


async def _send(send: Send, status: int, headers: Headers, body: bytes, *, silent: bool = False) -> None:
    """Send an answer; a ``silent`` one, to HEAD, tells the length and leaves the body out."""
    framed = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": framed})
    await send({"type": "http.response.body", "body": b"" if silent else body})
