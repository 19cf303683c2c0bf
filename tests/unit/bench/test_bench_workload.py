"""From options to a plan, and from published traces to arrivals."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from standby.bench.lengths import Text, parse_lengths
from standby.bench.trace_file import read_trace
from standby.bench.workload import Arrivals, LoadOptions, plan_of
from standby.domain.errors import InvalidInput

LLM = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,0,0
"""
COUNTS = "function,mean_duration_ms,480,481,482\na,100,0,2,1\nb,5,1,0,0\n"
CALLS = "app,func,end_timestamp,duration\nx,f,12.5,2.5\nx,g,11.0,4.0\n"


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_rate_without_an_end_lasts_half_a_minute() -> None:
    plan = plan_of(LoadOptions(rate=10.0, arrivals=Arrivals.CONSTANT))
    assert len(plan.requests) == 300
    assert plan.workload.name == "constant 10/s for 30.0 s"
    assert plan.workload.parameters == {"arrivals": "constant", "rate": 10.0}


def test_a_plan_is_the_same_again_for_its_seed() -> None:
    options = LoadOptions(rate=50.0, arrivals=Arrivals.GAMMA, cv=3.0, count=40, prompt_tokens="5-50", max_tokens="normal:20,5")
    once, again = plan_of(options), plan_of(options)
    assert list(once.requests) == list(again.requests)
    assert len({request.prompt for request in once.requests}) == 40
    assert all(request.prompt.count(" ") + 1 == request.prompt_tokens for request in once.requests)


def test_a_ladder_names_its_steps() -> None:
    plan = plan_of(LoadOptions(ladder=(2.0, 8.0), step_s=10.0))
    assert tuple(plan.steps) == ("2/s", "8/s")
    assert {request.step for request in plan.requests} == {0, 1}


def test_a_burst_is_due_at_once_with_the_prompt_that_was_given() -> None:
    plan = plan_of(LoadOptions(burst=3, prompt="Name the capital of France."))
    assert [(request.due_s, request.prompt) for request in plan.requests] == [(0.0, "Name the capital of France.")] * 3
    assert plan.requests[0].prompt_tokens == 6


def test_a_trace_of_a_language_model_gives_times_and_lengths(tmp_path: Path) -> None:
    plan = plan_of(LoadOptions(trace=written(tmp_path, LLM), speed=2.0))
    assert [round(request.due_s, 4) for request in plan.requests] == [0.0, 2.1573, 2.2709]
    assert [(request.prompt_tokens, request.max_tokens) for request in plan.requests] == [(374, 44), (396, 109), (1, 1)]


def test_lengths_of_the_command_line_win_over_the_traces(tmp_path: Path) -> None:
    plan = plan_of(LoadOptions(trace=written(tmp_path, LLM), max_tokens="7", count=2))
    assert [(request.prompt_tokens, request.max_tokens) for request in plan.requests] == [(374, 7), (396, 7)]


def test_counts_per_minute_become_moments_inside_their_minutes(tmp_path: Path) -> None:
    requests = read_trace(written(tmp_path, COUNTS), random.Random(1))
    assert requests[0].at_s == 0.0
    assert [one.at_s < other.at_s for one, other in pairwise(requests)] == [True, True, True]
    assert len(read_trace(written(tmp_path, COUNTS), random.Random(1), function="a")) == 3


def test_calls_begin_where_they_ended_less_their_duration(tmp_path: Path) -> None:
    requests = read_trace(written(tmp_path, CALLS), random.Random(1))
    assert [request.at_s for request in requests] == [0.0, 3.0]
    assert [request.at_s for request in read_trace(written(tmp_path, CALLS), random.Random(1), function="f")] == [0.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: unknown columns"),
        ("a,b\n1,2\n", "unknown columns a, b"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", "line 2: TIMESTAMP 'noon' is no time"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,x,2\n", "ContextTokens is 'x', not a number"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1.5,2\n", "not a whole number"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1e12,2\n", "line 2: ContextTokens is '1e12', the limit"),
        ("function,mean_duration_ms,1\nf,10,-1\n", "minute 1 is '-1'"),
        ("function,mean_duration_ms,1\nf,10\n", "line 2: 2 columns where the header has 3"),
        ("app,func,end_timestamp,duration\na,f,nan,1\n", "end_timestamp is 'nan'"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_trace(written(tmp_path, text), random.Random(0))


def test_a_minute_of_very_many_requests_is_not_drawn_at_once(tmp_path: Path) -> None:
    """A count of 10^15 in a line must cost no more than the requests that are asked for."""
    text = "function,mean_duration_ms,1,2\nf,10,1e14,5\n"
    requests = read_trace(written(tmp_path, text), random.Random(3), most=1000)
    assert len(requests) == 1000
    assert all(one.at_s <= other.at_s for one, other in pairwise(requests))
    with pytest.raises(InvalidInput, match="more than 1000000 requests"):
        plan_of(LoadOptions(trace=written(tmp_path, text)))


def test_moments_inside_a_minute_are_spread_evenly(tmp_path: Path) -> None:
    text = "function,mean_duration_ms,1,2\nf,10,4000,4000\n"
    moments = [one.at_s for one in read_trace(written(tmp_path, text), random.Random(5))]
    for minute in range(2):
        inside = [at - 60 * minute for at in moments if minute * 60 <= at < minute * 60 + 60]
        assert sum(at < 15 for at in inside) == pytest.approx(1000, rel=0.1)
        assert sum(at < 45 for at in inside) == pytest.approx(3000, rel=0.1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"\xff\xfe,1,2", "line 4: no text"),
        (b"a\0b,1,2", "line 4: no text"),
        (b"x" * 200_000 + b",1,2", "line 4: no CSV"),
        (b'"two\nlines",1,2', "line 5: TIMESTAMP"),
    ],
)
def test_lines_that_hold_no_text_are_named(line: bytes, words: str, tmp_path: Path) -> None:
    """Also behind an empty line, and behind many good ones; a quoted line break counts as the line that it is."""
    path = tmp_path / "trace.csv"
    path.write_bytes(b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\n\n" + line + b"\n")
    with pytest.raises(InvalidInput, match=words):
        read_trace(path, random.Random(0))


def test_names_in_any_script_are_text(tmp_path: Path) -> None:
    path = written(tmp_path, "app,func,end_timestamp,duration\nx,größe\u00a0Ω,12.5,2.5\n")
    assert len(read_trace(path, random.Random(0), function="größe\u00a0Ω")) == 1


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        plan_of(LoadOptions(trace=tmp_path / "absent.csv"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="line 1: no text"):
        plan_of(LoadOptions(trace=tmp_path / "binary"))


@pytest.mark.parametrize(
    "options",
    [
        LoadOptions(burst=2, ladder=(1.0,)),
        LoadOptions(cv=2.0),
        LoadOptions(function="f"),
        LoadOptions(burst=0),
        LoadOptions(count=0),
        LoadOptions(prompt="a", prompt_tokens="3"),
        LoadOptions(rate=1e5, duration_s=1e5),
        LoadOptions(ladder=(1e5, 1e5), step_s=1e4),
        LoadOptions(max_tokens="many"),
        LoadOptions(rate=float("nan")),
        LoadOptions(rate=1e-300, count=2),
        LoadOptions(rate=1e-6, count=4),
        LoadOptions(ladder=(1.0, float("nan"))),
        LoadOptions(ladder=(1.0,), step_s=float("nan")),
        LoadOptions(ladder=(1.0,), duration_s=5.0),
        LoadOptions(ladder=(1.0,), arrivals=Arrivals.CONSTANT),
        LoadOptions(burst=2, count=3),
        LoadOptions(burst=2, duration_s=3.0),
        LoadOptions(burst=2, arrivals=Arrivals.GAMMA),
        LoadOptions(speed=2.0),
    ],
)
def test_options_that_make_no_sense_are_refused(options: LoadOptions) -> None:
    with pytest.raises(InvalidInput):
        plan_of(options)


@pytest.mark.parametrize(
    "text", ["0", "-3", "5-2", "normal:x,2", "normal:1.2.3,4", "lognormal:100", "1e9", "9999999", "lognormal:9,999"]
)
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--max-tokens"):
        parse_lengths(text, "--max-tokens")


def test_lengths_have_their_distributions() -> None:
    chance = random.Random(6)
    uniform = [parse_lengths("10-20", "").draw(chance) for _ in range(2000)]
    assert (min(uniform), max(uniform)) == (10, 20)
    normal = [parse_lengths("normal:200,50", "").draw(chance) for _ in range(4000)]
    assert sum(normal) / len(normal) == pytest.approx(200, rel=0.02)
    lognormal = sorted(parse_lengths("lognormal:200,1", "").draw(chance) for _ in range(4000))
    assert lognormal[2000] == pytest.approx(200, rel=0.08)
    assert parse_lengths("normal:1,1000", "").draw(chance) >= 1
    assert all(1 <= parse_lengths("lognormal:1000000,10", "").draw(chance) <= 1_000_000 for _ in range(200))


@pytest.mark.parametrize("words", [1, 2, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("place", [0.0, 0.5, 0.999999])
def test_prompts_have_the_words_that_were_asked_for(words: int, place: float) -> None:
    prompt = Text(random.Random(7)).window(words, place)
    assert len(prompt.split(" ")) == words
