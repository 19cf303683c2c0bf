"""From options to a plan: which requests come when, and how long they are. Pure, and the same again for the same seed."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, overload

from pydantic import JsonValue

from standby.bench import arrivals
from standby.bench.lengths import Lengths, Text, parse_lengths
from standby.bench.trace_file import Recorded, read_trace, replayed
from standby.bench.values import Plan, Planned, Workload
from standby.domain.durations import format_duration
from standby.domain.errors import InvalidInput

DURATION_S: Final = 30.0
MOST_REQUESTS: Final = 1_000_000
MOST_SECONDS: Final = 30 * 86_400.0
_BYTES_PER_TOKEN: Final = 4
_TOKENS: Final = 32  # of prompts and of answers, where nobody says how many


class Arrivals(StrEnum):
    """How the requests of a rate come."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What a command line says of the load; rates per second, times in seconds, lengths in tokens. None: not said."""

    rate: float = 1.0
    arrivals: Arrivals = Arrivals.POISSON
    cv: float | None = None
    ladder: tuple[float, ...] = ()
    step_s: float = 30.0
    burst: int | None = None
    trace: Path | None = None
    function: str | None = None
    speed: float = 1.0
    duration_s: float | None = None
    count: int | None = None
    prompt: str | None = None
    prompt_tokens: str | None = None
    max_tokens: str | None = None
    seed: int = 0


class _When(NamedTuple):
    """Moments with the number of their step and the lengths that a trace has for them."""

    at_s: float
    step: int = 0
    prompt_tokens: int | None = None
    max_tokens: int | None = None


class Requests(Sequence[Planned]):
    """The requests of a plan, made when they are asked for: a million prompts need not be in memory at once."""

    def __init__(self, when: Sequence[_When], options: LoadOptions, chance: random.Random) -> None:
        self._text = Text(chance)
        self._prompt = options.prompt
        self._due = array("d", (one.at_s for one in when))
        self._steps = array("l", (one.step for one in when))
        prompts, answers = _lengths(options)
        if options.prompt is not None:
            tokens = max(1, len(options.prompt.encode()) // _BYTES_PER_TOKEN)
            self._prompt_tokens = array("l", [tokens]) * len(when)
        else:
            self._prompt_tokens = _drawn((one.prompt_tokens for one in when), prompts, chance)
        self._max_tokens = _drawn((one.max_tokens for one in when), answers, chance)
        self._places = array("d", (chance.random() for _ in when))

    def __len__(self) -> int:
        return len(self._due)

    @overload
    def __getitem__(self, at: int) -> Planned: ...

    @overload
    def __getitem__(self, at: slice) -> list[Planned]: ...

    def __getitem__(self, at: int | slice) -> Planned | list[Planned]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        tokens = self._prompt_tokens[at]
        prompt = self._text.window(tokens, self._places[at]) if self._prompt is None else self._prompt
        return Planned(self._due[at], prompt, tokens, self._max_tokens[at], self._steps[at])


def plan_of(options: LoadOptions) -> Plan:
    """Return the plan. Raises InvalidInput for options that contradict each other, and for a plan without end."""
    _check(options)
    chance = random.Random(options.seed)  # noqa: S311 (arrivals, no secrets)
    when, name, steps = _when(options, chance)
    if len(when) > MOST_REQUESTS:
        raise InvalidInput(
            f"the plan has more than {MOST_REQUESTS} requests, the most there may be", remedy="give --count, or a shorter time"
        )
    if when and when[-1].at_s > MOST_SECONDS:
        raise InvalidInput(
            f"the plan's last request is due after {when[-1].at_s / 86_400:.3g} days, the limit is {MOST_SECONDS / 86_400:g}",
            remedy="give a higher --rate or --speed, or a shorter --duration",
        )
    return Plan(Workload(name=name, parameters=_parameters(options), seed=options.seed), Requests(when, options, chance), steps)


def _check(options: LoadOptions) -> None:
    shapes = {"--burst": options.burst is not None, "--trace": options.trace is not None, "--ladder": bool(options.ladder)}
    chosen = [name for name, given in shapes.items() if given]
    if len(chosen) > 1:
        raise InvalidInput(f"{' and '.join(chosen)} are different loads", remedy="give one of them")
    if options.count is not None and not 1 <= options.count <= MOST_REQUESTS:
        raise InvalidInput(f"--count {options.count} is not possible", remedy=f"give 1 to {MOST_REQUESTS}")
    if options.burst is not None and not 1 <= options.burst <= MOST_REQUESTS:
        raise InvalidInput(f"--burst {options.burst} is not possible", remedy=f"give 1 to {MOST_REQUESTS}")
    if chosen and options.arrivals is not Arrivals.POISSON:
        raise InvalidInput(f"{chosen[0]} says itself when requests come", remedy="leave --arrivals out")
    if options.burst is not None and (options.count is not None or options.duration_s is not None):
        raise InvalidInput("--burst says how many requests there are", remedy="leave --count and --duration out")
    if options.ladder and options.duration_s is not None:
        raise InvalidInput("a ladder lasts as long as its steps", remedy="give --step in place of --duration")
    if options.speed != 1.0 and options.trace is None:
        raise InvalidInput("--speed is that of a trace", remedy="give --trace with it")
    if options.cv is not None and options.arrivals is not Arrivals.GAMMA:
        raise InvalidInput("--cv says how bursty gamma arrivals are", remedy="give --arrivals gamma with it")
    if options.function is not None and options.trace is None:
        raise InvalidInput("--function names a function of a trace", remedy="give --trace with it")
    if options.prompt is not None and options.prompt_tokens is not None:
        raise InvalidInput("--prompt and --prompt-tokens contradict each other", remedy="give one of them")


def _when(options: LoadOptions, chance: random.Random) -> tuple[list[_When], str, tuple[str, ...]]:
    """Return the moments, the workload's name in words, and the names of a ladder's steps."""
    # One more than there may be, so that a plan without end is seen and not built.
    count = options.count if options.count is not None else MOST_REQUESTS + 1
    if options.burst is not None:
        return [_When(at) for at in arrivals.burst(options.burst)], f"burst of {options.burst} at once", ()
    if options.trace is not None:
        recorded = read_trace(options.trace, chance, function=options.function, most=count)
        kept = replayed(recorded, speed=options.speed, duration_s=options.duration_s)
        pace = "" if options.speed == 1.0 else f", {options.speed:g} times as fast"
        return [_of_trace(one) for one in kept], f"trace {options.trace.name}{pace}", ()
    if options.ladder:
        moments = arrivals.ladder(options.ladder, options.step_s, chance, most=count)
        steps = tuple(f"{rate:g}/s" for rate in options.ladder)
        return [_When(at, step) for at, step in moments], f"ladder of {', '.join(steps)}, {options.step_s:g} s each", steps
    duration_s = DURATION_S if options.duration_s is None and options.count is None else options.duration_s
    moments_of_rate = arrivals.bounded(_process(options, chance), duration_s=duration_s, count=count)
    until = f"{options.count} requests" if duration_s is None else format_duration(duration_s)
    return [_When(at) for at in moments_of_rate], f"{_process_name(options)} {options.rate:g}/s for {until}", ()


def _process(options: LoadOptions, chance: random.Random) -> Iterable[float]:
    match options.arrivals:
        case Arrivals.POISSON:
            return arrivals.poisson(options.rate, chance)
        case Arrivals.GAMMA:
            return arrivals.gamma(options.rate, 1.0 if options.cv is None else options.cv, chance)
        case Arrivals.CONSTANT:
            return arrivals.constant(options.rate)


def _process_name(options: LoadOptions) -> str:
    if options.arrivals is Arrivals.GAMMA:
        return f"gamma (CV {1.0 if options.cv is None else options.cv:g})"
    return options.arrivals.value


def _of_trace(one: Recorded) -> _When:
    return _When(one.at_s, 0, one.prompt_tokens, one.answer_tokens)


def _lengths(options: LoadOptions) -> tuple[Lengths | None, Lengths | None]:
    """Return the distributions that options give; None: as the trace says, else ``_TOKENS``."""
    prompts = None if options.prompt_tokens is None else parse_lengths(options.prompt_tokens, "--prompt-tokens")
    answers = None if options.max_tokens is None else parse_lengths(options.max_tokens, "--max-tokens")
    return prompts, answers


def _drawn(recorded: Iterable[int | None], wanted: Lengths | None, chance: random.Random) -> array[int]:
    if wanted is not None:
        return array("l", (wanted.draw(chance) for _ in recorded))
    # A trace may hold requests of no length; an engine is asked for one token at least.
    return array("l", (_TOKENS if tokens is None else max(1, tokens) for tokens in recorded))


def _parameters(options: LoadOptions) -> dict[str, JsonValue]:
    """Return the options that say what the load is, under the names of the command line."""
    said: dict[str, JsonValue] = {}
    if options.burst is not None:
        said["burst"] = options.burst
    elif options.trace is not None:
        said |= {"trace": options.trace.name, "speed": options.speed, "function": options.function}
    elif options.ladder:
        said |= {"ladder": list(options.ladder), "step_s": options.step_s}
    else:
        said |= {"arrivals": options.arrivals.value, "rate": options.rate, "cv": options.cv}
    said |= {"duration_s": options.duration_s, "count": options.count}
    said |= {"prompt": options.prompt, "prompt_tokens": options.prompt_tokens, "max_tokens": options.max_tokens}
    return {name: value for name, value in said.items() if value is not None}
