"""Which engine of several: thresholds, forecasts, memory, failure and return; each with its reason."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.domain.model import EngineKind
from standby.domain.priority import Priority
from standby.domain.traffic import HybridChoice, HybridPolicy, TrafficPolicy
from standby.gateway import hybrid, learned
from standby.gateway.hybrid import BackendView, Health, Standing, TokenCount, choose_backend
from standby.gateway.learned import Estimate, Speed

pytestmark = pytest.mark.decision

_TRT, _VLLM, _LLAMA = EngineKind.TENSORRT_LLM, EngineKind.VLLM, EngineKind.LLAMA_CPP
_NO_EXPLORING = HybridChoice(explore=0.0)


def _estimate(*speed: float, answers: float = 50.0, at: float = 0.0) -> Estimate:
    known = Speed(*speed)
    return Estimate(known, known, learned.Sums(answers=answers, w=1.0), at=at)


def _view(engine: EngineKind, **changes: Any) -> BackendView:
    return BackendView(engine.value, engine, learned.unknown(engine))._replace(**changes)


# Quick with short prompts; quick with long ones.
_SHORT = _view(_LLAMA, estimate=_estimate(0.05, 2.0, 0.0, 0.01, 0.0), slots=4)
_LONG = _view(_VLLM, estimate=_estimate(0.5, 0.2, 0.0, 0.02, 0.0), slots=4)


def _choose(
    *views: BackendView, tokens: int = 100, priority: Priority = Priority.NORMAL, output: float = 16, **more: Any
) -> hybrid.BackendChoice:
    traffic = more.pop("traffic", TrafficPolicy(hybrid=_NO_EXPLORING))
    assert isinstance(traffic, TrafficPolicy)
    given: dict[str, Any] = {"ticket": 1, "now": 1.0, **more}
    return choose_backend(views, TokenCount(tokens, estimated=False), output, traffic, priority, **given)


@pytest.mark.parametrize(
    ("tokens", "target", "expected"),
    [
        (2048, None, _TRT),
        (9000, 0.1, _TRT),
        (2047, None, _LLAMA),
        (511, None, _LLAMA),
        (511, 0.12, _VLLM),
        (511, 0.13, _LLAMA),
        (512, 0.12, _LLAMA),
    ],
)
def test_thresholds(tokens: int, target: float | None, expected: EngineKind) -> None:
    traffic = TrafficPolicy(latency_target=target, hybrid=HybridChoice(policy=HybridPolicy.THRESHOLDS))
    choice = _choose(_view(_VLLM), _view(_TRT), _view(_LLAMA), tokens=tokens, traffic=traffic)
    assert choice.order[0] == expected.value
    assert choice.reason.startswith(f"{tokens} prompt tokens, ")
    assert choice.reason.endswith(f": {expected.value}")


def test_thresholds_make_do_with_the_engines_that_there_are() -> None:
    traffic = TrafficPolicy(hybrid=HybridChoice(policy=HybridPolicy.THRESHOLDS))
    assert _choose(_view(_VLLM), _view(_LLAMA), tokens=4000, traffic=traffic).order == ("vllm", "llama_cpp")
    assert _choose(_view(_TRT), _view(_VLLM), tokens=100, traffic=traffic).order == ("tensorrt_llm", "vllm")


def test_the_learned_policy_says_what_it_expects() -> None:
    short, long = _choose(_LONG, _SHORT), _choose(_LONG, _SHORT, tokens=3000)
    assert (short.order, long.order) == (("llama_cpp", "vllm"), ("vllm", "llama_cpp"))
    assert short.reason == (
        "100 prompt tokens: llama_cpp: 0.25 s to first token (0.002 s per prompt token, load 0 of 4), 100 tokens/s; "
        "vllm: 0.52 s to first token (0.0002 s per prompt token, load 0 of 4), 50 tokens/s; chosen llama_cpp"
    )


def test_who_meets_the_latency_target_goes_before_who_is_done_sooner() -> None:
    """A long answer is done sooner where its first token comes too late."""
    slow_start = _view(_VLLM, estimate=_estimate(0.4, 0.0, 0.0, 0.001, 0.0))
    traffic = TrafficPolicy(latency_target=0.3, hybrid=_NO_EXPLORING)
    assert _choose(slow_start, _SHORT, output=500).order[0] == "vllm"
    assert _choose(slow_start, _SHORT, output=500, traffic=traffic).order[0] == "llama_cpp"


@pytest.mark.parametrize("policy", HybridPolicy)
@pytest.mark.parametrize("priority", Priority)
def test_full_memory_keeps_what_is_not_urgent_away(policy: HybridPolicy, priority: Priority) -> None:
    traffic = TrafficPolicy(hybrid=HybridChoice(policy=policy, explore=0.0))
    choice = _choose(_SHORT._replace(pressed=True), _LONG, priority=priority, traffic=traffic)
    spared = priority in (Priority.NORMAL, Priority.BATCH)
    assert choice.order[0] == ("vllm" if spared else "llama_cpp")
    assert "memory" in choice.reason
    both = _choose(_SHORT._replace(pressed=True), _LONG._replace(pressed=True), priority=priority, traffic=traffic)
    assert both.order[0] == "llama_cpp"


@pytest.mark.parametrize("policy", HybridPolicy)
def test_a_failed_engine_is_passed_over_in_words(policy: HybridPolicy) -> None:
    traffic = TrafficPolicy(hybrid=HybridChoice(policy=policy, explore=0.5))
    failed = _SHORT._replace(standing=Standing(Health.FAILED, 0.0))
    assert _choose(failed, _LONG, traffic=traffic).order == ("vllm",)
    assert "llama_cpp has failed" in _choose(failed, _LONG, traffic=traffic).reason
    returning = _SHORT._replace(standing=Standing(Health.RETURNING, 0.0))
    assert _choose(returning, _LONG, traffic=traffic).order == ("vllm",)
    assert _choose(returning, _LONG._replace(standing=Standing(Health.FAILED, 0.0)), traffic=traffic).order == ("llama_cpp",)


def test_the_better_engine_is_worth_a_short_wait_and_no_longer() -> None:
    full = _LONG._replace(wait_s=1.0, others=4)
    better = _choose(full, _SHORT, tokens=3000)  # 1.1 s and a wait of 1 s, or 6 s at once
    assert better.order[0] == "vllm"
    assert better.hold_s == pytest.approx(1.0)
    assert better.reason.endswith("waits for vllm")
    assert _choose(full, _SHORT, tokens=3000, waited_s=4.9).hold_s == 0.0
    assert _choose(full._replace(wait_s=9.0), _SHORT, tokens=3000).order[0] == "llama_cpp"
    assert _choose(full, tokens=3000).hold_s == 0.0


def test_exploring_is_bounded() -> None:
    """Only towards engines of which little or only old things are known, never with urgent requests or far beyond a target."""
    thin = _LONG._replace(estimate=_estimate(0.5, 0.2, 0.0, 0.02, 0.0, answers=4.0, at=1.0))
    traffic = TrafficPolicy(hybrid=HybridChoice(explore=0.1))

    def explored(view: BackendView, used: TrafficPolicy = traffic, priority: Priority = Priority.NORMAL) -> float:
        orders = [_choose(_SHORT, view, ticket=ticket, traffic=used, priority=priority).order[0] for ticket in range(3000)]
        return Counter(orders)["vllm"] / 3000

    assert 0.07 < explored(thin) < 0.13
    assert explored(_LONG._replace(estimate=thin.estimate._replace(first=learned.Sums(answers=50.0), at=1.0))) == 0
    assert 0.07 < explored(_LONG._replace(estimate=_LONG.estimate._replace(at=-learned.STALE_S))) < 0.13
    unknown = thin._replace(estimate=thin.estimate._replace(first=learned.Sums()))
    assert 0.2 < explored(unknown) < 0.3
    assert explored(unknown, TrafficPolicy(hybrid=_NO_EXPLORING)) == 0
    assert explored(thin, priority=Priority.HIGH) == 0
    assert explored(thin._replace(wait_s=1.0)) == 0
    assert explored(thin, TrafficPolicy(latency_target=0.25, hybrid=HybridChoice(explore=0.1))) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 3), st.floats(0, 0.1)), min_size=2, max_size=3),
    st.integers(0, 5000),
    st.integers(1, 20),
    st.sampled_from([None, 0.3]),
)
def test_where_bytes_decide_every_count_gives_the_same_engine(
    speeds: list[tuple[float, float, float]], prompt_bytes: int, steps: int, target: float | None
) -> None:
    engines = (_LLAMA, _VLLM, _TRT)
    views = [
        _view(engine, estimate=_estimate(first, prompt, 0.0, token, 0.0))
        for engine, (first, prompt, token) in zip(engines, speeds, strict=False)
    ]
    traffic = TrafficPolicy(latency_target=target, hybrid=_NO_EXPLORING)
    if hybrid.bytes_decide(views, prompt_bytes, 16, traffic, Priority.NORMAL):
        counts = [prompt_bytes * step // steps for step in range(steps + 1)]
        assert len({_choose(*views, tokens=tokens, traffic=traffic).order[0] for tokens in counts}) == 1


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0.1, 8.0), st.sampled_from(["able", "broke", "asleep"])), max_size=40))
def test_standing_follows_the_history(history: list[tuple[float, str]]) -> None:
    """The oracle looks back over the whole history at each moment; the machine keeps two values.

    What it looks for: since the last failure, how long has the present row of "able" lasted at each of its moments?
    """
    now, standing, told = 0.0, Standing(), []
    for after, what in history:
        now += after
        standing = hybrid.observe(standing, able=what == "able", broke=what == "broke", now=now, return_after=10.0)
        told.append((now, what))
        assert standing.health is _looked_back(told)


def _looked_back(told: list[tuple[float, str]]) -> Health:
    if not any(what == "broke" for _, what in told):
        return Health.WELL
    last = max(place for place, (_, what) in enumerate(told) if what == "broke")
    rows = [list(row) for able, row in groupby(told[last + 1 :], key=lambda one: one[1] == "able") if able]
    # A row that was long enough ends the failure for good, whatever sleep comes after it.
    if any(row[-1][0] - row[0][0] >= 10.0 for row in rows):
        return Health.WELL
    return Health.RETURNING if told[-1][1] == "able" else Health.FAILED
