"""Facts of bodies in every form, and what is put into a body on its way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from standby.domain.errors import InvalidInput
from standby.domain.priority import Priority
from standby.sagemaker.runtime.asks import (
    PREFIX_BYTES,
    adapter_in,
    ask_of,
    asking_usage,
    prompt_in,
    wished_priority,
    with_priority,
)

LONG = "You are a helpful assistant. " * 20


def asked(**payload: Any) -> Any:
    return ask_of(payload, json.dumps(payload).encode())


@pytest.mark.parametrize(
    ("payload", "prompt"),
    [
        ({"messages": [{"role": "system", "content": "one"}, {"role": "user", "content": "zwölf"}]}, "one\nzwölf"),
        ({"messages": [{"content": [{"type": "text", "text": "a"}, {"type": "image_url"}, "b"]}]}, "a\nb"),
        ({"messages": [{"role": "assistant", "content": None}, {"content": "a"}, 7]}, "a"),
        ({"prompt": "once"}, "once"),
        ({"prompt": ["one", "two"]}, "one\ntwo"),
        ({"inputs": "once"}, "once"),
        ({"messages": []}, ""),
        ({"messages": "no list"}, ""),
        ({"prompt": 7}, ""),
        ({"prompt": ""}, ""),
        ({}, ""),
    ],
)
def test_the_prompt_and_its_size(payload: dict[str, Any], prompt: str) -> None:
    ask = asked(**payload)
    assert ask.prompt() == prompt
    assert ask.prompt_bytes == len(prompt.encode())
    assert bool(ask.prefix) is bool(prompt)


def test_token_numbers_are_reckoned() -> None:
    ask = asked(prompt=[1, 2, 3])
    assert (ask.prompt_bytes, ask.prompt()) == (12, "")
    assert ask.prefix


def test_a_body_that_is_none_has_no_prompt() -> None:
    assert prompt_in(b"[]") == prompt_in(b"{") == ""


def test_prompts_that_begin_alike_have_one_prefix() -> None:
    """Whatever the form, and on every gateway: the number is written down here."""
    chat = asked(messages=[{"role": "system", "content": LONG}, {"role": "user", "content": "a"}])
    other = asked(messages=[{"role": "system", "content": LONG}, {"role": "user", "content": "b"}])
    plain = asked(prompt=LONG + "c")
    assert chat.prefix == other.prefix == plain.prefix == 4281809580
    assert asked(prompt="x" + LONG).prefix != plain.prefix
    short = PREFIX_BYTES - 2
    assert asked(prompt="a" * short + "b").prefix != asked(prompt="a" * short + "c").prefix


@pytest.mark.parametrize(
    ("payload", "limit"),
    [
        ({"prompt": "", "max_tokens": 5}, 5),
        ({"messages": [], "max_completion_tokens": 6}, 6),
        ({"inputs": "", "parameters": {"max_new_tokens": 7}}, 7),
        ({"inputs": "", "parameters": None}, None),
        ({"prompt": "", "max_tokens": None}, None),
        ({"prompt": "", "max_tokens": "5"}, None),
        ({"prompt": "", "max_tokens": True}, None),
        ({"prompt": "", "max_tokens": -1}, None),
        ({"prompt": "", "max_tokens": 10**400}, None),
    ],
)
def test_the_limit_of_the_answer(payload: dict[str, Any], limit: int | None) -> None:
    assert asked(**payload).max_tokens == limit


@pytest.mark.parametrize(
    ("payload", "wants"),
    [
        ({"stream": True}, False),
        ({"stream": True, "stream_options": None}, False),
        ({"stream": True, "stream_options": {}}, False),
        ({"stream": True, "stream_options": {"include_usage": False}}, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True),
        ({"stream": True, "stream_options": "nonsense"}, True),
        ({"stream": False, "stream_options": {"include_usage": True}}, False),
    ],
)
def test_who_wants_the_usage(payload: dict[str, Any], wants: bool) -> None:
    assert asked(messages=[], **payload).wants_usage is wants


def test_streams_of_inputs_need_their_usage() -> None:
    assert asked(inputs="a", stream=True).wants_usage


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ({}, {"include_usage": True}),
        ({"stream_options": None}, {"include_usage": True}),
        ({"stream_options": {"include_usage": False, "chunk": 7}}, {"include_usage": True, "chunk": 7}),
        ({"stream_options": {"include_usage": True, "chunk": 7}}, {"include_usage": True, "chunk": 7}),
        ({"stream_options": "nonsense"}, "nonsense"),
    ],
)
def test_the_engine_is_asked_for_usage(more: dict[str, Any], options: object) -> None:
    payload = {"stream": True, "messages": [{"content": "}"}], **more}
    for body in (json.dumps(payload).encode(), json.dumps(payload, indent=1).encode() + b"\r\n "):
        told = json.loads(asking_usage(payload, body, ask_of(payload, body)))
        assert told == {**payload, "stream_options": options}


def test_what_does_not_stream_is_not_touched() -> None:
    payload: dict[str, Any] = {"messages": []}
    assert asking_usage(payload, b'{"messages": []}', ask_of(payload, b"")) == b'{"messages": []}'


@pytest.mark.parametrize("body", [{}, {"a": "}"}, {"priority": 3}, {"a": {"priority": 1}}, {"a": '"priority"'}])
def test_the_engines_priority_replaces_the_callers(body: dict[str, Any]) -> None:
    for text in (json.dumps(body).encode(), json.dumps(body, indent=1).encode() + b"\n"):
        assert json.loads(with_priority(text, -10)) == {**body, "priority": -10}
        assert json.loads(with_priority(text, 0.75)) == {**body, "priority": 0.75}


@pytest.mark.parametrize("word", [b"urgent", b"HIGH", b" normal ", b"batch"])
def test_the_four_words(word: bytes) -> None:
    assert wished_priority(word) is Priority(word.decode().strip().lower())


@pytest.mark.parametrize("word", [b"", b"asap", b"\xff", b"high,low"])
def test_other_words_are_refused(word: bytes) -> None:
    with pytest.raises(InvalidInput, match="urgent, high, normal, batch"):
        wished_priority(word)


def test_no_wish() -> None:
    assert wished_priority(None) is None


@pytest.mark.parametrize(
    ("model", "adapter"),
    [("org/m:fr", "fr"), ("org/m:a:b", "a:b"), ("org/m", None), ("org/m:", None), ("other:fr", None), (None, None), (7, None)],
)
def test_an_adapter_is_named_behind_the_model(model: object, adapter: str | None) -> None:
    assert adapter_in(model, "org/m") == adapter
