"""What a key may hand on: no right that it has not itself, no more urgent and no longer lasting than itself. Pure."""

from __future__ import annotations

from typing import Final

from standby.domain.access import ApiKey, Scope
from standby.domain.errors import Forbidden, InvalidInput
from standby.domain.priority import Priority

MAX_SESSION_S: Final = 12 * 3600.0


def check_scopes(maker: ApiKey, scopes: tuple[Scope, ...]) -> tuple[Scope, ...]:
    """Return the scopes, each once. Raises InvalidInput where there are none, Forbidden for one that the maker lacks."""
    if not scopes:
        raise InvalidInput("a key needs a scope", remedy=f"choose from {', '.join(scope.value for scope in Scope)}")
    lacking = [scope.value for scope in scopes if scope not in maker.scopes]
    if lacking:
        raise Forbidden(f"this key has not the scope {lacking[0]} itself", remedy="make the key with one that has it")
    return tuple(dict.fromkeys(scopes))


def priority_for(maker: ApiKey, wanted: Priority | None) -> Priority | None:
    """Return the priority of a new key; None: it has none of its own. What the maker is bound to binds it as well.

    Raises Forbidden for one that is more urgent than the maker's.
    """
    if maker.priority is None or wanted is None:
        return wanted if maker.priority is None else maker.priority
    if wanted.rank < maker.priority.rank:
        raise Forbidden(
            f"priority {wanted.value} is more urgent than this key's own, {maker.priority.value}",
            remedy=f"choose {maker.priority.value} or a less urgent one, or make the key with one that may",
        )
    return wanted


def expiry(maker: ApiKey, expires_in_s: float | None, now: float, *, session_since: float | None = None) -> float | None:
    """Return when a key ends, in seconds since the epoch; None: never.

    ``session_since`` is when a session's key was made: those end after 12 h at most. Raises InvalidInput beyond that, and
    Forbidden where the maker ends earlier.
    """
    ends = None if expires_in_s is None else now + expires_in_s
    if session_since is not None and (ends is None or ends > session_since + MAX_SESSION_S):
        raise InvalidInput(
            f"a session's key cannot last longer than {MAX_SESSION_S:.0f} s", remedy="ask for less, or make a standing key"
        )
    if maker.expires_at is not None and (ends is None or ends > maker.expires_at):
        raise Forbidden(
            "this key ends earlier than the one that it makes", remedy="give a shorter time, or use a key that lasts longer"
        )
    return ends
