"""Forms of a body and what an engine is asked for them."""

from __future__ import annotations

import json

import pytest

from standby.domain.errors import EngineError, InvalidInput, MalformedJson
from standby.sagemaker.runtime import forms
from standby.sagemaker.runtime.dialects import LMI, TGI

pytestmark = pytest.mark.decision


def call_of(body: bytes) -> forms.EngineCall:
    return forms.engine_call(forms.parse_object(body), body, "served")


def test_messages_and_prompt_pass_the_callers_own_bytes() -> None:
    for body, path in ((b'{"messages": [] , "x":1}', forms.CHAT_PATH), (b'{"prompt":"a"}', forms.COMPLETIONS_PATH)):
        call = call_of(body)
        assert (call.path, call.body, call.stream) == (path, body, False)


@pytest.mark.parametrize("model", ["", "served", None])
def test_a_model_that_means_this_one_is_left_alone(model: str | None) -> None:
    body = json.dumps({"messages": [], "model": model}).encode()
    assert call_of(body).body is body


def test_another_models_name_means_this_one() -> None:
    """LiteLLM sends the name of the endpoint, or whatever its user called it; vLLM answers 404 to names it does not serve."""
    call = call_of(b'{"messages": [{"role": "user"}], "model": "other", "stream": true}')
    assert json.loads(call.body) == {"messages": [{"role": "user"}], "model": "served", "stream": True}
    assert call.stream


def test_inputs_become_a_completion_and_back() -> None:
    body = b'{"inputs": "Once", "parameters": {"max_new_tokens": 3, "do_sample": false, "stop": ["."], "seed": null}}'
    payload = forms.parse_object(body)
    call = call_of(body)
    assert (call.form, call.path) == (forms.Form.INPUTS, forms.COMPLETIONS_PATH)
    assert json.loads(call.body) == {"prompt": "Once", "max_tokens": 3, "stop": ["."], "temperature": 0}
    answer = b'{"choices": [{"text": " upon", "finish_reason": "length"}], "usage": {"completion_tokens": 1}}'
    assert json.loads(forms.generated_text(payload, answer, LMI)) == {"generated_text": " upon"}
    assert json.loads(forms.generated_text(payload, answer, TGI)) == [{"generated_text": " upon"}]
    payload["parameters"] |= {"return_full_text": True, "details": True}
    assert json.loads(forms.generated_text(payload, answer, LMI)) == {
        "generated_text": "Once upon",
        "details": {"finish_reason": "length", "generated_tokens": 1},
    }


def test_inputs_that_stream_ask_the_engine_for_a_stream() -> None:
    call = call_of(b'{"inputs": "a", "stream": true, "parameters": {"details": true}}')
    assert json.loads(call.body) == {
        "prompt": "a",
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": 1,
    }


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
    ],
)
def test_bad_bodies_are_named(body: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call_of(body)


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"choices": []}'])
def test_an_answer_that_is_no_completion_is_named(answer: bytes) -> None:
    with pytest.raises(EngineError, match="no completion"):
        forms.generated_text({}, answer, LMI)
