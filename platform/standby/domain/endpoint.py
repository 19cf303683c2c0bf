"""An endpoint: a tenant's named URL that scales from zero to N, and the immutable config it points at."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any

from pydantic import Field, field_validator, model_validator

from standby.domain.durations import Seconds
from standby.domain.model import EngineKind
from standby.domain.schedule import Schedules
from standby.domain.traffic import TrafficPolicy
from standby.domain.values import Record, Value

DEFAULT_VARIANT = "AllTraffic"
# The code of a failure that says: the node has no memory for the climb now, and asks again by itself.
NO_MEMORY = "no_memory"
# The code of a failure that says: the node's zygote for the engine cannot be made ready; the instance can climb without.
NO_ZYGOTE = "no_zygote"


class PricePreset(StrEnum):
    """What a caller's wait weighs against memory that is held for him: little, in between, much."""

    FRUGAL = "frugal"
    BALANCED = "balanced"
    SNAPPY = "snappy"


class ScalePolicy(Value):
    """How an endpoint climbs and descends the ladder; times in seconds, written as durations.

    The idle clock starts when an instance becomes ready or when its last request ends, whichever is later.
    ``keep_ready`` after that it falls asleep, ``keep_asleep`` after falling asleep its process ends and a zygote waits
    for it where the engine has one, ``keep_zygote`` after that it is staged, ``keep_staged`` after that it is cold.
    Zero skips the rung. None: the controller weighs what the rung costs against what a caller's wait costs, and the
    weights stay staged.
    """

    keep_ready: Seconds | None = None
    keep_asleep: Seconds | None = None
    keep_zygote: Seconds | None = None
    keep_staged: Seconds | None = None
    price_preset: PricePreset | None = Field(default=None, description="how those are weighed; None: as the controller is set")
    wait_price: float | None = Field(
        default=None,
        ge=0,
        le=1e9,
        allow_inf_nan=False,
        description="price of a second of a caller's wait, in GB·s of device memory; None: the preset's",
    )
    min_ready: int = Field(default=0, ge=0, le=200, description="instances that never leave ready")
    max_instances: int = Field(default=1, ge=1, le=200)
    slots: int = Field(default=4, ge=1, le=1024, description="requests that one instance runs at once")
    scale_out_at: float | None = Field(
        default=None, gt=0, description="requests at once for each instance above which another one is wanted; None: slots"
    )
    scale_in_after: Seconds = 60.0
    scale_ahead: bool | None = Field(
        default=None, description="instances climb before a rise needs them; None: where the prices are snappy"
    )
    max_cold_wait: Seconds = 50.0
    activation_limit: Seconds = Field(default=180.0, description="limit of one climb without progress")
    drain_limit: Seconds = 300.0
    queue_requests: int = Field(default=1000, ge=0, description="requests that may wait in one gateway")
    queue_bytes: int = Field(default=256 * 1024 * 1024, ge=0, description="body bytes that may wait in one gateway")
    schedules: Schedules = Field(
        default=(), max_length=20, description="windows in which more is kept ready, or more instances may be"
    )
    isolate: bool = Field(default=False, description="its instances are never placed on a node beside another tenant's")

    @property
    def load(self) -> float:
        """How many requests at once one instance is meant for: never more than it has slots for."""
        return self.slots if self.scale_out_at is None else min(self.slots, self.scale_out_at)

    @model_validator(mode="after")
    def _bounds_agree(self) -> ScalePolicy:
        if self.min_ready > self.max_instances:
            msg = f"min_ready {self.min_ready} is above max_instances {self.max_instances}"
            raise ValueError(msg)
        return self


@lru_cache(maxsize=1024)
def _known(policy: ScalePolicy) -> ScalePolicy:
    """Return the policy that was the first of its equals."""
    return policy


class Backend(Value):
    """One engine of a variant that has several, all serving the same model. None: as the variant says."""

    name: str = Field(default="", description="its name in words and metrics; empty: the engine's")
    engine: EngineKind
    weights: str | None = Field(default=None, description="which of the model's named weights; None: the registered ones")
    engine_options: Mapping[str, str | int | float | bool] | None = Field(
        default=None, description="None: the model's own, where they are for this engine"
    )
    slots: int | None = Field(default=None, ge=1, le=1024)
    memory_mb: int | None = Field(default=None, ge=128)
    min_ready: int = Field(default=0, ge=0, le=200)
    max_instances: int | None = Field(default=None, ge=1, le=200)

    @property
    def label(self) -> str:
        """Its name, or its engine's."""
        return self.name or self.engine.value


class Variant(Value):
    """One model behind an endpoint, with its share of the traffic."""

    name: str = DEFAULT_VARIANT
    model: str
    weights: str | None = Field(default=None, description="which of the model's named weights; None: the registered ones")
    weight: float = Field(default=1.0, ge=0)
    memory_mb: int | None = Field(default=None, ge=128, description="host memory to reserve; None: estimated")
    concurrency_limit: int | None = Field(
        default=None, ge=1, le=200, description="requests at once over all gateways and instances; more are refused, not queued"
    )
    provisioned: int | None = Field(
        default=None, ge=1, le=200, description="requests at once that what is kept ready is meant for; more count as spillover"
    )
    backends: tuple[Backend, ...] = Field(
        default=(),
        max_length=4,
        description="several engines for one model, the preferred one first; none: the model's own",
    )
    policy: ScalePolicy = ScalePolicy()

    @model_validator(mode="after")
    def _backends_differ(self) -> Variant:
        labels = [backend.label for backend in self.backends]
        if len(set(labels)) != len(labels):
            msg = f"backends: the names {sorted(labels)} are not all different"
            raise ValueError(msg)
        if self.backends and self.weights is not None:
            msg = "give 'weights' inside each backend"
            raise ValueError(msg)
        return self

    @field_validator("policy")
    @classmethod
    def _one_of_equals(cls, policy: ScalePolicy) -> ScalePolicy:
        """A process holds thousands of configs with few different policies, and 3 kB for each copy of one."""
        return _known(policy)

    @property
    def limit(self) -> int | None:
        """How many requests may be under way at once, over all gateways; None: as many as come, the rest waits.

        Never more than all instances together have slots for: what is within the limit finds a slot or one that comes.
        """
        if self.concurrency_limit is None:
            return None
        return min(self.concurrency_limit, self._places)

    @property
    def _places(self) -> int:
        """Requests that all instances together have slots for."""
        slots, most = self.policy.slots, self.policy.max_instances
        if not self.backends:
            return slots * most
        return sum((one.slots or slots) * max(one.max_instances or most, one.min_ready) for one in self.backends)


class VariantCapacity(Value):
    """What was changed of one variant while its endpoint runs; None: as the config says."""

    weight: float | None = Field(default=None, ge=0)
    concurrency_limit: int | None = Field(default=None, ge=1, le=200)
    provisioned: int | None = Field(default=None, ge=1, le=200)
    min_ready: int | None = Field(default=None, ge=0, le=200)
    max_instances: int | None = Field(default=None, ge=1, le=200)
    scale_out_at: float | None = Field(default=None, gt=0)
    scale_in_after: Seconds | None = None


class EndpointConfig(Record):
    """Immutable: a change is a new config."""

    tenant: str
    name: str
    variants: tuple[Variant, ...] = Field(
        description="none: the endpoint's models come as inference components, each on an endpoint of its own"
    )
    created_at: float
    traffic: TrafficPolicy = TrafficPolicy()
    request: Mapping[str, Any] = Field(
        default_factory=dict, description="SageMaker's request that it comes from, with its name; empty: made otherwise"
    )


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
    variant: str = Field(default="", description="the variant whose instance failed; empty: all")
    backend: str = Field(default="", description="the variant's backend whose instance failed; empty: it has none")
    node: str = Field(default="", description="where the instance failed; empty: no instance did, or it was not told")
    instance: str = Field(default="", description="which one; its log is asked for by this name")


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
    pending_config: str | None = Field(
        default=None,
        description="what an update brings; ``config`` serves until each variant of it has what it needs",
    )
    capacities: Mapping[str, VariantCapacity] = Field(
        default_factory=dict, description="by variant name: changes of weights and capacities of the running endpoint"
    )
    pending_capacities: Mapping[str, VariantCapacity] = Field(
        default_factory=dict, description="what ``capacities`` becomes when ``pending_config`` takes over"
    )
    update_failure: Failure | None = Field(default=None, description="why the last update was rolled back; None: it was not")
