"""Engines with continuous batching behind one queue, simulated by discrete events with the gateway's own choice of engine.

An engine works in steps: each gives every running answer one token and reads some of the prompts that wait, the first one
first. What is decided, by thresholds or by what was learnt, is decided by ``hybrid`` and ``learned`` themselves; a request
whose engines have no slot free waits in the order of arrival.
"""

from __future__ import annotations

import csv
import heapq
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from standby.domain.model import EngineKind
from standby.domain.priority import Priority
from standby.domain.traffic import TrafficPolicy
from standby.gateway.hybrid import BackendView, TokenCount, choose_backend
from standby.gateway.learned import Answered, Estimate, learn, unknown

STEP_PROMPT_TOKENS: Final = 2048
_USUAL_OUTPUT: Final = 64.0
_RECENT: Final = 16


class Asked(NamedTuple):
    """A request of a trace: when it comes, in seconds, and its tokens."""

    at: float
    prompt: int
    output: int


class EngineSpeed(NamedTuple):
    """``first_s``: of each first token, beside the engine's steps; ``prompt_s`` per prompt token; a step takes ``step_s``
    and ``running_s`` more for each answer in it."""

    first_s: float
    prompt_s: float
    step_s: float
    running_s: float

    def faster(self, ratio: float, first: float = 1.0) -> EngineSpeed:
        """Return one whose steps are ``ratio`` times as fast; what is fixed takes ``first`` times as long."""
        return EngineSpeed(self.first_s * first, self.prompt_s / ratio, self.step_s / ratio, self.running_s / ratio)

    def first_alone(self, prompt: int) -> float:
        """Return the seconds to the first token of an idle engine."""
        return self.first_s + self.prompt_s * prompt


class Served(NamedTuple):
    """What a request got: seconds from its arrival to the first token, and for each one after it."""

    asked: Asked
    engine: str
    first_s: float
    token_s: float


@dataclass
class _Running:
    asked: Asked
    sent_at: float
    others: int
    unread: int
    first_at: float = 0.0


@dataclass
class _Engine:
    """``clock`` is when its present step ends; None: it rests."""

    label: str
    kind: EngineKind
    speed: EngineSpeed
    slots: int
    estimate: Estimate = field(init=False)
    service_s: float = 1.0
    reading: deque[_Running] = field(default_factory=deque)
    clock: float | None = None
    steps: int = 0
    _ends: list[tuple[int, int, _Running]] = field(default_factory=list)
    _number: int = 0
    _read: list[_Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.estimate = unknown(self.kind)

    @property
    def outstanding(self) -> int:
        return len(self.reading) + len(self._ends)

    def view(self) -> BackendView:
        free = self.outstanding < self.slots
        return BackendView(
            self.label, self.kind, self.estimate, self.outstanding, self.slots, 0.0 if free else self.service_s / self.slots
        )

    def take(self, asked: Asked, now: float) -> None:
        self.reading.append(_Running(asked, now, self.outstanding, asked.prompt))
        if self.clock is None:
            self._begin(now)

    def _begin(self, now: float) -> None:
        """Begin a step: as many prompt tokens as fit, and a token of each answer that runs."""
        left, self._read = STEP_PROMPT_TOKENS, []
        for one in self.reading:
            part = min(left, one.unread)
            one.unread -= part
            left -= part
            if one.unread:
                break
            self._read.append(one)
        running, read = len(self._ends), STEP_PROMPT_TOKENS - left
        if not running and not read:
            self.clock = None
            return
        lasts_s = self.speed.prompt_s * read + (self.speed.step_s + self.speed.running_s * running if running else 0.0)
        self.clock = now + lasts_s

    def end_step(self) -> list[_Running]:
        """End the step; return those whose answers are whole, and begin the next."""
        now = self.clock
        assert now is not None
        self.steps += 1
        for one in self._read:
            self.reading.popleft()
            one.first_at = now
            self._number += 1
            heapq.heappush(self._ends, (self.steps + one.asked.output - 1, self._number, one))
        done = []
        while self._ends and self._ends[0][0] <= self.steps:
            done.append(heapq.heappop(self._ends)[2])
        self._begin(now)
        return done

    def learn(self, one: _Running, now: float) -> None:
        lasted_s = now - one.sent_at + self.speed.first_s
        first_s = one.first_at - one.sent_at + self.speed.first_s
        self.service_s += (lasted_s - self.service_s) / _RECENT
        self.estimate = learn(self.estimate, Answered(one.asked.prompt, one.asked.output, one.others, first_s, lasted_s), now)


@dataclass(frozen=True)
class Fleet:
    """The engines of one endpoint: label → kind, speed; each has so many ``slots``."""

    engines: Mapping[str, tuple[EngineKind, EngineSpeed]]
    traffic: TrafficPolicy
    slots: int = 64


def simulate(fleet: Fleet, requests: Sequence[Asked]) -> list[Served]:
    """Return what each request got, in the order in which they ended."""
    run = _Run(fleet)
    for asked in requests:
        run.until(asked.at)
        run.arrive(asked)
    run.until(float("inf"))
    return run.served


class _Run:
    def __init__(self, fleet: Fleet) -> None:
        self.served: list[Served] = []
        self._traffic = fleet.traffic
        self._engines = {label: _Engine(label, kind, speed, fleet.slots) for label, (kind, speed) in fleet.engines.items()}
        self._waiting: deque[Asked] = deque()
        self._ticket = 0
        self._output = _USUAL_OUTPUT

    def until(self, moment: float) -> None:
        """End all steps that end before."""
        while True:
            busy = [engine for engine in self._engines.values() if engine.clock is not None]
            engine = min(busy, key=lambda one: one.clock or 0.0, default=None)
            if engine is None or engine.clock is None or engine.clock > moment:
                return
            now = engine.clock
            for one in engine.end_step():
                engine.learn(one, now)
                self._output += (one.asked.output - self._output) / _RECENT
                first_s = one.first_at - one.asked.at + engine.speed.first_s
                token_s = (now - one.first_at) / max(1, one.asked.output - 1)
                self.served.append(Served(one.asked, engine.label, first_s, token_s))
            self._send(now)

    def arrive(self, asked: Asked) -> None:
        self._waiting.append(asked)
        self._send(asked.at)

    def _send(self, now: float) -> None:
        while self._waiting:
            asked = self._waiting[0]
            label = self._choose(asked, now)
            if label is None:
                return
            self._waiting.popleft()
            self._engines[label].take(asked, now)

    def _choose(self, asked: Asked, now: float) -> str | None:
        """Return which engine gets it, as the gateway would decide; None: it waits."""
        free = [label for label, engine in self._engines.items() if engine.outstanding < engine.slots]
        if not free or len(self._engines) == 1:
            return free[0] if free else None
        self._ticket += 1
        chosen = choose_backend(
            [engine.view() for engine in self._engines.values()],
            TokenCount(asked.prompt, estimated=False),
            self._output,
            self._traffic,
            Priority.NORMAL,
            ticket=self._ticket,
            now=now,
            waited_s=now - asked.at,
        )
        if chosen.hold_s:
            return None
        return next(label for label in chosen.order if label in free)


# ---- traces -------------------------------------------------------------------------------------------------------


def read_traces(files: Iterable[Path], seconds: float) -> list[Asked]:
    """Return the first ``seconds`` of the traces as one, by time; files as of the Azure LLM Inference Trace 2023."""
    found = []
    for file in files:
        with file.open(newline="") as lines:
            for line in csv.DictReader(lines):
                at = datetime.fromisoformat(line["TIMESTAMP"][:26]).timestamp()
                found.append(Asked(at, max(1, int(line["ContextTokens"])), max(1, int(line["GeneratedTokens"]))))
    found.sort()
    began = found[0].at
    return [one._replace(at=one.at - began) for one in found if one.at - began < seconds]


def synthetic(count: int, seed: int) -> list[Asked]:
    """Return requests of the same kind where there is no trace: log-normal prompts and outputs with the trace's quartiles."""
    chosen = random.Random(seed)
    found, at = [], 0.0
    for _ in range(count):
        at += chosen.expovariate(8.0)
        prompt = min(7500, max(8, round(chosen.lognormvariate(6.8, 1.1))))
        output = min(1000, max(1, round(chosen.lognormvariate(4.2, 1.2))))
        found.append(Asked(at, prompt, output))
    return found


def at_rate(requests: Sequence[Asked], rate: float) -> list[Asked]:
    """Return the same requests, in time drawn together so that ``rate`` come in each second."""
    factor = len(requests) / requests[-1].at / rate
    return [one._replace(at=one.at * factor) for one in requests]


def rates(around: float, count: int, step: float) -> Iterator[float]:
    """Yield ``count`` rates that grow by ``step`` each, ``around`` the middle one."""
    yield from (around * step ** (place - count // 2) for place in range(count))
