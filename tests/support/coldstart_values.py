"""What ``bench_coldstart`` has measured, and what follows from it: medians, spreads, ratios, goals. No I/O."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from support.coldstart_phases import Phase


class Kind(StrEnum):
    """A way to the first token."""

    PLAIN = "plain"
    ZYGOTE = "zygote"
    ASLEEP = "asleep"
    LLAMA = "llama"
    RAY = "ray"
    CONTAINER = "container"


TITLES: Final = {
    Kind.PLAIN: "vLLM, plain server",
    Kind.ZYGOTE: "vLLM, forked from the zygote",
    Kind.ASLEEP: "vLLM, asleep",
    Kind.LLAMA: "llama.cpp, staged",
    Kind.RAY: "Ray Serve around llama.cpp, from zero",
    Kind.CONTAINER: "container: untar, import, build, first token",
}


@dataclass(frozen=True)
class Sample:
    """One start. ``first_token_s``: from the spawn, the wake or the request; ``details``: what else was seen, in seconds
    or, for ``idle_cpu``, as a share of a core.
    """

    first_token_s: float
    phases: Mapping[Phase, float] = field(default_factory=dict)
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Memory:
    """Megabytes (10⁶ bytes): PSS of two instances forked one after the other from one zygote, and what the zygote holds."""

    first_pss_mb: float
    second_pss_mb: float
    second_private_mb: float
    zygote_alone_pss_mb: float
    zygote_beside_two_pss_mb: float
    zygote_rss_mb: float


@dataclass
class Results:
    """All that one run of the benchmark has measured; what it left out is missing or None."""

    samples: dict[Kind, list[Sample]] = field(default_factory=dict)
    idle_ready: float | None = None
    idle_parked: float | None = None
    memory: Memory | None = None
    hatch_s: float | None = None
    versions: list[str] = field(default_factory=list)

    def add(self, kind: Kind, sample: Sample) -> None:
        """Keep ``sample``."""
        self.samples.setdefault(kind, []).append(sample)

    def values(self, kind: Kind) -> list[float]:
        """Return the seconds to the first token of each start, in order; empty when it was left out."""
        return [sample.first_token_s for sample in self.samples.get(kind, [])]

    def median(self, kind: Kind) -> float | None:
        """Return the median of ``values``."""
        values = self.values(kind)
        return statistics.median(values) if values else None

    def detail(self, kind: Kind, name: str) -> float | None:
        """Return the median of a detail over the starts that have it."""
        values = [sample.details[name] for sample in self.samples.get(kind, []) if name in sample.details]
        return statistics.median(values) if values else None

    def phase(self, kind: Kind, phase: Phase) -> float | None:
        """Return the median seconds of a phase."""
        values = [sample.phases[phase] for sample in self.samples.get(kind, []) if phase in sample.phases]
        return statistics.median(values) if values else None

    def speedup(self, kind: Kind) -> float | None:
        """Return how many times as long the plain server takes: the ratio of the medians."""
        plain, ours = self.median(Kind.PLAIN), self.median(kind)
        return None if plain is None or not ours else plain / ours

    def figures(self) -> dict[str, float | None]:
        """Return the figures that the last line of the benchmark carries; None for what was left out."""
        return {
            "speedup_zygote": _rounded(self.speedup(Kind.ZYGOTE), 1),
            "speedup_asleep": _rounded(self.speedup(Kind.ASLEEP), 1),
            "idle_cpu_ready": _rounded(self.idle_ready, 4),
            "idle_cpu_parked": _rounded(self.idle_parked, 4),
            "pss_second_instance_mb": _rounded(self.memory.second_pss_mb if self.memory else None, 1),
            "llama_staged_first_token_s": _rounded(self.median(Kind.LLAMA), 3),
            "ray_serve_first_token_s": _rounded(self.median(Kind.RAY), 2),
        }


@dataclass(frozen=True)
class Goal:
    """What a figure should be at least, or at most."""

    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        """Return whether ``value`` keeps it."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def __str__(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"


GOALS: Final = {
    "speedup_zygote": Goal(at_least=12),
    "speedup_asleep": Goal(at_least=200),
    "idle_cpu_ready": Goal(at_most=0.02),
    "idle_cpu_parked": Goal(at_most=0.02),
    "llama_staged_first_token_s": Goal(at_most=1.5),
}


def missed(figures: Mapping[str, float | None]) -> list[str]:
    """Return the names of the figures that were measured and miss their goals."""
    return [name for name, goal in GOALS.items() if (value := figures.get(name)) is not None and not goal.met(value)]


def in_turn(kinds: Sequence[Kind], runs: int) -> list[Kind]:
    """Return the order of all starts: each kind once in a round, every other round backwards, so that none is always first."""
    forth, back = list(kinds), list(reversed(kinds))
    return [kind for number in range(runs) for kind in (back if number % 2 else forth)]


def spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Return the smallest and the largest value."""
    return f"{show(min(values))} to {show(max(values))}" if values else ""


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
