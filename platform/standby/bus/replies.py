"""Questions and answers over the bus: what an answer looks like, and errors of our own tree that cross it whole."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from standby.domain.errors import StandbyError, Unavailable

RequestHandler = Callable[[str, bytes], Awaitable[bytes]]
"""``await handler(subject, payload)`` returns the answer; a StandbyError that it raises is raised where the question came
from."""

ERROR_HEADER: Final = "Standby-Error"
"""Holds the error's code; the body is then JSON with ``message``, ``remedy`` and ``retry_after_s``."""

MAX_SERVED: Final = 64
"""Questions that one handler answers at once; more are refused."""


def encode_error(error: StandbyError) -> tuple[dict[str, str], bytes]:
    """Return headers and body that carry ``error``."""
    body = {"message": error.message, "remedy": error.remedy, "retry_after_s": error.retry_after_s}
    return {ERROR_HEADER: error.code}, json.dumps(body).encode()


def raise_error(headers: Mapping[str, str] | None, body: bytes) -> None:
    """Raise the error that an answer carries, if it does: of the class with that code, of StandbyError when none has it."""
    code = (headers or {}).get(ERROR_HEADER)
    if code is None:
        return
    try:
        told = json.loads(body)
        message, remedy, retry_after_s = str(told["message"]), str(told["remedy"]), told["retry_after_s"]
    except (ValueError, TypeError, KeyError):
        message, remedy, retry_after_s = f"error {code} without an explanation", "", None
    kind = next((kind for kind in _all_kinds(StandbyError) if kind.code == code), StandbyError)
    raise kind(message, remedy=remedy, retry_after_s=retry_after_s)


def nobody_answers(subject: str) -> Unavailable:
    """Return the error for a question that no process listens for."""
    return Unavailable(
        f"nobody answers on {subject}", remedy="check that the process runs and is connected to NATS", retry_after_s=1.0
    )


def no_answer(subject: str, timeout_s: float) -> Unavailable:
    """Return the error for a question whose answer did not come; it may have been carried out."""
    return Unavailable(f"no answer on {subject} within {timeout_s:g} s, outcome unknown", remedy="ask again", retry_after_s=1.0)


def _all_kinds(kind: type[StandbyError]) -> Iterator[type[StandbyError]]:
    yield kind
    for sub in kind.__subclasses__():
        yield from _all_kinds(sub)
