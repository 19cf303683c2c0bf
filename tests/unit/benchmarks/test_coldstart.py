"""The arithmetic of ``bench_coldstart``: phases from a log, medians, ratios, goals. What it starts is tried by running it."""

from __future__ import annotations

import pytest

from support.coldstart_phases import Line, Phase, phases, process_numbers
from support.coldstart_values import GOALS, Goal, Kind, Memory, Results, Sample, in_turn, missed, spread

PLAIN_LOG = (
    Line(5.0, "(APIServer pid=10) INFO 11-29 21:44:41 [api_utils.py:286] non-default args: {'uds': '/x.sock'}"),
    Line(5.5, "(APIServer pid=10) INFO 11-29 21:44:41 [model.py:2152] Using max model len 8192"),
    Line(12.0, "(EngineCore pid=11) INFO 11-29 21:44:48 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: x"),
    Line(19.0, "(Worker pid=12) INFO 11-29 21:44:55 [parallel_state.py:1906] world_size=1 rank=0 local_rank=0 backend=gloo"),
    Line(19.5, "(Worker pid=12) INFO 11-29 21:44:55 [default_loader.py:501] Loading weights took 0.13 seconds"),
    Line(
        20.5, "(Worker pid=12) INFO 11-29 21:44:56 [cpu_worker.py:260] Explicitly set (0.25/10.84) GiB for KV cache on node 0."
    ),
    Line(21.0, "(EngineCore pid=11) INFO 11-29 21:44:57 [core.py:402] init engine (profile, create kv cache) took 0.58 s"),
    Line(22.25, "(APIServer pid=10) INFO 11-29 21:44:58 [entry.py:140] Starting vLLM server on unix:/x.sock"),
    Line(22.5, "(APIServer pid=10) INFO 11-29 21:44:58 [launcher.py:195] Route: /health, Methods: GET"),
)


def results(**samples: list[float]) -> Results:
    """Results with these seconds to the first token."""
    found = Results()
    for kind, values in samples.items():
        for value in values:
            found.add(Kind(kind), Sample(value))
    return found


def test_the_processes_of_a_start_are_known_by_what_they_write() -> None:
    assert process_numbers(PLAIN_LOG) == {"EngineCore": 11, "Worker": 12}


def test_phases_of_a_plain_start_take_what_lies_between_two_words_of_the_log() -> None:
    found = phases(PLAIN_LOG, {"EngineCore": 6.5, "Worker": 12.5}, 23.0)
    assert found == {
        Phase.IMPORT: 5.0 + 5.5 + 7.0,
        Phase.CONFIG: 1.5,
        Phase.LOAD: 1.5,
        Phase.GRAPHS: 0.0,
        Phase.WARM_UP: 0.5,
        Phase.API: 1.5,
        Phase.FIRST_TOKEN: 0.5,
    }
    assert sum(found.values()) == 23.0


def test_compilation_and_graphs_are_a_phase_of_their_own() -> None:
    graphs = Line(20.75, "(EngineCore pid=11) INFO [gpu_model_runner.py:1] Graph capturing finished in 3 secs, took 0.2 GiB")
    found = phases((*PLAIN_LOG[:6], graphs, *PLAIN_LOG[6:]), {"EngineCore": 6.5}, 23.0)
    assert found[Phase.GRAPHS] == 0.25
    assert found[Phase.WARM_UP] == 0.25


def test_words_that_come_late_or_not_at_all_never_make_a_phase_negative_or_lose_time() -> None:
    swapped = (PLAIN_LOG[0], PLAIN_LOG[3], Line(30.0, PLAIN_LOG[2].text))
    found = phases(swapped, {}, 23.0)
    assert min(found.values()) >= 0
    assert sum(found.values()) == 23.0
    assert phases((), {}, 2.0)[Phase.FIRST_TOKEN] == 2.0


def test_medians_and_ratios_are_of_the_seconds_to_the_first_token() -> None:
    found = results(plain=[20.0, 30.0, 100.0], zygote=[2.0, 1.0, 9.0], asleep=[0.1, 0.1, 0.1])
    assert found.median(Kind.PLAIN) == 30.0
    assert found.speedup(Kind.ZYGOTE) == pytest.approx(15.0)
    assert found.speedup(Kind.ASLEEP) == pytest.approx(300.0)


def test_details_and_phases_are_medians_over_the_starts_that_have_them() -> None:
    found = Results()
    for seconds in (1.0, 3.0, 2.0):
        found.add(Kind.ZYGOTE, Sample(9.0, {Phase.LOAD: seconds}, {"ready": seconds + 1}))
    found.add(Kind.ZYGOTE, Sample(9.0))
    assert found.phase(Kind.ZYGOTE, Phase.LOAD) == 2.0
    assert found.detail(Kind.ZYGOTE, "ready") == 3.0
    assert found.detail(Kind.ZYGOTE, "suspend") is None


def test_the_last_line_has_exactly_its_keys_and_nothing_for_what_was_left_out() -> None:
    found = results(llama=[0.5], ray=[2.0])
    assert found.figures() == {
        "speedup_zygote": None,
        "speedup_asleep": None,
        "idle_cpu_ready": None,
        "idle_cpu_parked": None,
        "pss_second_instance_mb": None,
        "llama_staged_first_token_s": 0.5,
        "ray_serve_first_token_s": 2.0,
    }


def test_measured_figures_are_rounded_and_compared_with_their_goals() -> None:
    found = results(plain=[24.0], zygote=[2.5], asleep=[0.1], llama=[1.6])
    found.idle_ready, found.idle_parked = 0.01198, 0.0
    found.memory = Memory(1.0, 992.26, 3.0, 4.0, 5.0, 6.0)
    figures = found.figures()
    assert figures["speedup_zygote"] == 9.6
    assert figures["idle_cpu_ready"] == 0.012
    assert figures["pss_second_instance_mb"] == 992.3
    assert missed(figures) == ["speedup_zygote", "llama_staged_first_token_s"]
    assert set(GOALS) <= set(figures)


def test_a_goal_says_which_side_of_it_is_right() -> None:
    assert str(Goal(at_least=12)) == "≥ 12"
    assert Goal(at_least=12).met(12)
    assert not Goal(at_least=12).met(11.9)
    assert str(Goal(at_most=0.02)) == "≤ 0.02"
    assert Goal(at_most=0.02).met(0.02)
    assert not Goal(at_most=0.02).met(0.03)


def test_every_other_round_goes_backwards() -> None:
    kinds = (Kind.PLAIN, Kind.ZYGOTE)
    assert in_turn(kinds, 3) == [Kind.PLAIN, Kind.ZYGOTE, Kind.ZYGOTE, Kind.PLAIN, Kind.PLAIN, Kind.ZYGOTE]


def test_a_spread_is_the_smallest_and_the_largest() -> None:
    assert spread([2.0, 1.0, 3.0], "{:.1f}".format) == "1.0 to 3.0"
    assert spread([], str) == ""
