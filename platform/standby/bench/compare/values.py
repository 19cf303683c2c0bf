"""What a comparison is: two sides with all that was measured of each, and a table whose cells say how they are known."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field, JsonValue

from standby.bench.values import Sample, Slo, Workload
from standby.domain.instance import Rung
from standby.domain.values import Value

SCHEMA = "standby.compare/1"


class Act(StrEnum):
    """The parts of a comparison, in their order."""

    COLD = "cold starts"
    BURST = "burst from zero"
    WARM = "warm blocks"
    SCALE_IN = "load while scaling in"


class Known(StrEnum):
    """How a figure is known."""

    MEASURED = "measured"
    RECKONED = "reckoned"  # from what was measured, and a price that is a setting
    PUBLISHED = "published"
    NOT_MEASURED = "not measured"


class Figure(Value):
    """One cell. ``note``: what belongs to it; for what was not measured: why not."""

    text: str
    known: Known
    note: str = ""


class Row(Value):
    """One row of the table; ``verdict``: what may be said of both, in words."""

    name: str
    a: Figure
    b: Figure
    verdict: str = ""


class Reached(Value):
    """Whether a state was reached, and how, or why not."""

    ok: bool
    words: str
    lost: bool = Field(default=False, description="who should say so did not answer")


class ColdStart(Value):
    """One request that met nobody awake. ``reached``: how it was made cold. Times in seconds; ``ttft_s`` None: it failed."""

    at_s: float
    reached: str
    rung: str = ""
    ttft_s: float | None = None
    e2e_s: float | None = None
    phases_ms: tuple[tuple[str, float], ...] = ()
    error: str = ""

    @property
    def was_cold(self) -> bool:
        """Whether nothing says the contrary: somebody else may have woken it in between, and its answer says so."""
        return self.rung != Rung.READY.label


class Burst(Value):
    """Many requests at one moment at zero; times in seconds from that moment, None where not all came so far."""

    at_s: float
    reached: str
    requests: int
    ok: int
    first_s: float | None = Field(description="the first of them has its first token")
    running_s: float | None = Field(description="all of them have their first token")
    served_s: float | None = Field(description="all of them are answered")


class ScaleIn(Value):
    """Requests that came while the target was scaling in. ``seen``: what was seen of that."""

    at_s: float
    seen: str
    requests: int
    failed: int
    interrupted: int = Field(description="answers that broke off in their middle")
    server_errors: int = Field(description="answered with 5xx")


class Death(Value):
    """When and how a target was lost."""

    at_s: float
    act: Act
    words: str


class Holding(Value):
    """What a target held in memory over the whole comparison. ``gb_s`` None: nobody says, for this reason."""

    gb_s: float | None = None
    seconds: float = 0.0
    awake_bytes: int | None = None
    words: str = ""


class Side(Value):
    """All that is known of one target. ``samples`` are those of the warm blocks; ``sent`` counts every request to it."""

    name: str
    kind: str
    samples: tuple[Sample, ...] = ()
    cold: tuple[ColdStart, ...] = ()
    bursts: tuple[Burst, ...] = ()
    scale_ins: tuple[ScaleIn, ...] = ()
    holding: Holding = Holding()
    sent: int = 0
    death: Death | None = None
    skipped: Mapping[Act, str] = Field(default_factory=dict, description="acts that were not measured, and why")
    notes: tuple[str, ...] = ()

    @property
    def cold_starts(self) -> tuple[ColdStart, ...]:
        """Those of ``cold`` that were some."""
        return tuple(one for one in self.cold if one.was_cold)


class Comparison(Value):
    """Everything, as ``--json`` prints it, with the table that is made of it."""

    began_at: float = Field(description="seconds since the epoch")
    seconds: float
    workload: Workload
    parameters: Mapping[str, JsonValue] = Field(default_factory=dict)
    slo: Slo = Slo()
    a: Side
    b: Side
    serverless_gb: int | None = Field(default=None, description="SageMaker's memory size to reckon with; None: what fits")
    interrupted: bool = False
    machine: tuple[tuple[str, str], ...] = ()

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both."""
        return self.a, self.b
