"""Pages of a list and the tokens between them: opaque, signed, bound to tenant, operation and filters.

A token names the place of the last item that was shown, not a number of items: what is made or deleted between two pages
neither repeats nor hides another item.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import heapq
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from standby.sagemaker.errors import validation

T = TypeVar("T")

# What an item is sorted by, then its name, so that no two items share a place.
Place = tuple[float | str, str]

_MAC_BYTES: Final = 16
_UNBOUND: Final = frozenset({"NextToken", "MaxResults", "MaxRecords"})


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page in order; ``next_token`` is None on the last one."""

    items: list[T]
    next_token: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """Whose list of what: tokens of one are not valid for another. ``request`` as the operation got it."""

    tenant: str
    operation: str
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pager:
    """Makes pages; every gateway of a deployment has the same ``pepper``, so that any of them continues a list."""

    pepper: bytes = field(repr=False)

    def page(
        self,
        listing: Listing,
        items: Iterable[T],
        *,
        place: Callable[[T], Place],
        size: int,
        descending: bool = False,
        token: str | None = None,
    ) -> Page[T]:
        """Return up to ``size`` items after the token's place. Raises AwsError ValidationException for a foreign token."""
        if token is not None:
            after = self._open(listing, token)
            items = _beyond(items, place, after, descending=descending)
        choose = heapq.nlargest if descending else heapq.nsmallest
        chosen = choose(size + 1, items, key=place)
        if len(chosen) <= size:
            return Page(chosen, None)
        shown = chosen[:size]
        return Page(shown, self._seal(listing, place(shown[-1])))

    def _seal(self, listing: Listing, place: Place) -> str:
        body = json.dumps(place, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._mac(listing, body) + body).decode().rstrip("=")

    def _open(self, listing: Listing, token: str) -> Place:
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _invalid() from None
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(listing, body)):
            raise _invalid()
        value, name = json.loads(body)
        return (value, name)

    def _mac(self, listing: Listing, body: bytes) -> bytes:
        filters = {name: value for name, value in listing.request.items() if name not in _UNBOUND}
        bound = json.dumps([listing.tenant, listing.operation, filters], sort_keys=True, default=str).encode()
        digest = hmac.new(self.pepper, b"standby-page-token\0", hashlib.sha256)
        digest.update(len(bound).to_bytes(8, "big") + bound + body)
        return digest.digest()[:_MAC_BYTES]


def _beyond(items: Iterable[T], place: Callable[[T], Place], after: Place, *, descending: bool) -> Iterable[T]:
    if descending:
        return (item for item in items if place(item) < after)
    return (item for item in items if place(item) > after)


def _invalid() -> Exception:
    return validation("Invalid pagination token: it is not of this list, or it was changed")
