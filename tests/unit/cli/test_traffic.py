"""Traffic and several engines on the command line: what is read of options, and how a policy is told in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from standby.cli.traffic_options import backends_body, parse_backend, traffic_body
from standby.cli.traffic_report import backend_rows, traffic_facts
from standby.domain.durations import FOREVER
from standby.domain.endpoint import Backend, Variant
from standby.domain.errors import InvalidInput
from standby.domain.model import EngineKind
from standby.domain.traffic import BreakerPolicy, BreakerRule, HybridChoice, HybridPolicy, Tier, TrafficPolicy

NOTHING = dict.fromkeys(("tier", "latency_target", "priority", "max_priority", "queue", "hybrid"))


def test_a_backend_is_read_as_the_api_takes_it() -> None:
    text = (
        "engine=vllm, weights=full,slots=8,min-ready=1,max_instances=2,memory-mb=512,option.context=4096,option.priority=true"
    )
    assert parse_backend(text) == {
        "engine": "vllm",
        "weights": "full",
        "slots": 8,
        "min_ready": 1,
        "max_instances": 2,
        "memory_mb": 512,
        "engine_options": {"context": 4096, "priority": True},
    }
    Backend.model_validate(parse_backend(text))
    assert [one["engine"] for one in backends_body(["engine=vllm", "engine=llama_cpp"])] == ["vllm", "llama_cpp"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slots=8", ("'engine' is missing", "llama_cpp")),
        ("engine=vllm,slot=8", ("no field 'slot'", "min-ready")),
        ("engine=vllm,slots=many", ("slots='many'", "whole number")),
        ("engine", ("'engine' is not of the form field=value", "--backend engine=vllm")),
        ("engine=vllm,slots=", ("field=value",)),
    ],
)
def test_a_backend_that_cannot_be_read_is_refused_with_an_example(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_backend(text)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_single_options_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(
        json.dumps({"tier": "best-effort", "priority": {"default": "batch", "weights": {"high": 9}}, "queue": "static"})
    )
    told = traffic_body(file, **{**NOTHING, "tier": "critical", "priority": "high", "hybrid": "thresholds"})
    assert told == {
        "tier": "critical",
        "priority": {"default": "high", "weights": {"high": 9}},
        "queue": "static",
        "hybrid": {"policy": "thresholds"},
    }
    assert traffic_body(None, **NOTHING) == {}


@pytest.mark.parametrize("content", ["{", "[]", '{"priority": 3}', None])
def test_a_file_that_is_no_policy_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "t.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidInput, match="--traffic"):
        traffic_body(file, **{**NOTHING, "priority": "high"})


def test_a_latency_target_is_a_duration() -> None:
    with pytest.raises(InvalidInput, match="duration 'soon'"):
        traffic_body(None, **{**NOTHING, "latency_target": "soon"})


def facts(policy: TrafficPolicy, backends: int = 0, wait: float = 50.0) -> dict[str, str]:
    return {name.strip(): words for name, words in traffic_facts(policy, wait, backends)}


def test_the_default_policy_in_words() -> None:
    told = facts(TrafficPolicy())
    assert told["tier"].startswith("standard: as many tries as needed where no engine can have begun")
    assert told["latency target"] == "none"
    assert told["queue"] == "static: adaptive needs a latency target"
    assert told["urgent"] == "weight 5, goes first after 1.0 s, refused after 50.0 s"
    assert told["breaker"] == (
        "an instance gets no requests once 60% of at least 20 requests within 1 m 0 s failed; or 5 in a row of at least 10 "
        "requests within 30.0 s failed; or 3 in a row of at least 3 requests within 10.0 s connections were refused; "
        "for 5.0 s, doubling up to 1 m 0 s, until a good answer"
    )
    assert "choice of engine" not in told


@pytest.mark.parametrize("tier", Tier)
def test_every_tier_says_what_it_does(tier: Tier) -> None:
    told = facts(TrafficPolicy(tier=tier))
    assert told["tier"].startswith(f"{tier.value}: ")
    assert (told["breaker"] == "none in this tier") is (tier is Tier.BEST_EFFORT)


def test_other_policies_in_words() -> None:
    rule = BreakerRule(requests=1, failures_in_a_row=1)
    quiet = TrafficPolicy(
        latency_target=0.1,
        prefix_affinity=False,
        adaptive_concurrency=False,
        breaker=BreakerPolicy(rules=(rule,), probes=3),
        hybrid=HybridChoice(policy=HybridPolicy.THRESHOLDS),
    )
    told = facts(quiet, backends=2, wait=FOREVER)
    assert told["queue"].startswith("adaptive: as many wait as still meet the latency target, at least 4")
    assert told["batch"].endswith("waits without limit")
    assert told["breaker"].endswith("until 3 good answers in a row")
    assert told["routing"] == "fewest requests for its slots, faster ones first"
    assert told["choice of engine"].startswith("thresholds: from 2048 prompt tokens on TensorRT-LLM, below 512 vLLM, else")
    learned = facts(TrafficPolicy(), backends=2)["choice of engine"]
    words = "learned: the one that is predicted to have the whole answer first"
    assert learned.startswith(f"{words}; 2% of normal and batch requests explore; fuller than 92%")
    learned = facts(TrafficPolicy(latency_target=1.0, hybrid=HybridChoice(explore=0.0)), backends=2)["choice of engine"]
    assert learned.startswith(f"{words}, those first that meet the latency target; none explores; fuller")


def test_backends_are_told_with_their_bounds_and_rungs() -> None:
    several = (
        Backend(engine=EngineKind.LLAMA_CPP),
        Backend(name="gpu", engine=EngineKind.VLLM, weights="full", slots=16, min_ready=2),
    )
    variant: dict[str, Any] = Variant(model="m", backends=several).model_dump(mode="json")
    instances = [
        {"variant": "AllTraffic", "backend": "gpu", "rung": "ready"},
        {"variant": "AllTraffic", "backend": "gpu", "rung": "ready"},
        {"variant": "AllTraffic", "backend": "gpu", "rung": "cold"},
        {"variant": "other", "backend": "gpu", "rung": "ready"},
    ]
    assert backend_rows(variant, instances) == [
        ("llama_cpp (preferred)", "llama_cpp", "registered", "4", "0 to 1", "none"),
        ("gpu", "vllm", "full", "16", "2 to 2", "2 ready, 1 cold"),
    ]
