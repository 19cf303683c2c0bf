"""What nodes answer to an order of the control API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from standby.domain.errors import BusUnavailable, StandbyError, Unavailable
from standby.gateway.api.context import Call

ANSWER_LIMIT_S: Final = 5.0

A = TypeVar("A")
Failures = list[tuple[str, StandbyError]]


async def answer_of(call: Call, node: str, subject: str, order: bytes, *, again: str) -> bytes:
    """Return what a node answers; ``again`` tells how the order is repeated.

    Raises Unavailable for its silence, BusUnavailable, and what the node itself says.
    """
    try:
        return await call.context.bus.request(subject, order, ANSWER_LIMIT_S)
    except BusUnavailable:
        raise
    except Unavailable as error:
        raise Unavailable(
            f"node {node!r} does not answer (limit {ANSWER_LIMIT_S:g} s)",
            remedy=f"see `standby nodes`; {again}",
            retry_after_s=1.0,
        ) from error


async def answers_of(nodes: Iterable[str], ask: Callable[[str], Awaitable[A]]) -> tuple[list[A], Failures]:
    """Ask each node at the same time; return what was answered, and who did not answer, or refused, and why."""
    asked = list(nodes)
    results = await asyncio.gather(*(ask(node) for node in asked), return_exceptions=True)
    answers: list[A] = []
    failures: Failures = []
    for node, result in zip(asked, results, strict=True):
        if isinstance(result, StandbyError):
            failures.append((node, result))
        elif isinstance(result, BaseException):
            raise result
        else:
            answers.append(result)
    return answers, failures


def failures_view(failures: Iterable[tuple[str, StandbyError]]) -> list[dict[str, str]]:
    """Return the failures as callers see them."""
    return [{"node": node, "code": error.code, "message": error.message, "remedy": error.remedy} for node, error in failures]
