"""What the benchmark of traffic counts with: its simulated engines against closed formulas, its reading of streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from standby.domain.model import EngineKind
from standby.domain.traffic import HybridChoice, HybridPolicy, TrafficPolicy
from support.traffic_engine_simulation import (
    STEP_PROMPT_TOKENS,
    Asked,
    EngineSpeed,
    Fleet,
    at_rate,
    read_traces,
    simulate,
    synthetic,
)
from support.traffic_load import Answer, Class, _Reading, arrivals

SPEED = EngineSpeed(first_s=0.05, prompt_s=0.001, step_s=0.02, running_s=0.001)
THRESHOLDS = TrafficPolicy(latency_target=0.1, hybrid=HybridChoice(policy=HybridPolicy.THRESHOLDS))
ONE = Fleet({"vllm": (EngineKind.VLLM, SPEED)}, THRESHOLDS)
PAIR = Fleet({"vllm": (EngineKind.VLLM, SPEED), "tensorrt_llm": (EngineKind.TENSORRT_LLM, SPEED.faster(2.0))}, THRESHOLDS)
SHORT = Class("short", words=5, output=3)


def test_an_idle_engine_needs_what_its_speed_says() -> None:
    (served,) = simulate(ONE, [Asked(3.0, 500, 11)])
    assert served.first_s == pytest.approx(0.05 + 0.5)
    assert served.token_s == pytest.approx(0.021)


def test_a_short_prompt_waits_behind_a_long_one_that_is_being_read() -> None:
    long, short = Asked(0.0, STEP_PROMPT_TOKENS, 1), Asked(0.5, 100, 1)
    served = {one.asked: one for one in simulate(ONE, [long, short])}
    assert served[short].first_s == pytest.approx(STEP_PROMPT_TOKENS * 0.001 - 0.5 + 0.1 + 0.05)


def test_more_than_a_step_reads_takes_several_steps_and_everything_is_served() -> None:
    requests = [Asked(0.0, 3 * STEP_PROMPT_TOKENS + 1, 2), *(Asked(0.1, 10, 50) for _ in range(200))]
    served = simulate(ONE, requests)
    assert sorted(one.asked for one in served) == sorted(requests)


def test_the_gateways_own_thresholds_choose_the_engine() -> None:
    served = simulate(PAIR, [Asked(0.0, 100, 2), Asked(100.0, 3000, 2)])
    assert [one.engine for one in served] == ["vllm", "tensorrt_llm"]


def test_a_rate_is_what_it_says_and_the_trace_is_read(tmp_path: Path) -> None:
    requests = at_rate(synthetic(400, seed=1), 20.0)
    assert len(requests) / requests[-1].at == pytest.approx(20.0)
    file = tmp_path / "azure_llm_2023_x.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 19:17:03.9799600,1,1\n"
    )
    assert [(round(one.at, 3), one.prompt, one.output) for one in read_traces([file], 60)] == [(0, 4808, 10), (0.052, 3180, 8)]


def test_the_same_seed_brings_the_same_requests_and_no_two_prompts_begin_alike() -> None:
    dues = arrivals({SHORT: 1.0}, 10.0, 20.0, seed=3)
    assert dues == arrivals({SHORT: 1.0}, 10.0, 20.0, seed=3)
    assert 150 < len(dues) < 250
    assert len({due.prompt for due in dues}) == len(dues)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
TEXT = b'data: {"choices":[{"delta":{"content":"Paris"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("body", "began", "whole"),
    [
        (b": waiting\n\n" + TEXT + DONE, True, True),
        (TEXT + b'data: {"error":{"message":"died"}}\n\n', True, False),
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', False, False),
    ],
)
def test_only_text_begins_an_answer_and_only_its_end_makes_it_whole(body: bytes, began: bool, whole: bool) -> None:
    reading = _Reading()
    for byte in HEAD % len(body) + body:
        reading.feed(bytes((byte,)))
    assert reading.complete
    assert (reading.first_at is not None, reading.whole) == (began, whole)


def test_an_answer_is_good_that_is_whole_and_began_in_time() -> None:
    answer = Answer(SHORT, 0.0, 200, 0.2, 1.0, ended=True, route="")
    assert answer.within({"short": 0.2})
    assert not answer.within({"short": 0.1})
    assert not Answer(SHORT, 0.0, 200, 0.2, 1.0, ended=False, route="").within({"short": 0.2})
