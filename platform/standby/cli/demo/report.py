"""What the demo found: values, one table, one JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import Field
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from standby.domain.instance import Phase
from standby.domain.values import Value

_PHASES: Final = (Phase.PLACED, Phase.FETCHED, Phase.FORKED, Phase.LOADED, Phase.PROBED)


class Invocation(Value):
    """One request as its caller saw it; times in milliseconds from sending the request."""

    label: str
    rung: str = Field(description="the rung that the request found")
    phases_ms: Mapping[str, float] = Field(default_factory=dict)
    first_token_ms: float
    total_ms: float
    text: str


class ConcurrentFirstRequests(Value):
    """Many first requests at zero."""

    requests: int
    ok: int
    activations: int


class Drain(Value):
    """Requests that were open or arrived while the node drained."""

    requests: int
    failed: int


class Descent(Value):
    """How long an instance stayed on a rung, and what it held there."""

    rung: str
    after_s: float
    resident_bytes: int
    reason: str = Field(default="", description="why the controller let it fall, in its own words")


class Held(Value):
    """What the endpoint held at one moment; ``at_s`` counts from the demo's start."""

    at_s: float
    state: str
    resident_bytes: int


class Call(Value):
    """One of many requests; ``at_s`` counts from the first of them. ``total_ms`` None: it failed."""

    at_s: float
    first_token_ms: float | None = None
    total_ms: float | None = None


class DemoReport(Value):
    """Everything, as ``standby demo --json FILE`` writes it."""

    model: str
    model_bytes: int
    question: str
    answer: str
    invocations: tuple[Invocation, ...]
    descents: tuple[Descent, ...]
    concurrent_first_requests: ConcurrentFirstRequests
    drain: Drain
    leftover_processes: int
    seconds: float
    first_calls: tuple[Call, ...] = Field(default=(), description="the many first requests, one by one")
    drain_calls: tuple[Call, ...] = Field(default=(), description="the requests of the drain, one by one")
    held: tuple[Held, ...] = Field(default=(), description="memory of the endpoint over time, as its node tells it")
    began_at: float = Field(default=0.0, description="seconds since the epoch")
    machine: tuple[tuple[str, str], ...] = Field(default=(), description="machine and versions")

    def faults(self) -> list[str]:
        """Return what went wrong, in words; empty when the demo has shown what it promises."""
        found = []
        many, drain = self.concurrent_first_requests, self.drain
        if many.ok != many.requests:
            found.append(f"{many.requests - many.ok} of {many.requests} concurrent first requests failed")
        if many.activations != 1:
            found.append(f"{many.requests} concurrent first requests caused {many.activations} activations instead of 1")
        if drain.failed:
            found.append(f"{drain.failed} of {drain.requests} requests failed during the drain")
        if self.leftover_processes:
            found.append(f"{self.leftover_processes} processes were left running")
        return found

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(self.model_dump_json(indent=2) + "\n")


def show(report: DemoReport, console: Console) -> None:
    """Print the table and the answer; made for 80 columns."""
    table = Table(title="from each rung to the first token, in ms", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for label in ("request", "rung"):
        table.add_column(label, no_wrap=True)
    for phase in _PHASES:
        table.add_column(phase.value, justify="right", no_wrap=True)
    table.add_column("1st token", justify="right", style="bold", no_wrap=True)
    table.add_column("total", justify="right", no_wrap=True)
    for item in report.invocations:
        phases = (f"{item.phases_ms[phase]:.0f}" if phase in item.phases_ms else "" for phase in _PHASES)
        table.add_row(item.label, item.rung, *phases, f"{item.first_token_ms:.0f}", f"{item.total_ms:.0f}")
    console.print()
    console.print(table)
    for descent in report.descents:
        held = descent.resident_bytes / 2**20
        console.print(f"{descent.after_s:5.1f} s idle → {descent.rung:7} holding {held:.0f} MiB", highlight=False)
    many, drain = report.concurrent_first_requests, report.drain
    climbs = "1 activation" if many.activations == 1 else f"{many.activations} activations"
    for line in (
        f"{many.requests} first requests at once at zero: {many.ok} answered, {climbs}",
        f"drain under load: {drain.requests} requests, {drain.failed} failed",
        f"left running: {report.leftover_processes} processes; the demo took {report.seconds:.0f} s",
    ):
        console.print(line, highlight=False)
    console.print(f"\n[bold]{report.question}[/bold]\n{report.answer}", highlight=False)
