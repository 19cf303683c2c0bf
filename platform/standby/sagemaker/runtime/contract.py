"""What the runtime's routes need from the gateway that carries them, and what the two say to each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Protocol

from standby.domain.access import Scope as KeyScope
from standby.domain.ask import NOTHING, Ask
from standby.domain.aws import AwsResource
from standby.domain.priority import Priority
from standby.telemetry.trace_context import Head

Headers = list[tuple[bytes, bytes]]
AsgiScope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Arrival(NamedTuple):
    """A request when it came: by the monotonic and the wall clock in seconds; ``echoed`` is the caller's own id, if any.

    ``trace``: None where nothing is traced.
    """

    arrived: float
    arrived_at: float
    request_id: str
    echoed: bytes
    trace: Head | None = None


class Asker(NamedTuple):
    """For whom a request acts, and what its key has: a priority, if any, and whether it may mark requests as tests."""

    tenant: str
    priority: Priority | None = None
    may_shadow: bool = False


class Target(NamedTuple):
    """An endpoint's variant as a request finds it; ``desk`` is the gateway's own.

    ``serverless``: the variant has a MaxConcurrency, so AWS's serverless limits are its limits.
    """

    desk: Any
    tenant: str
    endpoint: str
    served_name: str
    variant: str
    model: str
    serverless: bool


class Job(NamedTuple):
    """What an engine is asked; ``extra`` are headers of the answer.

    ``limit_s`` counts from the moment in which the request is sent to the engine; None: no limit. ``aws``: the answer names
    the variant and its session, ``session`` is the one that the caller asks for. ``whole``: the answer goes to no client before
    it is complete. ``ask`` are the facts of the body, with the priority that the caller wishes for; ``priority`` is that of
    the caller's key, if it has one. ``shadow``: a test, which is served like any other and counted in no metering.
    """

    path: str
    headers: Headers
    body: bytes
    extra: Headers
    limit_s: float | None = None
    aws: bool = False
    session: str | None = None
    whole: bool = False
    ask: Ask = NOTHING
    priority: Priority | None = None
    shadow: bool = False


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes


class ContainerAnswered(Exception):
    """The engine answered the request with an error of its own; raised by an outlet once the answer is whole."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the engine answered {status}")
        self.status = status
        self.body = body


class AnswerBroken(Exception):
    """The engine's answer ended in its middle by what it says itself; raised by an outlet."""


class Caller(Protocol):
    """Who asks, as far as invoking goes."""

    @property
    def tenant(self) -> str:
        """The account."""

    @property
    def arn(self) -> str:
        """The caller's own ARN, for messages."""

    @property
    def scopes(self) -> Collection[KeyScope]:
        """What the key may be used for."""

    @property
    def priority(self) -> Priority | None:
        """The key's own priority."""


class Authenticator(Protocol):
    """Checks of signatures and tokens; both raise AwsError."""

    def authenticate(
        self,
        method: str,
        raw_path: bytes,
        raw_query: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        *,
        now: float,
        service: str | None = ...,
    ) -> Caller:
        """Return who signed the request."""

    def authenticate_bearer(self, token: str, now: float) -> Caller:
        """Return whose bearer token this is."""


class Watch(Protocol):
    """Something that can be stopped."""

    def stop(self) -> None:
        """Watch no longer."""


class Invoker(Protocol):
    """The gateway: look-ups, waiting for a slot, the way to the engine and back.

    Errors are those of the domain's tree; a caller who has left ends a request with an exception of the gateway's own,
    which goes through.
    """

    def arrive(self, scope: AsgiScope) -> Arrival:
        """Note a request's arrival."""

    def refused(self, code: str) -> None:
        """Count a request that ended before its endpoint was known."""

    def asker(self, scope: AsgiScope) -> Asker:
        """Return for whom a bearer key of ours acts. Raises NotAuthenticated, Forbidden."""

    def read(self, scope: AsgiScope, receive: Receive, limit: int) -> Awaitable[bytes]:
        """Return the body. Raises PayloadTooLarge."""

    def find(self, tenant: str, endpoint: str, variant: str | None, session: str | None) -> Target:
        """Return the endpoint's variant. Raises EndpointNotFound, VariantNotFound."""

    def has_ready(self, target: Target) -> bool:
        """Whether an instance of the variant is ready, as far as this gateway knows."""

    def wake(self, target: Target) -> None:
        """Ask for an instance of the variant without waiting for it."""

    def run(
        self,
        target: Target,
        arrival: Arrival,
        job: Job,
        receive: Receive,
        send: Send,
        *,
        on_gone: Callable[[Callable[[], None]], None] | None = None,
    ) -> Awaitable[str | None]:
        """Ask an engine and pass its answer to ``send``; returns why the answer was broken off in its middle, or None.

        ``send`` may raise ContainerAnswered and AnswerBroken; the second is returned as the reason.

        ``on_gone`` is called when the caller leaves, with what ends the request; without it a caller who leaves ends it.
        Raises the domain's errors while ``send`` has got nothing (InvocationTimeout also later), and what ``send`` raises.
        """

    def joined(self, target: Target) -> None:
        """Count a request that was answered by another one's run."""

    def watch(self, receive: Receive, on_gone: Callable[[], object]) -> Watch:
        """Call ``on_gone`` when the caller leaves."""


class Entry(Protocol):
    """One record of a watched copy."""

    @property
    def value(self) -> AwsResource:
        """The record."""


class Resources(Protocol):
    """A watched copy of the table of AWS resources, by ``tenant.kind.name``."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """All records."""
