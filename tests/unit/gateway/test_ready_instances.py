"""The ready instances of a variant: breakers, homes, adapters, versions; and of one with several engines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.domain.ask import Ask
from standby.domain.endpoint import Variant
from standby.domain.instance import InstanceState
from standby.domain.model import EngineKind
from standby.domain.priority import Priority
from standby.domain.traffic import BreakerPolicy, BreakerRule, HybridChoice, HybridPolicy, Tier, TrafficPolicy
from standby.gateway.hybrid import TokenCount
from standby.gateway.pool import FORGIVEN_S
from standby.gateway.ready_instances import ReadyInstances
from standby.gateway.results import Result, ResultKind
from standby.gateway.route import Route, RoutePart
from standby.gateway.router import Choice
from support.builders import an_endpoint, an_instance

pytestmark = pytest.mark.decision

_OK = Result(ResultKind.OK, 0.5, 0.1, 100, 20)
_ENGINE = Result(ResultKind.ENGINE, 0.1)
_CONNECT = Result(ResultKind.CONNECT, 0.01)
_BREAKER = BreakerPolicy(rules=(BreakerRule(window=30.0, requests=3, failures_in_a_row=3),), open_for=5.0)
_VLLM, _LLAMA = RoutePart("vllm", EngineKind.VLLM, "v1", 4), RoutePart("llama_cpp", EngineKind.LLAMA_CPP, "v1", 4)
_THRESHOLDS = HybridChoice(policy=HybridPolicy.THRESHOLDS, return_after=10.0)


@dataclass
class Rig:
    """Instances under a policy, with a clock that only moves by hand."""

    traffic: TrafficPolicy = field(default_factory=lambda: TrafficPolicy(breaker=_BREAKER))
    parts: tuple[RoutePart, ...] = ()
    now: float = 100.0
    counted: list[Ask] = field(default_factory=list)
    tokens: int | None = None

    def __post_init__(self) -> None:
        self.ready = ReadyInstances()
        self.serve()

    def serve(self, **changes: Any) -> None:
        given = {"traffic": self.traffic, "parts": self.parts, "count_tokens": self._count, **changes}
        self.ready.serve(Route(an_endpoint(), Variant(model="m"), **given))

    def has(self, instance: str, *, removed: bool = False, **changes: Any) -> None:
        self.ready.changed(an_instance(id=instance, **changes), self.now, removed=removed)

    def ask(self, *, result: Result | None = _OK, **asked: Any) -> Choice:
        """One request from its choice to its end, if it was chosen."""
        choice = self.ready.choose(self.now, **asked)
        if choice.instance is not None:
            epoch = self.ready.usable[choice.instance].record.epoch
            self.ready.took(choice.instance, probe=choice.probe)
            self.ready.gave_back(choice.instance, epoch, result, self.now, probe=choice.probe)
        return choice

    def fill(self, instance: str, requests: int) -> None:
        for _ in range(requests):
            self.ready.took(instance)

    def fail(self, instance: str, result: Result = _ENGINE, times: int = 3) -> None:
        epoch = self.ready.usable[instance].record.epoch
        for _ in range(times):
            self.ready.took(instance)
            self.ready.gave_back(instance, epoch, result, self.now)

    def _count(self, ask: Ask) -> TokenCount | None:
        self.counted.append(ask)
        return None if self.tokens is None else TokenCount(self.tokens, estimated=False)


def hybrid(**changes: Any) -> Rig:
    """Two engines with an instance each; thresholds, so that llama.cpp is the usual one."""
    rig = Rig(TrafficPolicy(breaker=_BREAKER, hybrid=_THRESHOLDS), (_VLLM, _LLAMA), **changes)
    rig.has("v", backend="vllm", version="v1", engine=EngineKind.VLLM)
    rig.has("l", backend="llama_cpp", version="v1", engine=EngineKind.LLAMA_CPP)
    return rig


# ---- one engine --------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.sampled_from(list(ResultKind))), max_size=60))
def test_what_is_outstanding_is_what_was_taken_and_not_given_back(moves: list[tuple[str, bool, ResultKind]]) -> None:
    """Also of instances that are gone, and never more than a slot each where the choice said so."""
    rig, open_ = Rig(), []
    for name in "abcd":
        rig.has(name, slots=2)
    for place, (name, leaves, kind) in enumerate(moves):
        rig.now += 1
        choice = rig.ready.choose(rig.now)
        if choice.instance is not None:
            assert rig.ready.outstanding.get(choice.instance, 0) < 2
            rig.ready.took(choice.instance, probe=choice.probe)
            open_.append((choice.instance, choice.probe))
        if leaves:
            rig.has(name, slots=2, epoch=place + 2, removed=place % 3 == 0)
        if open_ and place % 2:
            instance, probe = open_.pop(0)
            rig.ready.gave_back(instance, 1, Result(kind, 0.5), rig.now, probe=probe)
        assert rig.ready.outstanding == Counter(instance for instance, _ in open_)


def test_a_broken_instance_is_passed_over_and_probed_alone() -> None:
    rig = Rig()
    rig.has("a")
    rig.has("b")
    rig.fail("a")
    assert {rig.ask().instance for _ in range(10)} == {"b"}
    rig.now += 5
    probes = [choice for choice in (rig.ready.choose(rig.now) for _ in range(10)) if choice.probe]
    assert probes
    rig.ready.took("a", probe=True)
    assert {rig.ready.choose(rig.now).instance for _ in range(10)} == {"b"}
    rig.ready.gave_back("a", 1, _OK, rig.now, probe=True)
    assert {rig.ask().instance for _ in range(10)} == {"a", "b"}


def test_the_last_instance_is_probed_and_never_abandoned() -> None:
    """One request at a time, whatever its breaker's time says."""
    rig = Rig()
    rig.has("a")
    rig.fail("a")
    choice = rig.ready.choose(rig.now)
    assert (choice.instance, choice.probe) == ("a", True)
    assert "every instance is broken" in choice.reason
    rig.ready.took("a", probe=True)
    assert rig.ready.choose(rig.now).instance is None
    rig.ready.gave_back("a", 1, _OK, rig.now, probe=True)
    assert not rig.ready.choose(rig.now).probe


def test_of_several_broken_ones_the_one_whose_time_comes_first_is_probed() -> None:
    rig = Rig()
    rig.has("a")
    rig.has("b")
    rig.fail("b")
    rig.now += 1
    rig.fail("a")
    assert rig.ready.choose(rig.now).instance == "b"


def test_best_effort_has_no_breaker() -> None:
    rig = Rig(TrafficPolicy(tier=Tier.BEST_EFFORT, breaker=_BREAKER))
    rig.has("a")
    rig.fail("a", times=20)
    choice = rig.ready.choose(rig.now)
    assert (choice.instance, choice.probe) == ("a", False)


def test_a_ghost_is_passed_over_whatever_its_record_says() -> None:
    """Field case B35: nobody listens at its door, and the news of its end has not come."""
    rig = Rig(TrafficPolicy())
    rig.has("ghost")
    rig.has("alive")
    ready = rig.ready.find("ghost", 1)
    assert ready is not None
    for _ in range(3):
        rig.fail("ghost", _CONNECT, times=1)
        ready.blocked_until = rig.now + 1.0
        rig.has("ghost", in_flight=1)  # its last word is repeated, and changes nothing
        assert {rig.ask().instance for _ in range(10)} == {"alive"}
        rig.now += 1.0
    assert {rig.ask().instance for _ in range(10)} == {"alive"}
    rig.now += 5.0
    assert "ghost" in {rig.ready.choose(rig.now).instance for _ in range(10)}
    rig.has("ghost", epoch=2)  # its node has announced it anew
    assert {rig.ask().instance for _ in range(10)} == {"alive", "ghost"}


def test_prompts_that_begin_alike_go_to_one_instance_while_it_has_room() -> None:
    rig = Rig()
    for name in "abcde":
        rig.has(name)
    homes = {prefix: {rig.ask(ask=Ask(prefix=prefix)).instance for _ in range(10)} for prefix in range(1, 60)}
    assert all(len(home) == 1 for home in homes.values())
    assert len(set().union(*homes.values())) == 5
    (home,) = homes[7]
    assert home is not None
    rig.fill(home, 2)
    away = rig.ask(ask=Ask(prefix=7))
    assert away.instance != home
    for name in "abcde":
        rig.fill(name, 1)
    assert rig.ask(ask=Ask(prefix=7)).instance != home  # 3 against 1.4 on average
    rig.fill(next(name for name in "abcde" if name != home), 2)
    back = rig.ask(ask=Ask(prefix=7))
    assert (back.instance, back.reason.split(" (")[0]) == (home, "prompts that begin so are at home here")


def test_affinity_can_be_switched_off() -> None:
    rig = Rig(TrafficPolicy(prefix_affinity=False))
    rig.has("a")
    rig.has("b")
    assert {rig.ask(ask=Ask(prefix=7)).instance for _ in range(10)} == {"a", "b"}


def test_only_who_has_the_adapter_is_asked() -> None:
    rig = Rig()
    rig.has("a")
    rig.has("b", adapters=("fr",))
    rig.has("c")
    assert {rig.ask(ask=Ask(adapter="fr", prefix=7)).instance for _ in range(10)} == {"b"}
    missing = rig.ask(ask=Ask(adapter="it"))
    assert (missing.instance, missing.retry_at) == (None, None)
    assert "'it'" in missing.reason


@pytest.mark.parametrize("priority", Priority)
def test_full_memory_spares_what_is_not_urgent(priority: Priority) -> None:
    rig = Rig()
    for name in "abcd":
        rig.has(name, memory_pressure=0.94 if name != "d" else 0.92)
    chosen = {rig.ask(priority=priority).instance for _ in range(40)}
    assert chosen == ({"d"} if priority in (Priority.NORMAL, Priority.BATCH) else set("abcd"))


def test_a_retry_goes_elsewhere_where_it_can() -> None:
    rig = Rig()
    rig.has("a")
    rig.has("b")
    assert {rig.ask(tried=frozenset({"a"})).instance for _ in range(10)} == {"b"}
    assert rig.ask(tried=frozenset({"a", "b"})).instance is not None


def test_a_session_stays_until_its_instance_is_broken() -> None:
    rig = Rig()
    rig.has("a")
    rig.has("b")
    assert {rig.ask(wanted="a").instance for _ in range(10)} == {"a"}
    rig.fail("a")
    assert {rig.ask(wanted="a").instance for _ in range(10)} == {"b"}


def test_an_instance_that_thrashes_gets_fewer_at_once() -> None:
    """And all of its slots again when it has recovered; with the policy off it always gets them."""
    slow, quick = Result(ResultKind.OK, 20.0, 18.0, 100, 20), Result(ResultKind.OK, 0.5, 0.1, 100, 20)

    def run(rig: Rig, result: Result, times: int) -> int:
        for _ in range(times):
            while rig.ready.choose(rig.now).instance is not None:
                rig.ready.took("a")
            rig.ready.gave_back("a", 1, result, rig.now)
        return rig.ready.outstanding.get("a", 0) + 1

    rigs = [Rig(TrafficPolicy(adaptive_concurrency=on)) for on in (True, False)]
    for rig in rigs:
        rig.has("a", slots=16)
        for _ in range(20):
            rig.ask(result=quick)
    assert [run(rig, slow, 60) for rig in rigs] == [pytest.approx(4, abs=3), 16]
    assert [run(rig, quick, 400) for rig in rigs] == [16, 16]
    assert rigs[0].ready.slots == 16


def test_how_long_a_slot_is_held_is_measured() -> None:
    rig = Rig()
    rig.has("a")
    assert rig.ready.service_s(rig.now) is None
    for _ in range(100):
        rig.ask(result=Result(ResultKind.OK, 2.0))
    assert rig.ready.service_s(rig.now) == pytest.approx(2.0)


# ---- several engines ---------------------------------------------------------------------------------------------


def test_the_prompt_decides_for_an_engine() -> None:
    rig = hybrid(tokens=3000)
    rig.serve(parts=(_LLAMA, RoutePart("trt", EngineKind.TENSORRT_LLM, "v1", 4)))
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
    assert rig.ask(ask=ask, result=Result(ResultKind.OK, 0.5, 0.1, 3000, 20)).reason.startswith(
        "1500 prompt tokens (estimated)"
    )
    for _ in range(100):
        rig.ask(ask=ask, result=Result(ResultKind.OK, 0.5, 0.1, 3000, 20))
    assert rig.ask(ask=ask).reason.startswith("3000 prompt tokens (estimated)")


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
    rig.fail(usual, _CONNECT, times=1)
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
    rig.fail("l", _CONNECT, times=1)
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
    rig = Rig(TrafficPolicy(hybrid=_THRESHOLDS, latency_target=0.1), (_LLAMA, _VLLM))
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
    rig.serve(parts=(_VLLM._replace(version="v2"), _LLAMA._replace(version="v2")))
    assert set(rig.ready.usable) == {"new"}
    assert rig.ask().backend == "vllm"


def test_the_learned_policy_finds_the_quicker_engine_and_shifts_when_it_slows_down() -> None:
    """From nothing but how requests ended: first one engine is the quicker one, then the other."""
    rig = Rig(TrafficPolicy(breaker=_BREAKER), (_VLLM, _LLAMA))
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
            rig.ready.gave_back(choice.instance, 1, Result(ResultKind.OK, first * 3, first, 100, 21), rig.now)
            chosen[choice.backend] += 1
        return chosen

    assert run(300, {"vllm": 2.0, "llama_cpp": 0.1})["llama_cpp"] > 270
    assert run(300, {"vllm": 0.2, "llama_cpp": 4.0})["vllm"] > 150
    assert run(100, {"vllm": 0.2, "llama_cpp": 4.0})["vllm"] > 90


def test_a_batch_on_one_engine_does_not_keep_an_urgent_request_from_the_other() -> None:
    """Field case B22, with two engines: the one that is full of batch work is not waited for."""
    rig = Rig(TrafficPolicy(), (_VLLM, _LLAMA))
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
