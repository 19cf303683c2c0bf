"""Reads the answer to a probe: the generated pieces and by how much each beat the second best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from standby.domain.errors import ProbeFailed
from standby.runtime.engine_http import Answer

_SHOWN_BYTES: Final = 200
_ALONE: Final = 100.0  # nats; the engine named no second best


class ProbeRefused(ProbeFailed):
    """The engine does not know some words of the question, or answers in words of its own: a plainer one may do."""


def generated(answer: Answer, served_name: str) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return (texts of the tokens, margins in nats; empty where the engine told none).

    Without per-token words the whole text is one piece; it may be empty where the token is no text. Raises ProbeFailed,
    ProbeRefused where a plainer question may do: the engine took this one for wrong (400 to 499), or its form is not known.
    """
    content = answer.json()
    if answer.status != HTTPStatus.OK or not isinstance(content, dict):
        words = answer.body[:_SHOWN_BYTES].decode(errors="replace")
        refused = HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
        kind = ProbeRefused if refused else ProbeFailed
        raise kind(f"engine answered the probe with {answer.status}: {words}", remedy="see its log")
    if content.get("model") != served_name:
        raise ProbeFailed(f"engine serves model {content.get('model')!r}, the probe expected {served_name!r}")
    try:
        return _pieces(content)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        words = answer.body[:_SHOWN_BYTES].decode(errors="replace")
        raise ProbeRefused(f"engine answered the probe in a form that is not known: {words}", remedy="see its log") from error


def _pieces(content: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    usage, choices = content.get("usage") or {}, content.get("choices") or []
    if usage.get("completion_tokens", 0) < 1 or not choices:
        raise ProbeFailed("engine answered the probe without a token", remedy="see its log")
    steps = _steps(choices[0].get("logprobs") or {})
    if not steps:
        return (str(choices[0].get("text", "")),), ()
    return tuple(token for token, _ in steps), tuple(_margin(alternatives) for _, alternatives in steps)


def _steps(logprobs: Mapping[str, Any]) -> list[tuple[str, list[float]]]:
    """Return (token, log probabilities of the best) of each step: OpenAI's lists, or llama.cpp's list of objects."""
    if isinstance(content := logprobs.get("content"), list):
        return [(str(step["token"]), [float(one["logprob"]) for one in step.get("top_logprobs") or ()]) for step in content]
    tokens, best = logprobs.get("tokens") or [], logprobs.get("top_logprobs") or []
    return [
        (str(token), [float(value) for value in (alternatives or {}).values()])
        for token, alternatives in zip(tokens, best, strict=True)
    ]


def _margin(alternatives: Sequence[float]) -> float:
    first, *others = sorted(alternatives, reverse=True) or [0.0]
    return first - others[0] if others else _ALONE
