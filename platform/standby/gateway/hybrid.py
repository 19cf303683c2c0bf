"""Which engine of a variant that has several gets a request, and why; when a failed one gets requests again. Pure.

| standing | becomes | when |
|---|---|---|
| WELL | FAILED | it broke: none of its instances can be asked, and not because they sleep |
| FAILED | RETURNING | one of them can be asked again |
| FAILED | WELL | it has had no instance for so long that another start is worth asking for |
| RETURNING | FAILED | none can any more |
| RETURNING | WELL | one could all the time for ``return_after`` |

A failed engine is passed over at once. One that returns is passed over while another one is well; then, and when it is
the last, it gets requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from standby.domain.draw import chance
from standby.domain.model import EngineKind
from standby.domain.priority import Priority
from standby.domain.traffic import HybridPolicy, TrafficPolicy
from standby.gateway.learned import Estimate, Forecast, predict

# Asking who knows nothing yet: every so many requests, until so many answers are there.
_FIRST_LOOK_SHARE: Final = 0.25
_FIRST_LOOKS: Final = 3.0
# Nobody is sent to an engine to learn about it if that would miss the target by so much.
_FAR_BEYOND: Final = 2.0
_EXPLORES: Final = 0x5EED
# An engine that sleeps is woken for requests that another one serves only where they would be so much quicker.
_GAIN: Final = 0.2
_LEAST_GAIN_S: Final = 0.05


class Health(Enum):
    """See the module's docstring."""

    WELL = "well"
    FAILED = "failed"
    RETURNING = "returning"


class Turn(Enum):
    """What changes an engine's standing."""

    BROKE = "broke"
    CAN = "can be asked"
    CANNOT = "cannot be asked"
    PROVED = "was well for long enough"
    FORGIVEN = "failed long ago"


TRANSITIONS: Final[Mapping[tuple[Health, Turn], Health]] = MappingProxyType(
    {
        (Health.WELL, Turn.BROKE): Health.FAILED,
        (Health.FAILED, Turn.CAN): Health.RETURNING,
        (Health.FAILED, Turn.FORGIVEN): Health.WELL,
        (Health.RETURNING, Turn.CANNOT): Health.FAILED,
        (Health.RETURNING, Turn.BROKE): Health.FAILED,
        (Health.RETURNING, Turn.PROVED): Health.WELL,
    }
)
_RANKS: Final = MappingProxyType({Health.WELL: 0, Health.RETURNING: 1, Health.FAILED: 2})
# Requests that are kept away from an engine whose memory is nearly full.
SPARED: Final = frozenset({Priority.NORMAL, Priority.BATCH})


class Standing(NamedTuple):
    """An engine's health since a moment, in seconds of a monotonic clock."""

    health: Health = Health.WELL
    since: float = 0.0


def observe(
    standing: Standing, *, able: bool, broke: bool, now: float, return_after: float, forgiven: bool = False
) -> Standing:
    """Return the standing now. ``able``: an instance can be asked; ``broke``: none can, and that is a failure.

    ``forgiven``: it has no instance, and what it failed by is no longer held against it.
    """
    if standing.health is Health.RETURNING and able and now - standing.since >= return_after:
        turn = Turn.PROVED
    elif able:
        turn = Turn.CAN
    elif forgiven:
        turn = Turn.FORGIVEN
    else:
        turn = Turn.BROKE if broke else Turn.CANNOT
    health = TRANSITIONS.get((standing.health, turn), standing.health)
    return standing if health is standing.health else Standing(health, now)


class TokenCount(NamedTuple):
    """Tokens of a prompt; ``estimated``: from its length, or from a part of it."""

    tokens: int
    estimated: bool = True


WELL: Final = Standing()


class BackendView(NamedTuple):
    """One engine as it is now. ``others``: requests with the instance that would get the next one, of ``slots``.

    ``wait_s``: seconds until a slot is free there; 0 while one is. ``pressed``: the memory of all its instances is nearly
    full.
    """

    label: str
    engine: EngineKind | None
    estimate: Estimate
    others: int = 0
    slots: int = 1
    wait_s: float = 0.0
    pressed: bool = False
    standing: Standing = WELL


class BackendChoice(NamedTuple):
    """The engines in the order in which they should be asked; only those whose standing is the best.

    ``hold_s``: the first one has no slot free, and is worth so many seconds of waiting more; 0: ask the next one.
    """

    order: tuple[str, ...]
    reason: str
    hold_s: float = 0.0


class _Weighed(NamedTuple):
    view: BackendView
    forecast: Forecast
    total_s: float


def bytes_decide(
    views: Sequence[BackendView], prompt_bytes: int, output: float, traffic: TrafficPolicy, priority: Priority
) -> bool:
    """Whether the prompt's length decides without counting its tokens, of which each has at least one byte."""
    policy = traffic.hybrid
    if policy.policy is HybridPolicy.THRESHOLDS:
        return prompt_bytes < min(policy.short_prompt, policy.long_prompt)
    # Forecasts are straight lines of the number of tokens: who leads at both ends leads in between, as does who meets the
    # target.
    fewest, most = ([_weigh(view, tokens, output) for view in views] for tokens in (0, prompt_bytes))
    if traffic.latency_target is not None and any(
        _misses(few, traffic) is not _misses(many, traffic) for few, many in zip(fewest, most, strict=True)
    ):
        return False
    leaders = [min(weighed, key=lambda one: _rank(one, traffic, priority)).view.label for weighed in (fewest, most)]
    return leaders[0] == leaders[1]


def choose_backend(
    views: Sequence[BackendView],
    tokens: TokenCount,
    output: float,
    traffic: TrafficPolicy,
    priority: Priority,
    *,
    ticket: int,
    now: float,
    waited_s: float = 0.0,
) -> BackendChoice:
    """Return in which order to ask the engines, of which there is at least one.

    ``output``: tokens that the answer will probably have. ``waited_s``: seconds that the request has waited already.
    """
    best = min(_RANKS[view.standing.health] for view in views)
    passed = [view for view in views if _RANKS[view.standing.health] > best]
    views = [view for view in views if _RANKS[view.standing.health] == best]
    if traffic.hybrid.policy is HybridPolicy.THRESHOLDS:
        return _by_thresholds(views, tokens, traffic, priority, passed)
    weighed = sorted((_weigh(view, tokens.tokens, output) for view in views), key=lambda one: _rank(one, traffic, priority))
    curious = _explored(weighed, traffic, priority, ticket, now)
    if curious is not None:
        weighed.remove(curious)
        weighed.insert(0, curious)
    order = tuple(one.view.label for one in weighed)
    chosen = weighed[0]
    hold_s = 0.0 if curious is not None else _worth_waiting(weighed, waited_s)
    count = f"{tokens.tokens} prompt tokens{' (estimated)' if tokens.estimated else ''}"
    how = "explores" if curious is not None else ("waits for" if hold_s else "chosen")
    told = "; ".join([*(_told(one) for one in weighed), *(_passed_over(view) for view in passed)])
    return BackendChoice(order, f"{count}: {told}; {how} {chosen.view.label}", hold_s)


def first_to_wake(
    views: Sequence[BackendView], tokens: TokenCount, output: float, traffic: TrafficPolicy, priority: Priority
) -> str:
    """Return which of the engines that could be woken, of which there is at least one, is worth it most."""
    if traffic.hybrid.policy is HybridPolicy.THRESHOLDS:
        wished, _ = _wished(tokens.tokens, traffic)
        return min(views, key=lambda view: _by_rule(view, wished, priority)).label
    weighed = (_weigh(view, tokens.tokens, output) for view in views)
    return min(weighed, key=lambda one: _rank(one, traffic, priority)).view.label


def worth_waking(
    ready: Sequence[BackendView],
    asleep: Sequence[BackendView],
    tokens: TokenCount,
    output: float,
    traffic: TrafficPolicy,
    priority: Priority,
) -> str:
    """Return which engine without an instance such requests should have, though another serves them; empty: none.

    By thresholds the one that the rule names; learned, one that would answer a fifth and 50 ms sooner than the best that is
    ready. One that has failed is not worth it before it is forgiven. There is at least one that is ready.
    """
    asleep = [view for view in asleep if view.standing.health is Health.WELL]
    if not asleep:
        return ""
    if traffic.hybrid.policy is HybridPolicy.THRESHOLDS:
        wished, _ = _wished(tokens.tokens, traffic)
        sleeper = min(asleep, key=lambda view: _by_rule(view, wished, priority))
        best_rule = min(_by_rule(view, wished, priority) for view in ready)
        return sleeper.label if _by_rule(sleeper, wished, priority) < best_rule else ""
    best = min((_weigh(view, tokens.tokens, output) for view in ready), key=lambda one: _rank(one, traffic, priority))
    # Of an engine that has never answered only the proportion to others is known: where those are slow, it will be, too.
    first_s, token_s = predict(best.view.estimate._replace(speed=best.view.estimate.prior), tokens.tokens, best.view.others)
    slow = max(1.0, (best.total_s - best.view.wait_s) / max(1e-6, first_s + token_s * output))
    found = min(
        (_weigh(view, tokens.tokens, output, 1.0 if view.estimate.first.answers else slow) for view in asleep),
        key=lambda one: _rank(one, traffic, priority),
    )
    gain = best.total_s - found.total_s
    better = _rank(found, traffic, priority) < _rank(best, traffic, priority)
    return found.view.label if better and gain >= max(_LEAST_GAIN_S, _GAIN * best.total_s) else ""


# ---- learned ---------------------------------------------------------------------------------------------------


def _weigh(view: BackendView, prompt_tokens: int, output: float, slow: float = 1.0) -> _Weighed:
    first_s, token_s = predict(view.estimate, prompt_tokens, view.others)
    forecast = Forecast(first_s * slow, token_s * slow)
    return _Weighed(view, forecast, view.wait_s + forecast.first_s + forecast.token_s * output)


def _rank(one: _Weighed, traffic: TrafficPolicy, priority: Priority) -> tuple[int, bool, bool, float]:
    """Return what sorts: the well, those with memory to spare, those that will meet the target, the quick first."""
    spared = one.view.pressed and priority in SPARED
    return _RANKS[one.view.standing.health], spared, _misses(one, traffic), one.total_s


def _misses(one: _Weighed, traffic: TrafficPolicy) -> bool:
    return traffic.latency_target is not None and one.view.wait_s + one.forecast.first_s > traffic.latency_target


def _explored(
    weighed: Sequence[_Weighed], traffic: TrafficPolicy, priority: Priority, ticket: int, now: float
) -> _Weighed | None:
    """Return an engine of which too little is known, where this request is one of those that find out."""
    explore = traffic.hybrid.explore
    if not explore or priority not in SPARED:
        return None
    drawn = chance(ticket, _EXPLORES)
    if drawn >= max(explore, _FIRST_LOOK_SHARE):
        return None
    for one in weighed[1:]:
        view = one.view
        if view.pressed or view.wait_s or not view.estimate.uncertain(now):
            continue
        far = traffic.latency_target is not None and one.forecast.first_s > _FAR_BEYOND * traffic.latency_target
        if not far and drawn < (max(explore, _FIRST_LOOK_SHARE) if view.estimate.first.answers < _FIRST_LOOKS else explore):
            return one
    return None


def _worth_waiting(weighed: Sequence[_Weighed], waited_s: float) -> float:
    """Return for how long the first one is worth waiting for, though another has a slot free.

    The wait, with what was waited already, must be less than what it gains; so a wrong forecast costs no more than that.
    """
    first = weighed[0]
    if first.view.wait_s <= 0:
        return 0.0
    others = [one for one in weighed[1:] if one.view.wait_s <= 0]
    if not others:
        return 0.0
    gain = min(one.total_s for one in others) - (first.total_s - first.view.wait_s)
    left = gain - waited_s
    return min(left, first.view.wait_s) if left >= first.view.wait_s else 0.0


def _told(one: _Weighed) -> str:
    view, forecast = one.view, one.forecast
    prompt_s = view.estimate.speed.prompt_s / 1000
    memory = ", memory nearly full" if view.pressed else ""
    wait = f" after {view.wait_s:.2g} s of waiting" if view.wait_s else ""
    rate = 1 / forecast.token_s if forecast.token_s > 0 else 0.0
    return (
        f"{view.label}: {forecast.first_s:.2g} s to first token{wait} ({prompt_s:.2g} s per prompt token, "
        f"load {view.others} of {view.slots}{memory}), {rate:.0f} tokens/s"
    )


# ---- thresholds ------------------------------------------------------------------------------------------------


def _by_thresholds(
    views: Sequence[BackendView],
    tokens: TokenCount,
    traffic: TrafficPolicy,
    priority: Priority,
    passed: Sequence[BackendView],
) -> BackendChoice:
    count = tokens.tokens
    wished, why = _wished(count, traffic)
    order = sorted(views, key=lambda view: _by_rule(view, wished, priority))
    first = order[0]
    said = [f"{count} prompt tokens{' (estimated)' if tokens.estimated else ''}, {why}"]
    said += [f"the memory of {view.label} is nearly full" for view in views if view.pressed]
    said += [_passed_over(view) for view in passed]
    return BackendChoice(tuple(view.label for view in order), f"{'; '.join(said)}: {first.label}")


def _wished(count: int, traffic: TrafficPolicy) -> tuple[EngineKind | None, str]:
    """Return the engine for prompts of so many tokens, and why; None: neither of the two specialists."""
    policy = traffic.hybrid
    tight = traffic.latency_target is not None and traffic.latency_target <= policy.tight_target
    if count >= policy.long_prompt:
        return EngineKind.TENSORRT_LLM, f"at least {policy.long_prompt}"
    if count < policy.short_prompt and tight:
        return EngineKind.VLLM, f"below {policy.short_prompt}, latency target {traffic.latency_target:g} s"
    return None, "neither long, nor short with a tight latency target"


def _by_rule(view: BackendView, wished: EngineKind | None, priority: Priority) -> tuple[int, bool, int]:
    """Return what sorts: the well, those with memory to spare, the wished one or what comes first where none is."""
    fit = int(view.engine is not wished) if wished is not None else _fallback_rank(view.engine)
    return _RANKS[view.standing.health], view.pressed and priority in SPARED, fit


def _fallback_rank(engine: EngineKind | None) -> int:
    """Sort what is neither of the two specialists first: llama.cpp, or whatever else the variant names for this."""
    if engine is EngineKind.LLAMA_CPP:
        return 0
    return 2 if engine in (EngineKind.VLLM, EngineKind.TENSORRT_LLM) else 1


def _passed_over(view: BackendView) -> str:
    return f"{view.label} has failed" if view.standing.health is Health.FAILED else f"{view.label} is not well for long enough"
