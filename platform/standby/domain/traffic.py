"""How an endpoint's traffic is treated: tier, priorities, queue, breaker, choice of engine. Part of its immutable config."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from pydantic import Field, model_validator

from standby.domain.durations import Seconds
from standby.domain.priority import Priority
from standby.domain.values import Value

DEFAULT_WEIGHTS: Final[Mapping[Priority, float]] = MappingProxyType(
    {Priority.URGENT: 5.0, Priority.HIGH: 3.0, Priority.NORMAL: 1.0, Priority.BATCH: 0.5}
)
DEFAULT_AGES: Final[Mapping[Priority, float]] = MappingProxyType(
    {Priority.URGENT: 1.0, Priority.HIGH: 5.0, Priority.NORMAL: 15.0, Priority.BATCH: 60.0}
)


class Tier(StrEnum):
    """How much is done for a request when something fails.

    | tier | breaker | no engine can have begun | the engine said 503 | the engine may have begun |
    |---|---|---|---|---|
    | critical | yes | queued again, until its wait is over | once more | once more, before the first byte |
    | standard | yes | queued again, until its wait is over | once more | given up |
    | best-effort | no | given up, but where a door refused: the request was never let in | passed on | given up |

    One more try for a request, at another instance where there is one, and of another engine of a hybrid variant.
    """

    CRITICAL = "critical"
    STANDARD = "standard"
    BEST_EFFORT = "best-effort"


class QueueMode(StrEnum):
    """How the depth of the queue is found."""

    ADAPTIVE = "adaptive"
    STATIC = "static"


class HybridPolicy(StrEnum):
    """How a request's engine is chosen where a variant has several."""

    LEARNED = "learned"
    THRESHOLDS = "thresholds"


class PriorityPolicy(Value):
    """Which priority a request gets, and what it is worth. What a map leaves out is as by default."""

    default: Priority = Priority.NORMAL
    highest: Priority = Field(default=Priority.URGENT, description="the most urgent one that a caller may ask for")
    weights: Mapping[Priority, float] = Field(
        default_factory=lambda: dict(DEFAULT_WEIGHTS), description="shares of the slots while several priorities wait"
    )
    ages: Mapping[Priority, Seconds] = Field(
        default_factory=lambda: dict(DEFAULT_AGES), description="who has waited for so long is served before all others"
    )
    max_waits: Mapping[Priority, Seconds] = Field(
        default_factory=dict, description="who has waited for so long is refused; missing: max_cold_wait"
    )

    @model_validator(mode="before")
    @classmethod
    def _whole_maps(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        whole = dict(given)
        for name, defaults in (("weights", DEFAULT_WEIGHTS), ("ages", DEFAULT_AGES)):
            if isinstance(whole.get(name), Mapping):
                whole[name] = {**{priority.value: value for priority, value in defaults.items()}, **whole[name]}
        return whole

    @model_validator(mode="after")
    def _possible(self) -> PriorityPolicy:
        wrong = {priority.value: weight for priority, weight in self.weights.items() if not 0 < weight < 1e6}
        if wrong:
            msg = f"priority weights must be above 0 and below a million, so that each one moves: {wrong}"
            raise ValueError(msg)
        if self.default.rank < self.highest.rank:
            msg = f"the default priority {self.default.value} is above the highest one, {self.highest.value}"
            raise ValueError(msg)
        return self


class BreakerRule(Value):
    """Opens the breaker: at least ``requests`` ended within ``window``, and of them a share, or a number in a row, failed."""

    window: Seconds = 60.0
    requests: int = Field(default=20, ge=1)
    failure_rate: float | None = Field(default=None, gt=0, le=1)
    failures_in_a_row: int | None = Field(default=None, ge=1)
    connect_only: bool = Field(default=False, description="only connections that nobody accepted count")

    @model_validator(mode="after")
    def _one_of_two(self) -> BreakerRule:
        if (self.failure_rate is None) == (self.failures_in_a_row is None):
            msg = "a breaker rule has either failure_rate or failures_in_a_row"
            raise ValueError(msg)
        return self


def _default_rules() -> tuple[BreakerRule, ...]:
    return (
        BreakerRule(window=60.0, requests=20, failure_rate=0.6),
        BreakerRule(window=30.0, requests=10, failures_in_a_row=5),
        BreakerRule(window=10.0, requests=3, failures_in_a_row=3, connect_only=True),
    )


class BreakerPolicy(Value):
    """When an instance gets no requests for a while; any rule is enough. ``open_for`` doubles up to ``longest_open``."""

    rules: tuple[BreakerRule, ...] = Field(default_factory=_default_rules)
    open_for: Seconds = 5.0
    longest_open: Seconds = 60.0
    probes: int = Field(default=1, ge=1, le=100, description="good answers in a row that close it again")


class HybridChoice(Value):
    """Which engine of several gets a request. Tokens are of the prompt, counted with the model's tokenizer."""

    policy: HybridPolicy = HybridPolicy.LEARNED
    long_prompt: int = Field(default=2048, ge=1, description="thresholds: from here on TensorRT-LLM")
    short_prompt: int = Field(default=512, ge=1, description="thresholds: below, with a tight latency target, vLLM")
    tight_target: Seconds = Field(default=0.12, description="thresholds: what counts as a tight latency target")
    memory_limit: float = Field(default=0.92, gt=0, le=1, description="fuller engines get no batch and normal requests")
    return_after: Seconds = Field(
        default=10.0, description="a failed engine must be well for so long before it gets requests again"
    )
    explore: float = Field(default=0.02, ge=0, le=0.5, description="learned: share of requests that go where little is known")


class TrafficPolicy(Value):
    """See the module's docstring; times in seconds, written as durations."""

    tier: Tier = Tier.STANDARD
    latency_target: Seconds | None = Field(default=None, description="arrival to first token, met by all but slo_violations")
    slo_violations: float = Field(default=0.01, gt=0, lt=1, description="share of requests that may miss latency_target")
    queue: QueueMode = Field(default=QueueMode.ADAPTIVE, description="adaptive needs a latency_target; static without one")
    queue_floor: int = Field(default=4, ge=1, description="adaptive: at least so many may wait")
    priority: PriorityPolicy = PriorityPolicy()
    breaker: BreakerPolicy = BreakerPolicy()
    hybrid: HybridChoice = HybridChoice()
    prefix_affinity: bool = Field(default=True, description="prompts that begin alike go to one instance, while it has room")
    adaptive_concurrency: bool = Field(default=True, description="an instance that slows down under load gets fewer at once")
