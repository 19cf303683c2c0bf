"""An endpoint: a tenant's named URL that scales from zero to N, and the immutable config it points at."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, model_validator

from standby.domain.durations import FOREVER, Seconds
from standby.domain.values import Record, Value

DEFAULT_VARIANT = "AllTraffic"
# The code of a failure that says: the node has no memory for the climb now, and asks again by itself.
NO_MEMORY = "no_memory"
# The code of a failure that says: the node's zygote for the engine cannot be made ready; the instance can climb without.
NO_ZYGOTE = "no_zygote"


class ScalePolicy(Value):
    """How an endpoint climbs and descends the ladder; times in seconds, written as durations.

    The idle clock starts when an instance becomes ready or when its last request ends, whichever is later.
    ``keep_ready`` after that it falls asleep, ``keep_asleep`` after falling asleep its process ends and a zygote waits
    for it where the engine has one, ``keep_zygote`` after that it is staged, ``keep_staged`` after that it is cold.
    Zero skips the rung.
    """

    keep_ready: Seconds = 300.0
    keep_asleep: Seconds = 3600.0
    keep_zygote: Seconds = 3600.0
    keep_staged: Seconds = FOREVER
    min_ready: int = Field(default=0, ge=0, le=200, description="instances that never leave ready")
    max_instances: int = Field(default=1, ge=1, le=200)
    slots: int = Field(default=4, ge=1, le=1024, description="requests that one instance runs at once")
    scale_in_after: Seconds = 60.0
    max_cold_wait: Seconds = 50.0
    activation_limit: Seconds = Field(default=180.0, description="limit of one climb without progress")
    drain_limit: Seconds = 300.0
    queue_requests: int = Field(default=1000, ge=0, description="requests that may wait in one gateway")
    queue_bytes: int = Field(default=256 * 1024 * 1024, ge=0, description="body bytes that may wait in one gateway")

    @model_validator(mode="after")
    def _bounds_agree(self) -> ScalePolicy:
        if self.min_ready > self.max_instances:
            msg = f"min_ready {self.min_ready} is above max_instances {self.max_instances}"
            raise ValueError(msg)
        return self


class Variant(Value):
    """One model behind an endpoint, with its share of the traffic."""

    name: str = DEFAULT_VARIANT
    model: str
    weights: str | None = Field(default=None, description="which of the model's named weights; None: the registered ones")
    weight: float = Field(default=1.0, ge=0)
    memory_mb: int | None = Field(default=None, ge=128, description="host memory to reserve; None: estimated")
    policy: ScalePolicy = ScalePolicy()


class EndpointConfig(Record):
    """Immutable: a change is a new config."""

    tenant: str
    name: str
    variants: tuple[Variant, ...] = Field(min_length=1)
    created_at: float


class EndpointStatus(StrEnum):
    """SageMaker's words; an endpoint at zero is InService."""

    CREATING = "Creating"
    IN_SERVICE = "InService"
    UPDATING = "Updating"
    FAILED = "Failed"
    DELETING = "Deleting"


class Failure(Value):
    """Why something failed, in words that lead to the cause."""

    reason: str = Field(description="one sentence: phase, exit code or signal in words")
    first_error: str = Field(default="", description="first error line of the log, secrets masked")
    log_tail: tuple[str, ...] = ()
    code: str = ""
    attempts: int = Field(default=1, ge=1, description="failures in a row")
    at: float = 0.0
    next_retry_at: float | None = Field(default=None, description="seconds since the epoch; None: no retry by itself")
    generation: int | None = Field(default=None, description="generation of the endpoint that failed")


class Endpoint(Record):
    """The live record of an endpoint."""

    tenant: str
    name: str
    config: str = Field(description="name of the endpoint config")
    served_name: str = Field(description="OpenAI model id; may contain '/'")
    status: EndpointStatus
    failure: Failure | None = None
    created_at: float
    updated_at: float
    generation: int = Field(default=1, ge=1, description="grows when the endpoint is re-created or retried by hand")
