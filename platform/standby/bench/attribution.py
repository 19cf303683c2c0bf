"""Where each request's time went, and which part of it makes the slowest slow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from standby.bench.values import Sample, Tail, TailPhase

# In the order in which they happen. What an activation is made of has the names of standby.domain.instance.Phase.
GENERATOR: Final = "generator lag"
QUEUED: Final = "queued"
FIRST_TOKEN: Final = "first token"  # noqa: S105 - a token of text
GENERATION: Final = "generation"
ANSWER: Final = "answer"
_CLIMB: Final = ("placed", "fetched", "forked", "loaded", "captured", "probed", "first_token")
_FIRST_OF_CLIMB: Final = "canary"
# More than this many are not needed to see what the tail has that the others have not.
_FEW: Final = 2


def parts_of(sample: Sample) -> Mapping[str, float]:
    """Return the seconds of each phase of one answered request; together they are its end-to-end latency.

    A request that waited for an activation waited for the last ``waited_s`` of it: those who come later see only its end. So
    the wait is taken from the activation's phases backwards, and what is left over was waiting in the queue.
    """
    parts = {GENERATOR: max(0.0, sample.lag_s)}
    left_s = max(0.0, sample.ended_s - sample.sent_s)
    waited_s = min(left_s, sample.waited_s or 0.0)
    left_s -= waited_s
    phases = dict(sample.phases_ms)
    for name in reversed(_CLIMB):
        took_s = min(waited_s, max(0.0, phases.get(name, 0.0) / 1000))
        if took_s > 0.0:
            parts[_FIRST_OF_CLIMB if name == "first_token" else name] = took_s
            waited_s -= took_s
    if sample.waited_s is not None:
        parts[QUEUED] = waited_s
    if sample.first_token_s is None:
        parts[ANSWER] = left_s
    else:
        generation_s = min(left_s, max(0.0, sample.ended_s - sample.first_token_s))
        parts[FIRST_TOKEN] = left_s - generation_s
        parts[GENERATION] = generation_s
    return parts


def tail_of(good: Sequence[Sample]) -> Tail | None:
    """Compare the phases of the requests above P90 with those of the others; None where there are too few to have a tail."""
    ordered = sorted(good, key=lambda sample: sample.e2e_s)
    cut, last = math.ceil(0.9 * len(ordered)), math.ceil(0.99 * len(ordered))
    rest, tail = ordered[:cut], ordered[cut:]
    if len(tail) < _FEW:
        return None
    slow, usual = _means(tail), _means(rest)
    names = dict.fromkeys([*usual, *slow])
    phases = [TailPhase(phase=name, tail_s=slow.get(name, 0.0), rest_s=usual.get(name, 0.0)) for name in names]
    return Tail(
        requests=len(tail),
        attributed=sum(1 for sample in tail if sample.waited_s is not None),
        gap_s=ordered[last - 1].e2e_s - ordered[cut - 1].e2e_s,
        phases=tuple(sorted(phases, key=lambda phase: -phase.excess_s)),
    )


def _means(samples: Sequence[Sample]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for sample in samples:
        for name, took_s in parts_of(sample).items():
            sums[name] = sums.get(name, 0.0) + took_s
    return {name: total / len(samples) for name, total in sums.items()}
