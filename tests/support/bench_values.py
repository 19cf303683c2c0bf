"""Samples, runs and plans of load for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from standby.bench.values import Plan, Planned, Run, Sample, Workload


def a_sample(due_s: float = 0.0, *, e2e_s: float = 1.0, ttft_s: float | None = 0.4, tokens: int = 4, **changes: Any) -> Sample:
    """A streamed answer of ``tokens`` evenly spaced tokens, sent when it was due."""
    gaps = () if ttft_s is None or tokens < 2 else ((e2e_s - ttft_s) / (tokens - 1),) * (tokens - 1)
    sample = Sample(
        due_s=due_s,
        sent_s=due_s,
        first_byte_s=due_s + (e2e_s if ttft_s is None else ttft_s),
        first_token_s=None if ttft_s is None else due_s + ttft_s,
        ended_s=due_s + e2e_s,
        status=200,
        error="",
        prompt_tokens=10,
        completion_tokens=tokens,
        gaps_s=gaps,
        target="smol",
    )
    return sample._replace(**changes)


def a_run(samples: Iterable[Sample] = (), **changes: Any) -> Run:
    """A run that had these samples."""
    there = tuple(samples)
    fields: dict[str, Any] = {
        "target": "smol",
        "workload": Workload(name="constant 1/s for 10 s"),
        "began_at": 1000.0,
        "seconds": max((sample.ended_s for sample in there), default=0.0),
        "samples": there,
        "planned": len(there),
    }
    return Run(**(fields | changes))


def a_plan(moments: Iterable[float], *, max_tokens: int = 4) -> Plan:
    """A plan with a request at each of these moments; the prompt is its number."""
    requests = [Planned(at, str(number), 1, max_tokens) for number, at in enumerate(moments)]
    return Plan(Workload(name="by hand"), requests)
