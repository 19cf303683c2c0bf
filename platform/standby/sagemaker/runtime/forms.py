"""Request forms of ``/invocations``: ``messages``, ``prompt`` and ``inputs``, mapped to an engine's routes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import pydantic_core

from standby.domain.errors import EngineError, InvalidInput, MalformedJson
from standby.sagemaker.runtime.asks import adapter_in
from standby.sagemaker.runtime.dialects import Dialect, Family

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"

# LMI and TGI names → OpenAI names.
_PARAMETERS: Final[Mapping[str, str]] = {
    "max_new_tokens": "max_tokens",
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "seed": "seed",
    "stop": "stop",
    "stop_sequences": "stop",
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
# The last one is LiteLLM's own setting, which it sends along; it means nothing here.
_UNDERSTOOD: Final = frozenset({"do_sample", "return_full_text", "details", "sagemaker_base_url"})
# OpenAI's reasons → LMI's and TGI's.
_REASONS: Final[Mapping[str, str]] = {"stop": "eos_token", "length": "length"}


class Form(StrEnum):
    """Which of the three forms a body has."""

    MESSAGES = "messages"
    PROMPT = "prompt"
    INPUTS = "inputs"


class EngineCall(NamedTuple):
    """What is sent to the engine; ``body`` is the caller's own bytes unless the form had to be translated."""

    form: Form
    path: str
    body: bytes
    stream: bool


def parse_object(body: bytes) -> dict[str, Any]:
    """Return ``body`` as a JSON object. Raises MalformedJson or InvalidInput."""
    try:
        value = pydantic_core.from_json(body)
    except ValueError as error:
        raise MalformedJson(
            f"the body is not JSON: {error}", remedy="send a JSON object with content-type application/json"
        ) from error
    if not isinstance(value, dict):
        raise InvalidInput(f"the body is a JSON {type(value).__name__}, not an object", remedy='send e.g. {"messages": […]}')
    return value


def engine_call(payload: Mapping[str, Any], body: bytes, served_name: str) -> EngineCall:
    """Return the engine's route for an ``/invocations`` body. Raises InvalidInput where no form fits.

    ``served_name`` is what the engine calls its model: the URL has named the endpoint, so another name in the body means
    nothing, and an engine would refuse it.
    """
    stream = payload.get("stream") is True
    if "messages" in payload:
        return EngineCall(Form.MESSAGES, CHAT_PATH, named(payload, body, served_name), stream)
    if "prompt" in payload:
        return EngineCall(Form.PROMPT, COMPLETIONS_PATH, named(payload, body, served_name), stream)
    if "inputs" in payload:
        return EngineCall(Form.INPUTS, COMPLETIONS_PATH, _from_inputs(payload, stream=stream), stream)
    raise InvalidInput(
        f"the body has none of 'messages', 'prompt', 'inputs' (its keys: {str(sorted(payload)[:10])[:200]})",
        remedy="send one of the three forms",
    )


def named(payload: Mapping[str, Any], body: bytes, served_name: str) -> bytes:
    """Return ``body``, with its ``model`` put right where it names another one; an empty name means any.

    ``served name:ADAPTER`` becomes ``ADAPTER``: engines know an adapter by its own name.
    """
    model = payload.get("model")
    if not model or model == served_name:
        return body
    return pydantic_core.to_json({**payload, "model": adapter_in(model, served_name) or served_name})


def _from_inputs(payload: Mapping[str, Any], *, stream: bool) -> bytes:
    inputs = payload["inputs"]
    parameters = payload.get("parameters") or {}
    if not isinstance(inputs, str):
        raise InvalidInput(f"'inputs' is a {type(inputs).__name__}, not a string", remedy="send one prompt per request")
    if not isinstance(parameters, dict):
        raise InvalidInput(
            f"'parameters' is a {type(parameters).__name__}, not an object",
            remedy='e.g. {"max_new_tokens": 64}',
        )
    given = {name: value for name, value in parameters.items() if value is not None}
    unknown = sorted(set(given) - set(_PARAMETERS) - _UNDERSTOOD)
    if unknown:
        raise InvalidInput(f"parameters {str(unknown)[:200]} are not known", remedy=f"use some of {sorted(_PARAMETERS)}")
    call: dict[str, Any] = {"prompt": inputs}
    for name, value in given.items():
        if name in _PARAMETERS:
            call[_PARAMETERS[name]] = value
    if given.get("do_sample") is False:
        call["temperature"] = 0
    if stream:
        call |= {"stream": True, "stream_options": {"include_usage": True}}
        if given.get("details"):
            call["logprobs"] = 1
    return pydantic_core.to_json(call)


def parameter(payload: Mapping[str, Any], name: str) -> Any:
    """Return one of the request's ``parameters``, or None."""
    parameters = payload.get("parameters")
    return parameters.get(name) if isinstance(parameters, dict) else None


def reason(finish_reason: object) -> str:
    """Return OpenAI's finish reason in LMI's and TGI's words."""
    return _REASONS.get(str(finish_reason), str(finish_reason))


def generated_text(payload: Mapping[str, Any], answer: bytes, dialect: Dialect) -> bytes:
    """Return a completion ``answer`` in the form that ``inputs`` callers expect: ``{"generated_text": …}``, TGI's in a list.

    Raises EngineError where the answer is no completion.
    """
    try:
        whole = pydantic_core.from_json(answer)
        choice = whole["choices"][0]
        text = str(choice["text"])
    except (ValueError, LookupError, TypeError) as error:
        raise EngineError(
            f"the engine's answer of {len(answer)} bytes is no completion: {type(error).__name__}",
            remedy="retry, or use 'messages' or 'prompt', whose answers are passed on as they are",
        ) from error
    if parameter(payload, "return_full_text"):
        text = payload["inputs"] + text
    result: dict[str, Any] = {"generated_text": text}
    if parameter(payload, "details"):
        usage = whole.get("usage") or {}
        result["details"] = {
            "finish_reason": reason(choice.get("finish_reason")),
            "generated_tokens": usage.get("completion_tokens"),
        }
    return pydantic_core.to_json([result] if dialect.family is Family.TGI else result)
