"""``standby simulate`` as it is called, on a tiny trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from standby.cli.main import app
from standby.controller.simulator.catalogue import NEED_A_CAP, POLICIES
from standby.controller.simulator.known import KNOWN, compare

TRACE = "function,mean_duration_ms,0,1,2,3,4,5\na,10,1,0,0,3,0,1\nb,10,0,40,0,0,1,0\nnever,1,0,0,0,0,0,0\n"
SIZE = ["--warm-up", "60"]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return str(path)


def simulate(*words: str) -> Any:
    return CliRunner().invoke(app, ["simulate", *words])


def test_every_policy_is_replayed_and_told_as_json(trace: str) -> None:
    result = simulate("--trace", trace, *SIZE, "--json", "--prestaged")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    told = {one["policy"]: one for one in said["policies"]}
    assert set(told) == set(POLICIES) - NEED_A_CAP
    assert told["ttl-1"]["invocations"] == 45
    assert told["clairvoyant"]["wait_total_s"] <= told["ttl-1"]["wait_total_s"]
    assert [one["name"] for one in told["standby"]["functions"]] == ["a", "b", "never"]
    assert all(one["j"] == pytest.approx(one["cost"] + 100 * one["wait_total_s"]) for one in told.values())


def test_caps_bring_those_that_evict(trace: str) -> None:
    words = ("--json", "--device-cap", "0.8", "--policy", "greedy-dual-asleep", "--lambda", "7")
    result = simulate("--trace", trace, *SIZE, *words)
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["device_cap"] == 0.8
    assert [(one["policy"], one["wait_price"]) for one in said["policies"]] == [("greedy-dual-asleep", 7.0)]


def test_a_table_and_pictures(trace: str, tmp_path: Path) -> None:
    words = ("--policy", "ttl-1", "--policy", "ski-rental", "--plots", str(tmp_path / "plots"))
    result = simulate("--trace", trace, *SIZE, *words)
    assert result.exit_code == 0, result.output
    assert "3 functions, 46 invocations" in result.output
    assert "per function that was asked" in result.output
    drawn = sorted((tmp_path / "plots").iterdir())
    assert [path.name for path in drawn] == ["cost-mean-wait.png", "cost-p999-wait.png", "j.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_a_cost_model_of_ones_own(trace: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('{"warm_up_s": 0, "smallest_gb": 2, "largest_gb": 2, "rungs": {"cold": {"wait_s": 5}}}')
    result = simulate("--trace", trace, "--cost-model", str(path), "--policy", "no-keepalive", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["models_gb"] == pytest.approx(6)
    assert said["policies"][0]["wait_max_s"] == pytest.approx(5)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("[]", "holds a list, not an object"),
        ("{", "is not JSON"),
        ('{"exec": 2}', "the cost model has no field 'exec'"),
        ('{"exec_s": 0}', "exec_s is 0.0, it must be above 0"),
        ('{"slots": 0}', "slots is 0, the least is 1"),
        ('{"host_price": -1}', "host_price is -1, the least is 0"),
        ('{"host_price": "dear"}', "host_price is 'dear', not a finite number"),
        ('{"host_price": NaN}', "host_price is nan, not a finite number"),
        ('{"smallest_gb": 9, "largest_gb": 3}', "largest_gb is 3, the least is 9"),
        ('{"rungs": {"warm": {}}}', "rungs has no field 'warm'"),
        ('{"rungs": {"cold": {"seconds": 1}}}', "rung cold has no field 'seconds'"),
    ],
)
def test_a_wrong_cost_model_is_explained(trace: str, tmp_path: Path, model: str, said: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(model)
    result = simulate("--trace", trace, "--cost-model", str(path))
    assert result.exit_code == 2
    assert said in result.stderr


def test_what_is_asked_in_vain_is_explained(trace: str) -> None:
    unknown = simulate("--trace", trace, "--policy", "magic")
    assert unknown.exit_code == 2
    assert "policy 'magic' is not known" in unknown.stderr
    short = simulate("--trace", trace)
    assert short.exit_code == 2
    assert "the first 3600 s are not counted" in short.stderr


def test_without_matplotlib_the_remedy_is_named(trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = simulate("--trace", trace, *SIZE, "--policy", "ttl-1", "--plots", str(tmp_path / "plots"))
    assert result.exit_code == 3
    assert "pip install 'standby[simulate]'" in result.stderr


def test_a_figure_agrees_within_two_per_cent_of_what_was_printed() -> None:
    assert compare(0.2949 * 0.981, "0.30").agrees
    assert compare(0.305 * 1.0199, "0.30").agrees
    assert not compare(0.32, "0.30").agrees
    assert compare(126.9, "124").agrees
    assert not compare(0.02, "0").agrees
    assert {row.policy for row in KNOWN} <= set(POLICIES)


REQUESTS = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2024-05-01 10:00:{second:02d}.5,{100 * second},{second}\n" for second in range(1, 40)
)


@pytest.fixture
def requests(tmp_path: Path) -> str:
    path = tmp_path / "requests.csv"
    path.write_text(REQUESTS)
    return str(path)


def test_requests_with_tokens_have_rules_of_their_own(requests: str, tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    model.write_text('{"instances": 2, "devices": 3}')
    result = simulate("--trace", requests, "--json", "--cost-model", str(model))
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["requests"] == 39
    told = {one["policy"]: one for one in said["policies"]}
    assert list(told) == ["fixed-1", "fixed-2", "kpa", "reactive", "predictive"]
    assert all(one["tokens"] == sum(range(1, 40)) for one in told.values())
    assert told["fixed-2"]["gpu_s"] == pytest.approx(2 * 3 * 60)
    assert told["fixed-2"]["gpu_s_per_1k"] == pytest.approx(1000 * 360 / 780)
    assert told["fixed-2"]["first_p99_s"] <= told["fixed-1"]["first_p99_s"]


def test_a_table_and_a_picture_of_requests(requests: str, tmp_path: Path) -> None:
    words = ("--policy", "fixed-4", "--policy", "predictive", "--plots", str(tmp_path / "plots"))
    result = simulate("--trace", requests, *words)
    assert result.exit_code == 0, result.output
    assert "requests: 39 requests; 16 slots, 8 GPUs each, at most 8 instances" in result.output
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["gpu-first-token.png"]


def test_requests_are_still_replayed_as_one_function_under_the_rules_of_functions(requests: str) -> None:
    result = simulate("--trace", requests, "--policy", "ttl-1", "--warm-up", "0", "--json")
    assert result.exit_code == 0, result.output
    assert [one["policy"] for one in json.loads(result.stdout)["policies"]] == ["ttl-1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "kpa", "--policy", "ttl-1"), "'ttl-1' is not known for requests with tokens"),
        (("--policy", "fixed-9"), "policy 'fixed-9' is not known"),
        (("--policy", "kpa", "--prestaged"), "no meaning for requests with tokens"),
        (("--policy", "kpa", "--device-cap", "0.5"), "no meaning for requests with tokens"),
    ],
)
def test_what_has_no_meaning_for_requests_is_refused(requests: str, words: tuple[str, ...], said: str) -> None:
    result = simulate("--trace", requests, *words)
    assert result.exit_code == 2
    assert said in result.stderr
