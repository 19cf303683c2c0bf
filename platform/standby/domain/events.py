"""Events: what happened and what was decided, with the reason; kept in the ``events`` stream for a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from standby.domain.instance import Activation, InstanceState
from standby.domain.values import Record


class Event(Record):
    """What every event says."""

    id: str
    at: float = Field(description="seconds since the epoch, by the writer's clock")
    source: str = Field(description="e.g. controller/abc, node/n1, gateway/g1")
    tenant: str = ""
    endpoint: str = ""
    instance: str = ""


class DecisionMade(Event):
    """A decision of the controller, with its inputs, so that it can be replayed."""

    kind: Literal["decision"] = "decision"
    action: str
    reason: str
    inputs: Mapping[str, str | int | float | bool | None] = Field(default_factory=dict)


class StateChanged(Event):
    """An instance passed from one state to another."""

    kind: Literal["transition"] = "transition"
    before: InstanceState
    after: InstanceState
    epoch: int
    reason: str = ""


class ActivationEnded(Event):
    """A climb to ready ended, well or not."""

    kind: Literal["activation"] = "activation"
    activation: Activation
    ok: bool
    error: str = ""


class FetchProgress(Event):
    """Bytes of an artifact have arrived."""

    kind: Literal["fetch"] = "fetch"
    digest: str
    done_bytes: int
    total_bytes: int


class EndpointChanged(Event):
    """An endpoint's status changed."""

    kind: Literal["endpoint"] = "endpoint"
    status: str
    reason: str = ""


class ComponentNotice(Event):
    """Something an operator should know: a component started, lost the bus, found an orphan."""

    kind: Literal["notice"] = "notice"
    level: Literal["info", "warning", "error"] = "info"
    message: str


class AuditEvent(Event):
    """Somebody changed who may do what, or was refused; for administrators only, and never with a secret."""

    kind: Literal["audit"] = "audit"
    who: str = Field(description="id of the key that asked; empty: a key that does not exist")
    action: str = Field(description="e.g. access-keys.create, sagemaker:CreateEndpoint, signature")
    target: str = Field(default="", description="id or name of what it was done to")
    outcome: Literal["done", "refused"]
    reason: str = Field(default="", description="code of the refusal")


class AsyncInvocationEnded(Event):
    """An asynchronous invocation has its result or its failure; stands for SNS's message to the endpoint's topic."""

    kind: Literal["async"] = "async"
    inference_id: str
    status: Literal["Completed", "Failed"]
    topic: str = Field(default="", description="ARN of the endpoint's SuccessTopic or ErrorTopic; empty: it has none")
    location: str = Field(default="", description="the object that was written; empty: the store refused it")
    input_location: str = Field(default="", description="empty: the input came with the request")
    reason: str = Field(default="", description="why it failed")
    received_at: float = Field(description="seconds since the epoch")


AnyEvent = Annotated[
    DecisionMade
    | StateChanged
    | ActivationEnded
    | FetchProgress
    | EndpointChanged
    | ComponentNotice
    | AuditEvent
    | AsyncInvocationEnded,
    Field(discriminator="kind"),
]
EVENT_ADAPTER: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)
