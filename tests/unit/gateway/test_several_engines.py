"""The ready instances of a variant with several engines: which one serves, which one is woken, which one is left alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from standby.domain.ask import Ask
from standby.domain.endpoint import DEFAULT_VARIANT, Failure
from standby.domain.instance import InstanceState
from standby.domain.model import EngineKind
from standby.domain.priority import Priority
from standby.domain.traffic import HybridChoice, TrafficPolicy
from standby.gateway.learned import predict, unknown
from standby.gateway.pool import FORGIVEN_S
from standby.gateway.ready_instances import WAKE_EVERY_S
from standby.gateway.results import Result, ResultKind
from support.builders import an_endpoint
from support.ready_rig import BREAKER, CONNECT, LLAMA, THRESHOLDS, TRT, VLLM, Rig, hybrid

pytestmark = pytest.mark.decision


def test_the_prompt_decides_for_an_engine() -> None:
    rig = hybrid(tokens=3000)
    rig.serve(parts=(LLAMA, TRT))
    rig.has("t", backend="trt", version="v1", engine=EngineKind.TENSORRT_LLM)
    long = rig.ask(ask=Ask(prompt_bytes=12_000))
    assert (long.instance, long.backend) == ("t", "trt")
    assert long.reason.startswith("3000 prompt tokens, at least 2048: trt")
    rig.tokens = 700
    assert rig.ask(ask=Ask(prompt_bytes=12_000)).backend == "llama_cpp"


def test_tokens_are_not_counted_where_the_length_decides() -> None:
    rig = hybrid(tokens=100)
    rig.ask(ask=Ask(prompt_bytes=400))
    assert not rig.counted
    rig.ask(ask=Ask(prompt_bytes=4000))
    assert len(rig.counted) == 1


def test_what_was_not_counted_is_estimated_from_what_was_read() -> None:
    """Before a tokenizer is there: bytes per token as the engines' own counts have them."""
    rig = hybrid()
    ask = Ask(prompt_bytes=6000)
    assert rig.ask(ask=ask, result=Result(ResultKind.OK, 0.5, 0.1, 3000, 20, True)).reason.startswith(
        "1500 prompt tokens (estimated)"
    )
    for _ in range(100):
        rig.ask(ask=ask, result=Result(ResultKind.OK, 0.5, 0.1, 3000, 20, True))
    told = rig.ask(ask=ask).reason
    assert "prompt tokens (estimated)" in told
    assert int(told.split()[0]) == pytest.approx(3000, rel=0.02)


def test_a_short_chat_does_not_say_how_many_tokens_a_long_prompt_has() -> None:
    """Two words in a template of 38 tokens, then 2750 bytes of English: below the 1024 tokens that are long here."""
    rig = Rig(TrafficPolicy(hybrid=THRESHOLDS.model_copy(update={"long_prompt": 1024})), (LLAMA, TRT))
    rig.has("l", backend="llama_cpp", version="v1", engine=EngineKind.LLAMA_CPP)
    rig.has("t", backend="trt", version="v1", engine=EngineKind.TENSORRT_LLM)
    for _ in range(3):
        rig.ask(ask=Ask(prompt_bytes=42), result=Result(ResultKind.OK, 0.5, 0.1, 43, 20, True))
    choice = rig.ask(ask=Ask(prompt_bytes=2750))
    assert choice.backend == "llama_cpp"
    assert 500 < int(choice.reason.split()[0]) < 800


# ---- an engine that sleeps while another one serves -----------------------------------------------------------------

_ASKED = Ask(prompt_bytes=400)


def _only_vllm(traffic: TrafficPolicy | None = None, **changes: Any) -> Rig:
    """vLLM serves, llama.cpp is at zero; by thresholds llama.cpp is the usual one."""
    rig = Rig(traffic or TrafficPolicy(breaker=BREAKER, hybrid=THRESHOLDS), (VLLM, LLAMA), **changes)
    rig.has("v", backend="vllm", version="v1", engine=EngineKind.VLLM)
    return rig


def test_the_engine_that_the_rule_names_is_asked_for_though_another_one_serves() -> None:
    """Once in a few seconds, until it is there."""
    rig = _only_vllm()
    asked = []
    for _ in range(12):
        assert rig.ask(ask=_ASKED).instance == "v"
        asked.append(rig.ready.better_asleep(_ASKED, Priority.NORMAL, rig.now))
        rig.now += 1.0
    assert asked == (["llama_cpp"] + [""] * 4) * 2 + ["llama_cpp", ""]
    assert (rig.ready.sleeps("llama_cpp"), rig.ready.sleeps("vllm")) == (True, False)
    rig.now += WAKE_EVERY_S
    rig.has("l", backend="llama_cpp", version="v1", engine=EngineKind.LLAMA_CPP)
    assert rig.ready.better_asleep(_ASKED, Priority.NORMAL, rig.now) == ""
    assert rig.ask(ask=_ASKED).instance == "l"


def test_an_engine_that_the_rule_does_not_name_sleeps_on() -> None:
    rig = _only_vllm(TrafficPolicy(breaker=BREAKER, hybrid=THRESHOLDS, latency_target=0.1))
    assert rig.ready.better_asleep(_ASKED, Priority.NORMAL, rig.now) == ""
    assert rig.ready.better_asleep(Ask(prompt_bytes=4000), Priority.NORMAL, rig.now) == "llama_cpp"
    assert Rig().ready.better_asleep(_ASKED, Priority.NORMAL, 0.0) == ""


def test_an_engine_that_has_failed_is_not_asked_for_before_it_is_forgiven() -> None:
    rig = _only_vllm()
    rig.has("l", backend="llama_cpp", version="v1", engine=EngineKind.LLAMA_CPP)
    rig.has("l", backend="llama_cpp", version="v1", state=InstanceState.FAILED)
    assert rig.ready.better_asleep(_ASKED, Priority.NORMAL, rig.now) == ""
    rig.now += FORGIVEN_S
    assert rig.ready.better_asleep(_ASKED, Priority.NORMAL, rig.now) == "llama_cpp"


@pytest.mark.parametrize(("variant", "asked"), [("", ""), (DEFAULT_VARIANT, ""), ("other", "llama_cpp")])
def test_an_engine_that_the_controller_cannot_bring_up_is_not_preferred(variant: str, asked: str) -> None:
    """Neither by requests that are served without it, nor by those that must wait for one."""
    rig = _only_vllm()
    failure = Failure(reason="no node has room", code="no_capacity", variant=variant, backend="llama_cpp")
    rig.serve(endpoint=an_endpoint(failure=failure))
    assert rig.ready.better_asleep(_ASKED, Priority.NORMAL, rig.now) == asked
    assert rig.ready.wanted_backend(_ASKED, Priority.NORMAL, rig.now) == (asked or "vllm")
    rig.serve()
    rig.now += WAKE_EVERY_S
    assert rig.ready.better_asleep(_ASKED, Priority.NORMAL, rig.now) == "llama_cpp"
    # One of its instances fails, another one serves.
    rig.has("l", backend="llama_cpp", version="v1", engine=EngineKind.LLAMA_CPP)
    rig.serve(endpoint=an_endpoint(failure=failure))
    assert rig.ready.wanted_backend(_ASKED, Priority.NORMAL, rig.now) == "llama_cpp"


@pytest.mark.parametrize(
    ("serving_s", "asleep_s", "asked"),
    [(1.0, 0.5, True), (1.0, 0.9, False), (0.1, 0.06, False), (0.5, 1.0, False)],
    ids=["half", "hardly quicker", "a few ms", "slower"],
)
def test_by_forecasts_an_engine_must_be_well_quicker_to_be_woken(serving_s: float, asleep_s: float, asked: bool) -> None:
    """Both have been up and are known; then one sleeps."""
    rig = _only_vllm(TrafficPolicy(breaker=BREAKER, hybrid=HybridChoice(explore=0.0)))
    rig.has("l", backend="llama_cpp", version="v1", engine=EngineKind.LLAMA_CPP)
    for instance, took_s in (("v", serving_s), ("l", asleep_s)):
        for _ in range(60):
            rig.ready.took(instance)
            rig.ready.gave_back(instance, 1, Result(ResultKind.OK, took_s, took_s / 2, 100, 21, True), rig.now)
    rig.has("l", backend="llama_cpp", version="v1", state=InstanceState.DRAINING)
    assert (rig.ready.better_asleep(_ASKED, Priority.NORMAL, rig.now) == "llama_cpp") is asked


@pytest.mark.parametrize(("serves", "asked"), [(EngineKind.VLLM, ""), (EngineKind.LLAMA_CPP, "vllm")])
def test_an_engine_that_never_answered_is_judged_by_how_slow_the_other_one_is_here(serves: EngineKind, asked: str) -> None:
    """Ten times slower than usual: the other one would be, too, and only one of them is good at long prompts."""
    rig = Rig(TrafficPolicy(breaker=BREAKER, hybrid=HybridChoice(explore=0.0)), (VLLM, LLAMA))
    rig.has("a", backend=serves.value, version="v1", engine=serves)
    usual = predict(unknown(serves), 1000, 0)
    first_s, token_s = usual.first_s * 10, usual.token_s * 10
    for _ in range(60):
        rig.ready.took("a")
        rig.ready.gave_back("a", 1, Result(ResultKind.OK, first_s + 19 * token_s, first_s, 1000, 20, True), rig.now)
    assert rig.ready.better_asleep(Ask(prompt_bytes=4000), Priority.NORMAL, rig.now) == asked


def test_a_full_engine_is_not_waited_for_by_thresholds() -> None:
    rig = hybrid()
    rig.fill("l", 4)
    choice = rig.ask()
    assert choice.backend == "vllm"
    assert "no slot free, so vllm" in choice.reason
    rig.fill("v", 4)
    assert rig.ask().instance is None


@pytest.mark.parametrize(("usual", "other"), [("l", "v"), ("v", "l")])
def test_the_next_engine_takes_over_at_once_and_the_failed_one_returns_late(usual: str, other: str) -> None:
    """Both directions: the connection is refused, so the usual engine is out; back after ten good seconds, not before."""
    rig = hybrid()
    target = 0.1 if usual == "v" else None
    rig.serve(traffic=rig.traffic.model_copy(update={"latency_target": target}))
    assert rig.ask().instance == usual
    rig.fail(usual, CONNECT, times=1)
    ready = rig.ready.find(usual, 1)
    assert ready is not None
    ready.blocked_until = rig.now + 1.0
    assert rig.ask().instance == other
    rig.now += 1.0
    chosen = []
    for _ in range(12):
        chosen.append(rig.ask().instance)
        rig.now += 1.0
    assert chosen == [other] * 10 + [usual] * 2


def test_while_it_returns_it_is_better_than_nothing() -> None:
    rig = hybrid()
    rig.fail("l", CONNECT, times=1)
    ready = rig.ready.find("l", 1)
    assert ready is not None
    ready.blocked_until = rig.now + 1.0
    assert rig.ask().instance == "v"
    rig.now += 2.0
    assert rig.ask().instance == "v"
    rig.has("v", backend="vllm", version="v1", state=InstanceState.FAILED)
    assert rig.ask().instance == "l"


def test_an_engine_whose_breakers_are_open_is_probed_before_it_returns() -> None:
    rig = hybrid()
    rig.fail("l")
    assert {rig.ask().instance for _ in range(5)} == {"v"}
    rig.now += 5.0
    urgent = rig.ask(priority=Priority.URGENT)
    assert (urgent.instance, urgent.probe) == ("v", False)
    probe = rig.ask()
    assert (probe.instance, probe.probe, probe.backend) == ("l", True, "llama_cpp")
    assert rig.ask().instance == "v"
    rig.now += 9.9
    assert rig.ask().instance == "v"
    rig.now += 0.2
    assert rig.ask().instance == "l"


def test_an_engine_that_was_put_to_sleep_has_not_failed() -> None:
    rig = hybrid()
    rig.has("l", backend="llama_cpp", version="v1", state=InstanceState.DRAINING)
    assert rig.ask().instance == "v"
    rig.has("l", backend="llama_cpp", version="v1", epoch=2)
    assert rig.ask().instance == "l"


def test_a_waiting_request_wakes_the_engine_that_is_worth_it() -> None:
    rig = Rig(TrafficPolicy(hybrid=THRESHOLDS, latency_target=0.1), (LLAMA, VLLM))
    assert rig.ready.wanted_backend(Ask(prompt_bytes=400), Priority.NORMAL, rig.now) == "vllm"
    assert rig.ready.wanted_backend(Ask(prompt_bytes=8000), Priority.NORMAL, rig.now) == "llama_cpp"
    rig.has("v", backend="vllm", version="v1", state=InstanceState.FAILED)
    assert rig.ready.wanted_backend(Ask(prompt_bytes=400), Priority.NORMAL, rig.now) == "llama_cpp"
    rig.now += FORGIVEN_S
    assert rig.ready.wanted_backend(Ask(prompt_bytes=400), Priority.NORMAL, rig.now) == "vllm"
    assert Rig().ready.wanted_backend(Ask(), Priority.NORMAL, 0.0) == ""


def test_two_versions_never_serve_together() -> None:
    """The engines of an update come one after the other: until the first is there the old ones serve, then none of them."""
    rig = hybrid()
    rig.has("new", backend="vllm", version="v2", engine=EngineKind.VLLM)
    assert {rig.ask().instance for _ in range(10)} == {"l"}
    assert set(rig.ready.usable) == {"v", "l"}
    rig.serve(parts=(VLLM._replace(version="v2"), LLAMA._replace(version="v2")))
    assert set(rig.ready.usable) == {"new"}
    assert rig.ask().backend == "vllm"


def test_the_learned_policy_finds_the_quicker_engine_and_shifts_when_it_slows_down() -> None:
    """From nothing but how requests ended: first one engine is the quicker one, then the other."""
    rig = Rig(TrafficPolicy(breaker=BREAKER), (VLLM, LLAMA))
    rig.has("v", backend="vllm", version="v1", engine=EngineKind.VLLM)
    rig.has("l", backend="llama_cpp", version="v1", engine=EngineKind.LLAMA_CPP)

    def run(times: int, takes: dict[str, float]) -> Counter[str]:
        chosen: Counter[str] = Counter()
        for _ in range(times):
            rig.now += 0.5
            choice = rig.ready.choose(rig.now, ask=Ask(prompt_bytes=400))
            assert choice.instance is not None
            rig.ready.took(choice.instance)
            first = takes[choice.backend]
            rig.ready.gave_back(choice.instance, 1, Result(ResultKind.OK, first * 3, first, 100, 21, True), rig.now)
            chosen[choice.backend] += 1
        return chosen

    assert run(300, {"vllm": 2.0, "llama_cpp": 0.1})["llama_cpp"] > 270
    assert run(300, {"vllm": 0.2, "llama_cpp": 4.0})["vllm"] > 150
    assert run(100, {"vllm": 0.2, "llama_cpp": 4.0})["vllm"] > 90


def test_a_batch_on_one_engine_does_not_keep_an_urgent_request_from_the_other() -> None:
    """Field case B22, with two engines: the one that is full of batch work is not waited for."""
    rig = Rig(TrafficPolicy(), (VLLM, LLAMA))
    rig.has("v", backend="vllm", version="v1", slots=1)
    rig.has("l", backend="llama_cpp", version="v1", slots=1)
    first = rig.ready.choose(rig.now, priority=Priority.BATCH)
    assert first.instance is not None
    rig.ready.took(first.instance)
    waited = 0.0
    while (urgent := rig.ready.choose(rig.now, priority=Priority.URGENT, waited_s=waited)).instance is None:
        assert urgent.retry_at is not None
        assert urgent.retry_at > rig.now
        waited += urgent.retry_at - rig.now
        rig.now = urgent.retry_at
    assert urgent.instance != first.instance
    assert waited < 1.0
