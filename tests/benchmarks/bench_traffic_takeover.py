"""How soon the other engine of an endpoint answers when one is killed under load, in both directions.

Once with real llama.cpp and vLLM, and several times with two fake engines. The first engine is chosen by thresholds, so that
all requests are with the one that dies; it is killed by SIGKILL, as for want of memory. Counted is the time from then to the
first text that the other engine gives to a request which came after the death or was moved from the dead one. Part of
``bench_traffic.py``.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from support.bench_figures import percentile
from support.traffic_load import Answer, Class, arrivals
from support.traffic_place import Backends, Served, endpoint
from support.user import Up

LIMIT_S: Final = 1.0
BRIEF: Final = Class("brief", words=8, output=8)
MIDDLING: Final = Class("middling", words=60, output=8)
RATE: Final = 4.0
FAKE_RATE: Final = 40.0
FAKE_ROUNDS: Final = 5
_BEFORE_S: Final = 1.5
# What counts as during the takeover: requests that came from a little before the death until so long after it.
_DURING_S: Final = 2.0
_LEAD_S: Final = 0.5
_SHORT_PROMPT: Final = 24
# Longer than _BEFORE_S, so that the second of two deaths hits an engine that has taken over.
_RETURN_AFTER_S: Final = 4.0
_TRAFFIC: Final[Mapping[str, Any]] = {
    "tier": "critical",
    "latency_target": 0.1,
    "queue": "static",
    "hybrid": {"policy": "thresholds", "short_prompt": _SHORT_PROMPT, "return_after": _RETURN_AFTER_S},
}
_REAL: Final[Backends] = (
    {"engine": "llama_cpp", "slots": 8},
    {"engine": "vllm", "weights": "full", "slots": 8},
)
# 50 tokens a second, as of a small model on a processor.
_FAKE_OPTIONS: Final = {"token_delay_ms": 20, "tokens": 8}
_FAKES: Final[Backends] = tuple(
    {"engine": "fake", "name": name, "slots": 16, "engine_options": _FAKE_OPTIONS} for name in ("first", "spare")
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Takeover:
    """One death: ``seconds`` to the other engine's first text, and what became of the requests meanwhile.

    ``held``: the share of the requests before it that were with the engine which died.
    """

    dead: str
    other: str
    held: float
    seconds: float
    p95_first_s: float
    asked: int
    failed: Counter[str] = field(default_factory=Counter)
    retried: int = 0

    @property
    def line(self) -> str:
        """Everything in one line."""
        failures = ", ".join(f"{count} x {words}" for words, count in self.failed.items()) or "none"
        return (
            f"{self.dead} dead (it had {self.held:.0%}), {self.other} answers after {self.seconds:.3f} s; "
            f"first token meanwhile p95 {self.p95_first_s:.3f} s; {self.asked} requests, "
            f"{self.retried} moved to the other engine, failed: {failures}"
        )


@dataclass(frozen=True)
class Takeovers:
    """``real`` and ``fake`` ones; ``seconds``: the slowest of the real ones, or of the fake ones where there are no real."""

    real: tuple[Takeover, ...]
    fake: tuple[Takeover, ...]

    @property
    def seconds(self) -> float:
        """See above."""
        return max(one.seconds for one in self.real or self.fake)

    @property
    def lines(self) -> tuple[str, ...]:
        """For people."""
        seconds = sorted(one.seconds for one in self.fake)
        firsts = [one.p95_first_s for one in self.fake]
        summary = (
            f"fake engines, {len(seconds)} deaths: "
            f"takeover median {statistics.median(seconds):.3f} s, slowest {seconds[-1]:.3f} s; "
            f"first token meanwhile p95 {statistics.median(firsts):.3f} s (median of the deaths), {max(firsts):.3f} s (worst); "
            f"{sum(one.asked for one in self.fake)} requests, {sum(one.retried for one in self.fake)} moved, "
            f"{sum(one.failed.total() for one in self.fake)} failed"
        )
        return (
            *(f"real engines: {one.line}" for one in self.real),
            *(f"fake engines: {one.line}" for one in self.fake),
            summary,
        )


async def measure(place: Up, say: Say, *, real: bool = True, rounds: int = FAKE_ROUNDS) -> Takeovers:
    """Kill each engine once, and each of two fake ones ``rounds`` times."""
    found: list[Takeover] = []
    if real:
        async with endpoint(place, "pair", _REAL, _TRAFFIC) as served:
            await _warm(served)
            found.append(await _killed(served, "vllm", "llama_cpp", BRIEF, RATE, 1))
            say(found[-1].line)
            found.append(await _killed(served, "llama_cpp", "vllm", MIDDLING, RATE, 2))
            say(found[-1].line)
    fakes: list[Takeover] = []
    async with endpoint(place, "fakes", _FAKES, _TRAFFIC) as served:
        for number in range(rounds):
            fakes.append(await _killed(served, "first", "spare", MIDDLING, FAKE_RATE, 2 * number))
            # The first one is there again, but not well for long enough: all requests are still with the other one.
            fakes.append(await _killed(served, "spare", "first", MIDDLING, FAKE_RATE, 2 * number + 1, settled=False))
    return Takeovers(tuple(found), tuple(fakes))


async def _warm(served: Served) -> None:
    for kind in (BRIEF, MIDDLING):
        await served.caller.offer(arrivals({kind: 1.0}, 2.0, 3.0, seed=1))


async def _killed(
    served: Served, dead: str, other: str, kind: Class, rate: float, seed: int, *, settled: bool = True
) -> Takeover:
    """Kill an engine under load, whose prompts follow from ``seed``: those that an engine died with come never again.

    Returns once it is ready again; ``settled``: begins only when it gets requests.
    """
    before = (await served.instances())[dead]
    if settled:
        await _until_chosen(served, dead, kind)
    began_at = time.time()
    load = asyncio.create_task(served.caller.offer(arrivals({kind: 1.0}, rate, _BEFORE_S + _DURING_S, seed)))
    await asyncio.sleep(_BEFORE_S)
    died_at = time.monotonic()
    served.kill(before)
    answers = await load
    meanwhile = [one for one in answers if died_at - _LEAD_S <= one.due_at]
    firsts = [one.first_s for one in meanwhile if one.first_s is not None]
    past = [one for one in await served.past() if one["arrived_at"] >= began_at and one["attempts"]]
    earlier = [one["attempts"][0]["backend"] == dead for one in past if one["arrived_at"] < began_at + _BEFORE_S - _LEAD_S]
    await served.until_ready(dead, but_epoch=before["epoch"])
    return Takeover(
        dead,
        other,
        sum(earlier) / max(1, len(earlier)),
        _first_of(answers, other, died_at),
        percentile(firsts, 0.95),
        len(answers),
        Counter(_failure(one) for one in answers if not one.ended),
        sum(len({attempt["backend"] for attempt in one["attempts"]}) > 1 for one in past),
    )


async def _until_chosen(served: Served, backend: str, kind: Class) -> None:
    """Ask until the engine gets the requests of this kind."""
    async with asyncio.timeout(30):
        while True:
            (answer,) = await served.caller.offer(arrivals({kind: 1.0}, 5.0, 0.5, seed=3)[:1])
            if _by(answer, backend):
                return
            await asyncio.sleep(0.1)


def _first_of(answers: list[Answer], backend: str, died_at: float) -> float:
    """Return the seconds from the death until the first text of the other engine that is the takeover's doing."""
    firsts = (one.first_at for one in answers if _by(one, backend) and one.first_at is not None)
    return min((at - died_at for at in firsts if at > died_at), default=float("inf"))


def _failure(answer: Answer) -> str:
    """Name how it failed: the code of the error, or its beginning."""
    code = re.search(r'"code": ?"(\w+)"', answer.error)
    return f"{answer.status} {code.group(1) if code else answer.error[:100]}"


def _by(answer: Answer, backend: str) -> bool:
    """Whether the answer says that this engine gave it."""
    return f" {backend};" in answer.route
