"""Router, admission and forms: pure functions of what they are given."""

from __future__ import annotations

import json

import pytest

from standby.domain.errors import InvalidInput, MalformedJson
from standby.domain.instance import Activation, Phase, Rung
from standby.gateway import forms
from standby.gateway.dataplane import phases_header
from standby.gateway.router import Candidate, choose

pytestmark = pytest.mark.decision


def test_least_outstanding_for_its_slots_wins() -> None:
    some = [Candidate("a", 2, 4), Candidate("b", 3, 8), Candidate("c", 1, 1)]
    assert choose(some, 0.0, 0).instance == "b"


def test_ties_rotate_with_the_ticket() -> None:
    some = [Candidate("a", 0, 4), Candidate("b", 0, 4)]
    assert [choose(some, 0.0, ticket).instance for ticket in range(4)] == ["a", "b", "a", "b"]


def test_blocked_instances_say_when_to_ask_again() -> None:
    some = [Candidate("a", 0, 4, blocked_until=5.0), Candidate("b", 4, 4), Candidate("c", 0, 4, blocked_until=3.0)]
    choice = choose(some, 1.0, 0)
    assert (choice.instance, choice.retry_at) == (None, 3.0)
    assert choose(some, 3.0, 0).instance == "c"


def test_messages_and_prompt_pass_the_callers_own_bytes() -> None:
    for body, path in ((b'{"messages": [] , "x":1}', forms.CHAT_PATH), (b'{"prompt":"a"}', forms.COMPLETIONS_PATH)):
        call = forms.engine_call(forms.parse_object(body), body)
        assert (call.path, call.body) == (path, body)


def test_inputs_become_a_completion_and_back() -> None:
    body = b'{"inputs": "Once", "parameters": {"max_new_tokens": 3, "do_sample": false, "stop": ["."]}}'
    payload = forms.parse_object(body)
    call = forms.engine_call(payload, body)
    assert (call.form, call.path) == (forms.Form.INPUTS, forms.COMPLETIONS_PATH)
    assert json.loads(call.body) == {"prompt": "Once", "max_tokens": 3, "stop": ["."], "temperature": 0}
    answer = b'{"choices": [{"text": " upon"}]}'
    assert json.loads(forms.generated_text(payload, answer)) == {"generated_text": " upon"}
    payload["parameters"]["return_full_text"] = True
    assert json.loads(forms.generated_text(payload, answer)) == {"generated_text": "Once upon"}


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (b"{", MalformedJson, "not JSON"),
        (b"", MalformedJson, "not JSON"),
        (b"[1]", InvalidInput, "a JSON list"),
        (b'{"x": 1}', InvalidInput, "none of 'messages', 'prompt', 'inputs'"),
        (b'{"inputs": ["a", "b"]}', InvalidInput, "'inputs' is a list"),
        (b'{"inputs": "a", "parameters": 3}', InvalidInput, "'parameters' is a int"),
        (b'{"inputs": "a", "parameters": {"best_of": 3}}', InvalidInput, "best_of"),
        (b'{"inputs": "a", "stream": true}', InvalidInput, "does not stream"),
    ],
)
def test_bad_bodies_are_named(body: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        forms.engine_call(forms.parse_object(body), body)


def test_phases_add_up_to_the_wait() -> None:
    activation = Activation(id="a", from_rung=Rung.STAGED, phases_ms={Phase.PROBED: 8.0, Phase.FORKED: 100.0})
    assert phases_header(activation, 0.120) == b"placed=12.0,forked=100.0,probed=8.0"
