"""A run's numbers, as a pure function of its samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from standby.bench.attribution import tail_of
from standby.bench.values import Generator, Goodput, Latencies, Percentiles, Run, Sample, Slo, Step, Summary

UNKNOWN_RUNG: Final = "unknown"

# A generator may be this late at its 99th percentile: more would be seen in the latencies that it tells. The share is of the
# shortest of them, the median time to the first token: an answer of ten seconds would excuse half a second.
MOST_LAG_S: Final = 0.005
MOST_LAG_SHARE: Final = 0.05


def summarize(run: Run, slo: Slo | None = None) -> Summary:
    """Return the numbers of a run; an empty one has zero counts, and None wherever there is nothing to measure."""
    good = [sample for sample in run.samples if sample.ok]
    failed = [sample for sample in run.samples if not sample.ok]
    everything = latencies(good)
    completion = sum(sample.completion_tokens for sample in good)
    examples: dict[str, str] = {}
    for sample in failed:
        examples.setdefault(sample.error, sample.message)
    return Summary(
        target=run.target,
        workload=run.workload,
        began_at=run.began_at,
        seconds=run.seconds,
        planned=run.planned,
        requests=len(run.samples),
        ok=len(good),
        failed=len(failed),
        not_sent=run.not_sent,
        requests_per_s=_per_second(len(good), run),
        prompt_tokens=sum(sample.prompt_tokens for sample in good),
        completion_tokens=completion,
        tokens_per_s=_per_second(completion, run),
        errors=dict(Counter(sample.error for sample in failed).most_common()),
        error_examples=examples,
        statuses=dict(sorted(Counter(sample.status for sample in run.samples).items())),
        all=everything,
        by_rung={rung: latencies(group) for rung, group in sorted(by_rung(good).items())},
        by_step=_steps(run),
        goodput=None if slo is None or not slo.bounded else goodput(run, slo),
        generator=_generator(run, everything),
        tail=tail_of(good),
        notes=run.notes,
    )


def percentiles(values: Iterable[float]) -> Percentiles:
    """Return the percentiles of some values by the nearest rank."""
    ordered = sorted(values)
    if not ordered:
        return Percentiles()
    return Percentiles(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=nearest_rank(ordered, 50),
        p90=nearest_rank(ordered, 90),
        p95=nearest_rank(ordered, 95),
        p99=nearest_rank(ordered, 99),
        max=ordered[-1],
    )


def nearest_rank(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` of the sorted values do not exceed."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def latencies(samples: Sequence[Sample]) -> Latencies:
    """Return the latencies of requests that went well."""
    return Latencies(
        requests=len(samples),
        ttft=percentiles(ttft for sample in samples if (ttft := sample.ttft_s) is not None),
        tpot=percentiles(tpot for sample in samples if (tpot := sample.tpot_s) is not None),
        itl=percentiles(gap for sample in samples for gap in sample.gaps_s),
        e2e=percentiles(sample.e2e_s for sample in samples),
        waited=percentiles(sample.waited_s for sample in samples if sample.waited_s is not None),
    )


def by_rung(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Return the samples by the rung that they were served from; nothing where no answer names one."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.rung or UNKNOWN_RUNG, []).append(sample)
    return {} if set(groups) <= {UNKNOWN_RUNG} else groups


def goodput(run: Run, slo: Slo) -> Goodput:
    """Return how many of the requests that were due kept the bounds: what failed or was not sent did not."""
    good = sum(1 for sample in run.samples if keeps(sample, slo))
    due = len(run.samples) + run.not_sent
    return Goodput(slo=slo, good=good, ratio=good / due if due else None, per_s=_per_second(good, run))


def keeps(sample: Sample, slo: Slo) -> bool:
    """Whether a request was answered whole and within the bounds.

    Where an answer has no first token of its own, since it was not streamed, its end stands for it; without two tokens there
    is no time between them that could be too long.
    """
    ttft_s = sample.e2e_s if sample.ttft_s is None else sample.ttft_s
    return (
        sample.ok
        and (slo.ttft_s is None or ttft_s <= slo.ttft_s)
        and (slo.tpot_s is None or sample.tpot_s is None or sample.tpot_s <= slo.tpot_s)
        and (slo.e2e_s is None or sample.e2e_s <= slo.e2e_s)
    )


def _steps(run: Run) -> tuple[Step, ...]:
    steps = []
    for number, name in enumerate(run.steps):
        samples = [sample for sample in run.samples if sample.step == number]
        good = [sample for sample in samples if sample.ok]
        began_s = min((sample.due_s for sample in samples), default=0.0)
        lasted_s = max((sample.ended_s for sample in samples), default=0.0) - began_s
        steps.append(
            Step(
                name=name,
                requests=len(samples),
                failed=len(samples) - len(good),
                requests_per_s=len(good) / lasted_s if lasted_s > 0.0 else None,
                latencies=latencies(good),
            )
        )
    return tuple(steps)


def _generator(run: Run, measured: Latencies) -> Generator:
    lag = percentiles(sample.lag_s for sample in run.samples)
    medians = [latency.p50 for latency in (measured.ttft, measured.e2e) if latency.p50 is not None]
    allowed_s = max(MOST_LAG_S, MOST_LAG_SHARE * min(medians, default=0.0))
    invalid = ""
    if measured.requests and lag.p99 is not None and lag.p99 > allowed_s:
        invalid = (
            f"the generator was late: one request in a hundred went out {lag.p99 * 1000:.1f} ms or more after it was due, "
            f"where {allowed_s * 1000:.1f} ms is the most. The latencies are the generator's, too: ask for less, or use a "
            f"quieter machine"
        )
    return Generator(lag=lag, cpu_s=run.generator_cpu_s, invalid=invalid)


def _per_second(count: int, run: Run) -> float | None:
    return count / run.seconds if run.seconds > 0.0 and run.samples else None
