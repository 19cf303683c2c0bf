"""What a run of load is: the plan, one sample for each request, and the numbers that are made of them.

All moments of a ``Sample`` are seconds from the run's start by the generator's monotonic clock; latencies count from
``due_s``, the moment in which the request was meant to be sent, so that a generator that falls behind hides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field, JsonValue

from standby.domain.values import Value


class ErrorClass(StrEnum):
    """How a request failed, in words; the value is what ``Sample.error`` holds."""

    CONNECT = "connect"  # no connection came about
    TIMEOUT = "timeout"  # no complete answer within the limit
    RESET = "reset"  # the connection ended before an answer began
    CLIENT = "4xx"
    THROTTLED = "429"
    SERVER = "5xx"
    STREAM_ERROR = "stream error"  # an error event in the stream
    BROKEN_STREAM = "broken stream"  # the answer ended in its middle
    EMPTY = "empty answer"  # a success without a token of text
    RUBBISH = "rubbish"  # an answer that is not what was asked for


class Planned(NamedTuple):
    """One request of a plan: when it is due (seconds from the start), how long prompt and answer shall be, in tokens."""

    due_s: float
    prompt: str
    prompt_tokens: int
    max_tokens: int
    step: int = 0  # of a ladder: which of its steps the request belongs to


class Workload(Value):
    """What was asked for, in words and numbers; with its seed it says every request again."""

    name: str
    parameters: Mapping[str, JsonValue] = Field(default_factory=dict)
    seed: int = 0


class Plan(NamedTuple):
    """A workload with its requests, in the order in which they are due."""

    workload: Workload
    requests: Sequence[Planned]
    steps: Sequence[str] = ()  # the names of a ladder's steps


class Sample(NamedTuple):
    """What became of one request."""

    due_s: float
    sent_s: float
    first_byte_s: float | None
    first_token_s: float | None  # None: no token came, or the answer was not streamed
    ended_s: float
    status: int  # HTTP; 0: none
    error: str  # an ErrorClass; empty: it went well
    prompt_tokens: int
    completion_tokens: int
    gaps_s: tuple[float, ...] = ()  # between the events of successive tokens
    rung: str = ""  # from which rung it was served, as the answer says; empty: unknown
    waited_s: float | None = None  # in standby's queue, as the answer says
    request_id: str = ""
    trace_id: str = ""
    target: str = ""
    phases_ms: tuple[tuple[str, float], ...] = ()  # of the activation that it waited for, as the answer says
    step: int = 0
    message: str = ""  # what a failure said, cut short

    @property
    def ok(self) -> bool:
        """Whether it was answered whole."""
        return not self.error

    @property
    def e2e_s(self) -> float:
        """From the intended send time to the end."""
        return self.ended_s - self.due_s

    @property
    def ttft_s(self) -> float | None:
        """From the intended send time to the first token's event."""
        return None if self.first_token_s is None else self.first_token_s - self.due_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of one token after the first one; None where there are fewer than two."""
        if not self.gaps_s or self.completion_tokens < 2:
            return None
        return sum(self.gaps_s) / (self.completion_tokens - 1)

    @property
    def lag_s(self) -> float:
        """By how much the generator was late."""
        return self.sent_s - self.due_s


class Run(Value):
    """One run against one target. ``samples`` are in the order in which their requests were due."""

    target: str
    workload: Workload
    began_at: float = Field(description="seconds since the epoch")
    seconds: float = Field(description="from the start to the last answer")
    samples: tuple[Sample, ...] = ()
    notes: tuple[str, ...] = Field(default=(), description="what a reader must know, in words: interrupted, estimated, invalid")
    planned: int = Field(default=0, description="requests of the plan")
    not_sent: int = Field(default=0, description="due, but not sent, because as many were in flight as may be")
    interrupted: bool = False
    steps: tuple[str, ...] = Field(default=(), description="names of a ladder's steps")
    generator_cpu_s: float = Field(default=0.0, description="processor time that the generator itself took")


class Slo(Value):
    """What a request must keep to be good, in seconds; None: no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @property
    def bounded(self) -> bool:
        """Whether it bounds anything."""
        return (self.ttft_s, self.tpot_s, self.e2e_s) != (None, None, None)


class Percentiles(Value):
    """Of ``count`` values, in seconds, by the nearest rank: each one is a value that was measured. None: there are none."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class Latencies(Value):
    """Of the requests that went well. ``itl``: gaps between tokens, all requests' together."""

    requests: int = 0
    ttft: Percentiles = Percentiles()
    tpot: Percentiles = Percentiles()
    itl: Percentiles = Percentiles()
    e2e: Percentiles = Percentiles()
    waited: Percentiles = Percentiles()


class Step(Value):
    """One step of a ladder."""

    name: str
    requests: int
    failed: int
    requests_per_s: float | None
    latencies: Latencies


class Goodput(Value):
    """How many of the requests that were due were answered within the bounds."""

    slo: Slo
    good: int
    ratio: float | None
    per_s: float | None


class Generator(Value):
    """How well the generator did its own work; ``invalid`` says in words why its numbers are not to be used."""

    lag: Percentiles
    cpu_s: float
    invalid: str = ""


class TailPhase(Value):
    """One phase's part of the gap between P90 and P99: its mean in seconds among the tail and among the others."""

    phase: str
    tail_s: float
    rest_s: float

    @property
    def excess_s(self) -> float:
        """What the phase adds to the tail."""
        return self.tail_s - self.rest_s


class Tail(Value):
    """Why the slowest are slow: phases of the requests above P90 against those below, the greatest excess first."""

    requests: int = Field(description="above P90")
    attributed: int = Field(description="of those, whose phases are known")
    gap_s: float | None = Field(description="P99 less P90, end to end")
    phases: tuple[TailPhase, ...] = ()


class Summary(Value):
    """The numbers of a run."""

    target: str
    workload: Workload
    began_at: float
    seconds: float
    planned: int
    requests: int = Field(description="sent")
    ok: int
    failed: int
    not_sent: int
    requests_per_s: float | None = Field(description="answered whole, per second of the run")
    prompt_tokens: int
    completion_tokens: int
    tokens_per_s: float | None = Field(description="completion tokens of answers that were whole, per second of the run")
    errors: Mapping[str, int] = Field(description="by ErrorClass")
    error_examples: Mapping[str, str] = Field(default_factory=dict, description="what the first of each class said")
    statuses: Mapping[int, int] = Field(default_factory=dict)
    all: Latencies
    by_rung: Mapping[str, Latencies] = Field(default_factory=dict)
    by_step: tuple[Step, ...] = ()
    goodput: Goodput | None = None
    generator: Generator
    tail: Tail | None = None
    notes: tuple[str, ...] = ()
