"""What a server says in its errors, fit for reports and terminals, and of which class they are."""

from __future__ import annotations

import re
from typing import Any, Final

import pydantic_core

from standby.bench.values import ErrorClass
from standby.telemetry.redact import mask

MOST_SAID: Final = 300
# Secrets are masked in more than is kept: of one that is cut in two the first half would not be known as one.
_LOOKED_AT: Final = 4 * MOST_SAID

_CONTROLS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f]+")


def class_of(status: int) -> ErrorClass:
    """Return the class of an HTTP status that is no success."""
    if status == 429:
        return ErrorClass.THROTTLED
    if status >= 500:
        return ErrorClass.SERVER
    return ErrorClass.CLIENT if status >= 400 else ErrorClass.RUBBISH


def said(content: dict[str, Any]) -> str:
    """Return the words of an error in OpenAI's envelope or in AWS's."""
    error = content.get("error", content)
    if isinstance(error, dict):
        words = next((error[name] for name in ("message", "Message", "detail") if error.get(name)), error)
        return str(words)
    return str(error)


def said_in(body: bytes) -> str:
    """Return the words of an error's body, cut short."""
    try:
        content = pydantic_core.from_json(body)
    except ValueError:
        return text_of_bytes(body) or "(no body)"
    return (said(content) if isinstance(content, dict) else str(content))[:_LOOKED_AT]


def original_status(status: int, body: bytes) -> int:
    """Return the model server's own status where SageMaker has hidden it behind 424 (ModelError)."""
    if status != 424:
        return status
    try:
        original = pydantic_core.from_json(body)["OriginalStatusCode"]
    except (ValueError, KeyError, TypeError):
        return status
    return original if isinstance(original, int) and 300 <= original <= 599 else status


def text_of_bytes(data: bytes) -> str:
    """Return the beginning of a body as text."""
    return data[:_LOOKED_AT].decode(errors="replace").strip()


def plain(message: str) -> str:
    """Return a server's words fit for terminals and reports: it may repeat the key that it was shown, and colour its words."""
    return mask(_CONTROLS.sub(" ", message[:_LOOKED_AT])).strip()[:MOST_SAID]
