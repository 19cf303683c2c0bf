"""What queue, router and breaker may know of a request: facts of its body, never the text itself in a record. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from standby.domain.priority import Priority


def _no_text() -> str:
    return ""


class Ask(NamedTuple):
    """A request's facts. A tuple, as one is made for each request.

    ``prompt`` returns the text that an engine will read (messages joined), only called where tokens must be counted;
    ``prompt_bytes`` is its length in UTF-8. ``prefix``: hash of its first bytes, 0 where there is no prompt. ``adapter``:
    the LoRA adapter that is asked for. ``wants_usage``: the caller asked for a stream's usage chunk. ``wished``: the
    priority that the caller named; None: the endpoint's default.
    """

    prompt_bytes: int = 0
    prompt: Callable[[], str] = _no_text
    prefix: int = 0
    max_tokens: int | None = None
    stream: bool = False
    wants_usage: bool = False
    adapter: str | None = None
    wished: Priority | None = None


NOTHING: Final = Ask()
