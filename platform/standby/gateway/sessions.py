"""Sticky sessions: the id itself says which instance it belongs to and until when, so that any gateway can read it. Pure.

Nothing is kept for a session, so that there is no table to bound or to share. The id is no secret and grants nothing: it
only prefers one instance of an endpoint that the caller may use anyway.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

NEW_SESSION: Final = "NEW_SESSION"
LIFETIME_S: Final = 3600.0

# SageMaker's rule for ids is letters, digits and inner hyphens, at most 256; instances' names have others, too.
_ID: Final = re.compile(r"[0-9a-f]{16}-([0-9a-f]{1,12})-((?:[0-9a-f]{2}){1,110})")


class Session(NamedTuple):
    """A session that a caller names: ``expires_at`` in seconds since the epoch."""

    instance: str
    expires_at: float


def new_id(token: str, instance: str, expires_at: float) -> str:
    """Return the id of a new session; ``token`` (16 hex digits) tells it from all others."""
    return f"{token}-{int(expires_at):x}-{instance.encode().hex()}"


def read(session: str, now: float) -> Session | None:
    """Return what an id says; None for a new session, for an expired one and for an id that no gateway has made."""
    found = _ID.fullmatch(session)
    if found is None or int(found[1], 16) <= now:
        return None
    return Session(bytes.fromhex(found[2]).decode(errors="replace"), float(int(found[1], 16)))


def told(session: str) -> str:
    """Return ``id; Expires=…`` as callers are told of a session that ``new_id`` has made."""
    found = _ID.fullmatch(session)
    assert found is not None, session
    until = datetime.fromtimestamp(int(found[1], 16), UTC)
    return f"{session}; Expires={until:%Y-%m-%dT%H:%M:%SZ}"


def instance_of(session: str, now: float) -> str | None:
    """Return the instance that a session belongs to; None for a new one and for one that has ended."""
    found = read(session, now)
    return None if found is None else found.instance
