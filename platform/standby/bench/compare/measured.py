"""From samples to what an act has measured: pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from standby.bench.compare.values import Burst, ColdStart, Reached, ScaleIn
from standby.bench.values import ErrorClass, Plan, Planned, Sample

# So many failures in a row, and one more request that fails, mean that a target is gone.
_LOST_AFTER: Final = 3


def in_turn(rounds: int) -> list[tuple[int, int]]:
    """Return who comes first and second in each round: AB, BA, AB, …, which is ABBA over and over."""
    return [(0, 1) if number % 2 == 0 else (1, 0) for number in range(rounds)]


def from_zero(requests: Sequence[Planned]) -> list[Planned]:
    """Return the requests with the first one due at 0."""
    begin = requests[0].due_s if requests else 0.0
    return [one._replace(due_s=one.due_s - begin) for one in requests]


def block_of(plan: Plan, number: int, blocks: int) -> Plan:
    """Return one of ``blocks`` parts of a plan, due from 0 on."""
    size = len(plan.requests)
    part = plan.requests[size * number // blocks : size * (number + 1) // blocks]
    return plan._replace(requests=from_zero(part))


def lost_from(samples: Sequence[Sample]) -> Sample | None:
    """Return the first of the failures in a row at the end, where there are so many that the target may be gone."""
    trailing: list[Sample] = []
    for sample in reversed(samples):
        if sample.ok:
            break
        trailing.append(sample)
    return trailing[-1] if len(trailing) >= min(_LOST_AFTER, len(samples)) > 0 else None


def cold_start(at_s: float, how: Reached, sample: Sample) -> ColdStart:
    return ColdStart(
        at_s=at_s,
        reached=how.words,
        rung=sample.rung,
        ttft_s=sample.ttft_s if sample.ok else None,
        e2e_s=sample.e2e_s if sample.ok else None,
        phases_ms=sample.phases_ms,
        error=f"{sample.error}: {sample.message}" if sample.error else "",
    )


def burst(at_s: float, how: Reached, samples: Sequence[Sample]) -> Burst:
    good = [sample for sample in samples if sample.ok]
    first = [sample.first_token_s for sample in good if sample.first_token_s is not None]
    whole = len(good) == len(samples) > 0
    return Burst(
        at_s=at_s,
        reached=how.words,
        requests=len(samples),
        ok=len(good),
        first_s=min(first, default=None),
        running_s=max(first) if whole and len(first) == len(samples) else None,
        served_s=max(sample.ended_s for sample in good) if whole else None,
    )


def scale_in(at_s: float, seen: str, samples: Sequence[Sample]) -> ScaleIn:
    broken = {ErrorClass.BROKEN_STREAM.value, ErrorClass.STREAM_ERROR.value}
    return ScaleIn(
        at_s=at_s,
        seen=seen,
        requests=len(samples),
        failed=failed(samples),
        interrupted=sum(sample.error in broken for sample in samples),
        server_errors=sum(sample.status >= 500 for sample in samples),
    )


def failed(samples: Sequence[Sample]) -> int:
    return sum(not sample.ok for sample in samples)


def in_short(sample: Sample) -> str:
    if not sample.ok:
        return f"failed, {sample.error}"
    return f"first token after {(sample.ttft_s or sample.e2e_s) * 1000:.0f} ms" + (
        f" from {sample.rung}" if sample.rung else ""
    )
