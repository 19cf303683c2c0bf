"""What engines say of themselves, in whatever form: it is understood, or refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from standby.domain.errors import EngineError, ProbeFailed
from standby.runtime.engine_http import Answer
from standby.runtime.engines.metrics_text import figures_of
from standby.runtime.engines.probe_answer import generated

NAME = "demo"
GOOD: dict[str, Any] = {"model": NAME, "usage": {"completion_tokens": 1}, "choices": [{"text": " Paris"}]}


def said(**changes: Any) -> Answer:
    return Answer(200, json.dumps({**GOOD, **changes}).encode())


def test_series_of_one_name_are_added_up() -> None:
    text = b'# TYPE running gauge\nrunning{engine="0"} 1\nrunning{engine="1"} 2\nother 5\n'
    assert figures_of(Answer(200, text)) == {"running": 3.0, "other": 5.0}


@pytest.mark.parametrize("body", [b"<html>busy</html>", b'a{b="c"}', b'{"error": 1}', b"\0"])
def test_metrics_that_are_none_are_an_error_in_words(body: bytes) -> None:
    with pytest.raises(EngineError, match="metrics that cannot be read"):
        figures_of(Answer(200, body))


def test_metrics_that_are_refused_are_an_error() -> None:
    with pytest.raises(EngineError, match="/metrics with 503"):
        figures_of(Answer(503, b""))


def test_a_probe_answer_is_read() -> None:
    assert generated(said(), NAME) == ((" Paris",), ())


@pytest.mark.parametrize(
    "changes",
    [
        {"usage": 7},
        {"usage": {"completion_tokens": "many"}},
        {"choices": {"0": "x"}},
        {"choices": ["text"]},
        {"choices": [{"logprobs": 3}]},
        {"choices": [{"logprobs": {"content": [{"no token": 1}]}}]},
        {"choices": [{"logprobs": {"content": [{"token": "a", "top_logprobs": [{"logprob": None}]}]}}]},
        {"choices": [{"logprobs": {"tokens": ["a", "b"], "top_logprobs": [{"a": -1.0}]}}]},
        {"choices": [{"logprobs": {"tokens": ["a"], "top_logprobs": ["a"]}}]},
    ],
)
def test_a_probe_answer_of_another_shape_is_a_failed_probe(changes: dict[str, Any]) -> None:
    with pytest.raises(ProbeFailed, match="probe"):
        generated(said(**changes), NAME)
