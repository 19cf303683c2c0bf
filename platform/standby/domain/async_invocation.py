"""An asynchronous invocation: what the work queue carries, and the ticket that makes its id the caller's own."""

from __future__ import annotations

from pydantic import Field

from standby.domain.model import SourceOptions
from standby.domain.priority import Priority
from standby.domain.values import Record


class AsyncInvocation(Record):
    """One accepted request. Everything that its execution needs is in here, so that any gateway can carry it out.

    Times in seconds; ``accepted_at`` since the epoch. Where ``input_uri`` is None the body came with the request and lies
    behind the record in the queue's item.
    """

    tenant: str
    endpoint: str
    endpoint_created_at: float = Field(description="another endpoint of the same name is not meant")
    inference_id: str
    digest: str = Field(description="of everything that was asked; marks the objects that are written for it")
    accepted_at: float
    ttl_s: float = Field(description="how long it may wait for an engine")
    limit_s: float = Field(description="how long an engine may take")
    input_uri: str | None = None
    output_uri: str
    failure_uri: str
    options: SourceOptions = Field(
        default=SourceOptions(), description="how its store is reached and with whose keys, as it was when it was accepted"
    )
    content_type: str | None = None
    accept: str | None = None
    custom_attributes: str | None = None
    success_topic: str = ""
    error_topic: str = ""
    wished: Priority | None = Field(default=None, description="the priority that its caller named")
    key_priority: Priority | None = Field(default=None, description="that of the key it came with")
    repeated: bool = Field(default=False, description="asked for again under its id: it may have been carried out already")

    @property
    def expires_at(self) -> float:
        """When it has waited for too long."""
        return self.accepted_at + self.ttl_s

    @property
    def lane(self) -> str:
        """Its lane in the work queue."""
        return f"{self.tenant}.{self.endpoint}"


class Ticket(Record):
    """Who has an inference id: key ``tenant.endpoint.hash of the id``; the store forgets it by itself after a while."""

    digest: str
    inference_id: str
    output_uri: str
    failure_uri: str
    options: SourceOptions = SourceOptions()


def pack(invocation: AsyncInvocation, body: bytes) -> bytes:
    """Return the queue's item: the record in one line, then the body that came with the request."""
    return invocation.encode() + b"\n" + body


def unpack(item: bytes) -> tuple[AsyncInvocation, bytes]:
    """Return what ``pack`` has packed. Raises ValueError for anything else."""
    record, _, body = item.partition(b"\n")
    return AsyncInvocation.model_validate_json(record), body
