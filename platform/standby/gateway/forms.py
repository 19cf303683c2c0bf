"""Request forms of ``/invocations``: ``messages``, ``prompt`` and ``inputs``, mapped to an engine's routes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pydantic_core

from standby.domain.errors import EngineError, InvalidInput, MalformedJson

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


class Form(StrEnum):
    """Which of the three forms a body has."""

    MESSAGES = "messages"
    PROMPT = "prompt"
    INPUTS = "inputs"


@dataclass(frozen=True, slots=True)
class EngineCall:
    """What is sent to the engine; ``body`` is the caller's own bytes unless the form had to be translated."""

    form: Form
    path: str
    body: bytes


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


def engine_call(payload: Mapping[str, Any], body: bytes) -> EngineCall:
    """Return the engine's route for an ``/invocations`` body. Raises InvalidInput where no form fits."""
    if "messages" in payload:
        return EngineCall(Form.MESSAGES, CHAT_PATH, body)
    if "prompt" in payload:
        return EngineCall(Form.PROMPT, COMPLETIONS_PATH, body)
    if "inputs" in payload:
        return EngineCall(Form.INPUTS, COMPLETIONS_PATH, _from_inputs(payload))
    raise InvalidInput(
        f"the body has none of 'messages', 'prompt', 'inputs' (its keys: {str(sorted(payload)[:10])[:200]})",
        remedy="send one of the three forms",
    )


def _from_inputs(payload: Mapping[str, Any]) -> bytes:
    inputs = payload["inputs"]
    parameters = payload.get("parameters") or {}
    if not isinstance(inputs, str):
        raise InvalidInput(f"'inputs' is a {type(inputs).__name__}, not a string", remedy="send one prompt per request")
    if not isinstance(parameters, dict):
        raise InvalidInput(
            f"'parameters' is a {type(parameters).__name__}, not an object",
            remedy='e.g. {"max_new_tokens": 64}',
        )
    if payload.get("stream"):
        raise InvalidInput("the 'inputs' form does not stream", remedy="use 'messages' or 'prompt' with \"stream\": true")
    unknown = sorted(set(parameters) - set(_PARAMETERS) - {"do_sample", "return_full_text", "details"})
    if unknown:
        raise InvalidInput(f"parameters {str(unknown)[:200]} are not known", remedy=f"use some of {sorted(_PARAMETERS)}")
    call: dict[str, Any] = {"prompt": inputs}
    for name, value in parameters.items():
        if name in _PARAMETERS:
            call[_PARAMETERS[name]] = value
    if parameters.get("do_sample") is False:
        call["temperature"] = 0
    return pydantic_core.to_json(call)


def generated_text(payload: Mapping[str, Any], answer: bytes) -> bytes:
    """Return a completion ``answer`` in the form that ``inputs`` callers expect: ``{"generated_text": …}``.

    Raises EngineError where the answer is no completion.
    """
    try:
        text = str(pydantic_core.from_json(answer)["choices"][0]["text"])
    except (ValueError, LookupError, TypeError) as error:
        raise EngineError(
            f"the engine's answer of {len(answer)} bytes is no completion: {type(error).__name__}",
            remedy="retry, or use 'messages' or 'prompt', whose answers are passed on as they are",
        ) from error
    if (payload.get("parameters") or {}).get("return_full_text"):
        text = payload["inputs"] + text
    return pydantic_core.to_json({"generated_text": text})
