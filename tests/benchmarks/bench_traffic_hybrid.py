"""Goodput of an endpoint with two real engines on a mixed load, beside each of them alone.

llama.cpp and vLLM serve SmolLM2-135M on this machine's processors, in a whole deployment. Short and long prompts come in an
open loop; a request is good when its answer is whole and its first token came within the objective of its class, which is
fixed before: a multiple of what the better idle engine needs for it. Of each engine alone several settings are tried, and
the better one counts. All configurations may use all processors and get the very same requests, in turn, while the others
rest, so that what else this machine does meets them alike. Part of ``bench_traffic.py``.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

from support.bench_figures import percentile
from support.traffic_load import Answer, Class, arrivals
from support.traffic_place import Backends, Served, endpoint
from support.user import Up

SHORT: Final = Class("short", words=24, output=8)
LONG: Final = Class("long", words=1500, output=16)
SHARES: Final = {SHORT: 0.85, LONG: 0.15}
FACTOR: Final = 5.0
# Of the rate at which the better engine alone would do nothing but read prompts.
LOADS: Final = (0.5, 0.8, 1.1)
ROUNDS: Final = 2
LASTS_S: Final = 16.0
GOAL: Final = 1.2
_SLOTS: Final = 8
_IDLE_ASKS: Final = {SHORT: 5, LONG: 2}
_WARM_UP_S: Final = 12.0
# An engine that needs so much more than another setting of it is not looked at any further.
_HOPELESS: Final = 2.0
# An engine that reads so much longer than the other one cannot have the better goodput alone.
_OUT_OF_REACH: Final = 3.0
# Beyond the objective: the tokens of an answer that began in time. After that nobody waits any more.
_ANSWER_S: Final = 5.0
_NEVER_S: Final = 1e3

Say = Callable[[str], None]
Targets = Mapping[str, float]


@dataclass(frozen=True)
class Setup:
    """What serves: a name for people and the endpoint's backends."""

    name: str
    backends: Backends


def _llama(threads: int) -> dict[str, Any]:
    return {"engine": "llama_cpp", "slots": _SLOTS, "engine_options": {"threads": threads}}


def _vllm(threads: int) -> dict[str, Any]:
    return {"engine": "vllm", "weights": "full", "slots": _SLOTS, "engine_options": {"threads": threads}}


def singles() -> dict[str, tuple[Setup, ...]]:
    """Return the settings in which each engine is tried alone: with half of the processors, and with all."""
    every = len(os.sched_getaffinity(0))
    half = max(1, every // 2)
    return {
        "vLLM": tuple(Setup(f"vLLM, threads {threads}", (_vllm(threads),)) for threads in (half, every)),
        "llama.cpp": tuple(Setup(f"llama.cpp, threads {threads}", (_llama(threads),)) for threads in (half, every)),
    }


def pair() -> Setup:
    """Return both engines, each with half of the processors."""
    half = max(1, len(os.sched_getaffinity(0)) // 2)
    return Setup("hybrid of both, learned", (_vllm(half), _llama(half)))


@dataclass
class Measured:
    """``idle``: median seconds to the first token by class; ``runs``: all answers by rate."""

    setup: Setup
    idle: dict[str, float] = field(default_factory=dict)
    runs: dict[float, list[Answer]] = field(default_factory=dict)

    def goodput(self, rate: float, targets: Targets) -> float:
        """Return the good requests per second."""
        return sum(answer.within(targets) for answer in self.runs[rate]) / (ROUNDS * LASTS_S)

    def good(self, targets: Targets) -> int:
        """Return the good requests of all rates together."""
        return sum(answer.within(targets) for answers in self.runs.values() for answer in answers)

    def best(self, targets: Targets) -> float:
        """Return the best goodput of all rates."""
        return max(self.goodput(rate, targets) for rate in self.runs)

    @property
    def reading_s(self) -> float:
        """Seconds that it reads for a request of the mixed load."""
        return sum(share * self.idle[kind.name] for kind, share in SHARES.items())


@dataclass(frozen=True)
class Comparison:
    """The best goodput of the hybrid over that of the better single engine; lines.

    ``by_rate`` and ``pooled``, over all rates together, say how far that is chance.
    """

    ratio: float
    pooled: float
    by_rate: Mapping[float, float]
    lines: tuple[str, ...]


async def compare(place: Up, say: Say) -> Comparison:
    """Measure each engine alone and both together."""
    alone, lines = [], []
    for setups in singles().values():
        chosen, tried = await _better(place, setups, say)
        alone.append(chosen)
        lines += [f"idle, {one.setup.name}{' (chosen)' * (one is chosen)}: {_told_idle(one)}" for one in tried]
    targets = {kind.name: FACTOR * min(one.idle[kind.name] for one in alone) for kind in SHARES}
    quickest = min(one.reading_s for one in alone)
    rates = [round(load / quickest, 2) for load in LOADS]
    both = Measured(pair())
    slow = [one for one in alone if one.reading_s > _OUT_OF_REACH * quickest]
    lines += [
        f"{one.setup.name} alone is not loaded: idle it reads for {one.reading_s / quickest:.1f} x as long" for one in slow
    ]
    alone = [one for one in alone if one not in slow]
    every = (*alone, both)
    await _load(place, every, rates, targets, say)
    best = max(one.best(targets) for one in alone)
    by_rate = {rate: _ratio(both.goodput(rate, targets), max(one.goodput(rate, targets) for one in alone)) for rate in rates}
    lines += _described(targets)
    lines += [line for one in every for line in _told(one, targets)]
    pooled = _ratio(both.good(targets), max(one.good(targets) for one in alone))
    return Comparison(_ratio(both.best(targets), best), pooled, by_rate, tuple(lines))


async def _better(place: Up, setups: Sequence[Setup], say: Say) -> tuple[Measured, list[Measured]]:
    """Return the setting that needs less time for both classes when it is idle, and all that were tried."""
    tried: list[Measured] = []
    for setup in setups:
        measured = Measured(setup)
        async with endpoint(place, "tried", setup.backends, {}) as served:
            await _idle(served, measured, [one.idle[SHORT.name] for one in tried])
        say(f"idle, {setup.name}: {_told_idle(measured)}")
        tried.append(measured)
    whole = [one for one in tried if LONG.name in one.idle]
    return min(whole, key=lambda one: one.idle[SHORT.name] * one.idle[LONG.name]), tried


async def _idle(served: Served, into: Measured, others: Sequence[float]) -> None:
    chosen = random.Random(0)
    for kind, count in _IDLE_ASKS.items():
        answers = [await served.caller.ask(kind, chosen) for _ in range(count + 1)][1:]
        into.idle[kind.name] = statistics.median(one.first_s if one.first_s is not None else _NEVER_S for one in answers)
        if others and into.idle[SHORT.name] > _HOPELESS * min(others):
            return


async def _load(place: Up, every: Sequence[Measured], rates: Sequence[float], targets: Targets, say: Say) -> None:
    """Let all be ready, and load one after the other with the same requests. The endpoints' target is the short ones'."""
    traffic = {"latency_target": targets[SHORT.name], "queue": "static"}
    limit_s = max(targets.values()) + _ANSWER_S
    async with AsyncExitStack() as stack:
        served = [
            await stack.enter_async_context(endpoint(place, f"e{at}", one.setup.backends, traffic))
            for at, one in enumerate(every)
        ]
        callers = [replace(there.caller, limit_s=limit_s) for there in served]
        for caller in callers:
            await caller.offer(arrivals(SHARES, rates[0], _WARM_UP_S, seed=99))
        for seed, (number, rate) in enumerate(itertools.product(range(ROUNDS), rates)):
            dues = arrivals(SHARES, rate, LASTS_S, seed)
            for caller, one in zip(callers, every, strict=True):
                one.runs.setdefault(rate, []).extend(await caller.offer(dues))
            say(f"round {number + 1} of {ROUNDS}: {rate:g}/s done")


# ---- words --------------------------------------------------------------------------------------------------------


def _ratio(mine: float, theirs: float) -> float:
    return mine / theirs if theirs else float("inf")


def _told_idle(one: Measured) -> str:
    return ", ".join(f"{name} {seconds:.3f} s" for name, seconds in one.idle.items()) + " to the first token"


def _described(targets: Targets) -> list[str]:
    kinds = ", ".join(f"{share:.0%} {kind.name} ({kind.words} words, {kind.output} tokens)" for kind, share in SHARES.items())
    objectives = ", ".join(f"{name} {target:.2f} s" for name, target in targets.items())
    how = f"Poisson arrivals for {ROUNDS} x {LASTS_S:g} s at each rate, the same ones for all; no prompt begins like another"
    return [f"load: {kinds}; {how}", f"objectives to the first token ({FACTOR:g} x the better idle engine): {objectives}"]


def _told(one: Measured, targets: Targets) -> list[str]:
    lines = []
    for rate, answers in one.runs.items():
        parts = []
        for kind in SHARES:
            mine = [answer for answer in answers if answer.kind is kind]
            firsts = [answer.first_s if answer.first_s is not None else _NEVER_S for answer in mine]
            good = sum(answer.within(targets) for answer in mine)
            where = _where(mine)
            p95 = percentile(firsts, 0.95)
            parts.append(
                f"{kind.name} {good} of {len(mine)} good, first token p50 {statistics.median(firsts):.2f} s, "
                f"p95 {f'{p95:.2f} s' if p95 < _NEVER_S else 'never'}{where}"
            )
        lines.append(f"{one.setup.name}, {rate:g}/s: goodput {one.goodput(rate, targets):.2f}/s; {'; '.join(parts)}")
    return lines


def _where(answers: Sequence[Answer]) -> str:
    """Say which engine of several got them."""
    counts = {label: sum(one.route.count(f" {label};") > 0 for one in answers) for label in ("vllm", "llama_cpp")}
    return f" ({', '.join(f'{count} on {label}' for label, count in counts.items())})" if any(counts.values()) else ""
