"""Facts of a request's body for queue, router and meter, and the few members that are put into it on its way. Pure.

A prompt is the text of all messages, one after the other; no chat template is applied, so an engine reads a little more.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import pydantic_core

from standby.domain.ask import Ask
from standby.domain.errors import InvalidInput
from standby.domain.priority import Priority
from standby.wire.headers import PRIORITY

# How much of two prompts must be the same for them to count as beginning alike.
PREFIX_BYTES: Final = 256
# How many bytes of a prompt count as a token, and how many a token number counts.
BYTES_PER_TOKEN: Final = 4
# A limit above this is none: JSON's numbers have any size, a float has not. Nor is one below 0.
MOST_TOKENS: Final = 1 << 31

_WISHES: Final[Mapping[bytes, Priority]] = {priority.value.encode(): priority for priority in Priority}
_ASK_FOR_USAGE: Final = b',"stream_options":{"include_usage":true}}'
_NO_PARAMETERS: Final[Mapping[str, Any]] = {}


def wished_priority(header: bytes | None) -> Priority | None:
    """Return the priority that the value of PRIORITY names. Raises InvalidInput for an unknown word."""
    if header is None:
        return None
    wished = _WISHES.get(header.strip().lower())
    if wished is None:
        raise InvalidInput(
            f"{PRIORITY.decode()} {header.decode('latin-1')[:40]!r} is none of {', '.join(Priority)}",
            remedy="leave the header out for the endpoint's own priority",
        )
    return wished


def adapter_in(model: object, served_name: str) -> str | None:
    """Return ADAPTER of a body's ``model`` of the form ``served name:ADAPTER``, else None."""
    if isinstance(model, str) and len(model) > len(served_name) + 1 and model.startswith(f"{served_name}:"):
        return model[len(served_name) + 1 :]
    return None


def ask_of(payload: Mapping[str, Any], body: bytes, *, wished: Priority | None = None, adapter: str | None = None) -> Ask:
    """Return the facts of a body in any of the three forms; ``payload`` is its JSON.

    What is of the wrong type or size counts as absent: it is for the engine to refuse. ``wants_usage`` is true also of
    streams that are written anew from the engine's (``inputs``), since that takes its usage.
    """
    parameters, inputs = payload, False
    if "messages" in payload:
        size, prefix = _measured(payload["messages"])
    elif "prompt" in payload:
        size, prefix = _measured_prompt(payload["prompt"])
    else:
        inputs = True
        given = payload.get("parameters")
        parameters = given if isinstance(given, dict) else _NO_PARAMETERS
        size, prefix = _measured_prompt(payload.get("inputs"))
    streams = payload.get("stream") is True
    limit = parameters.get("max_tokens")
    if limit is None:
        limit = parameters.get("max_new_tokens" if inputs else "max_completion_tokens")
    if not isinstance(limit, int) or limit is True or not 0 <= limit <= MOST_TOKENS:
        limit = None
    wants_usage = streams and (inputs or _usage_is_wanted(payload))
    return Ask(size, partial(prompt_in, body), prefix, limit, streams, wants_usage, adapter, wished)


def prepared(payload: Mapping[str, Any], body: bytes, served_name: str, wished: Priority | None, /) -> tuple[bytes, Ask]:
    """Return ``body`` as an engine is asked with it, and its facts. Its model has been put right (forms.named)."""
    ask = ask_of(payload, body, wished=wished, adapter=adapter_in(payload.get("model"), served_name))
    return asking_usage(payload, body, ask), ask


def prompt_in(body: bytes) -> str:
    """Return the prompt of a body, read anew: a request that waits shall hold its bytes and nothing else."""
    try:
        payload = pydantic_core.from_json(body)
    except ValueError:
        return ""
    if not isinstance(payload, dict):
        return ""
    if "messages" in payload:
        return "\n".join(_texts(payload["messages"]))
    prompt = payload.get("prompt", payload.get("inputs"))
    if isinstance(prompt, list):
        return "\n".join(part for part in prompt if isinstance(part, str))
    return prompt if isinstance(prompt, str) else ""


# ---- members that are put in ---------------------------------------------------------------------------------------


def asking_usage(payload: Mapping[str, Any], body: bytes, ask: Ask) -> bytes:
    """Return ``body``, which asks an engine for a stream's usage also where its caller did not.

    ``payload`` is the JSON of ``body``, but for its model. The caller's other ``stream_options`` are kept.
    """
    if not ask.stream or ask.wants_usage:
        return body
    if "stream_options" not in payload:
        return body[: body.rindex(b"}")] + _ASK_FOR_USAGE
    options = {**(payload["stream_options"] or {}), "include_usage": True}
    return pydantic_core.to_json({**pydantic_core.from_json(body), "stream_options": options})


def with_priority(body: bytes, number: float) -> bytes:
    """Return ``body`` with an engine's ``priority``; it replaces the caller's own, who may not overtake others.

    ``body`` is a JSON object.
    """
    if b'"priority"' in body:
        return pydantic_core.to_json({**pydantic_core.from_json(body), "priority": number})
    head = body[: body.rindex(b"}")]
    comma = b"" if head.rstrip().endswith(b"{") else b","
    return b'%b%b"priority":%b}' % (head, comma, str(number).encode())


# ---- inside --------------------------------------------------------------------------------------------------------


def _usage_is_wanted(payload: Mapping[str, Any]) -> bool:
    options = payload.get("stream_options")
    if options is None:
        return False
    # Options of the wrong type are the caller's own: they stay as they are, and so does what the engine makes of them.
    return bool(options.get("include_usage")) if isinstance(options, dict) else True


def _texts(messages: object) -> Iterator[str]:
    """Yield the texts of messages, content parts included."""
    if not isinstance(messages, list):
        return
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            for part in content:
                text = part.get("text") if isinstance(part, dict) else part
                if isinstance(text, str):
                    yield text


def _measured(messages: object) -> tuple[int, int]:
    """Return size in bytes and hash of the beginning of what ``prompt_in`` would return."""
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], dict):
        only = messages[0].get("content")
        if isinstance(only, str) and only.isascii():
            return (len(only), _hash(only)) if only else (0, 0)
    size = -1
    head = ""
    for text in _texts(messages):
        size += 1 + (len(text) if text.isascii() else _size(text))
        if len(head) < PREFIX_BYTES:
            head = f"{head}\n{text[:PREFIX_BYTES]}" if head else text[:PREFIX_BYTES]
    return (size, _hash(head)) if size > 0 else (0, 0)


def _measured_prompt(prompt: object) -> tuple[int, int]:
    if isinstance(prompt, str):
        return (_size(prompt), _hash(prompt)) if prompt else (0, 0)
    if not isinstance(prompt, list) or not prompt:
        return 0, 0
    if isinstance(prompt[0], str):
        texts = [part for part in prompt if isinstance(part, str)]
        return sum(map(_size, texts)) + len(texts) - 1, _hash("\n".join(texts[:2]))
    return len(prompt) * BYTES_PER_TOKEN, _hash(str(prompt[:PREFIX_BYTES]))


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _hash(text: str) -> int:
    # Alike on every gateway, so none of Python's own salted hashes; 0 means that there is no prompt.
    return zlib.crc32(text[:PREFIX_BYTES].encode("utf-8", "replace")[:PREFIX_BYTES]) or 1
