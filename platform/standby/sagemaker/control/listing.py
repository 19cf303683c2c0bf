"""Lists: filtered, sorted and paged alike for every kind."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from standby.sagemaker.control.context import ControlCall, Request
from standby.sagemaker.shapes.paging import Listing, Place

DEFAULT_SIZE: Final = 10


class Listed(NamedTuple):
    """What a list can be sorted and filtered by; times in seconds since the epoch."""

    name: str
    created_at: float
    modified_at: float
    status: str = ""


def listed_page(
    call: ControlCall, operation: str, request: Request, items: Iterable[Listed]
) -> tuple[list[Listed], dict[str, Any]]:
    """Return one page of ``items`` and, where there is another one, the member ``NextToken``.

    Newest first unless the request says otherwise. The token names a place, so what is created or deleted meanwhile neither
    repeats nor hides anything else. Raises AwsError for a token of another list.
    """
    page = call.context.pager.page(
        Listing(call.tenant, operation, request),
        _filtered(request, items),
        place=_PLACES[request.get("SortBy", "CreationTime")],
        size=int(request.get("MaxResults", DEFAULT_SIZE)),
        descending=request.get("SortOrder", "Descending") == "Descending",
        token=request.get("NextToken"),
    )
    return page.items, {} if page.next_token is None else {"NextToken": page.next_token}


def _filtered(request: Request, items: Iterable[Listed]) -> Iterable[Listed]:
    """Yield what passes every filter of the request; times are compared strictly, names by their letters."""
    part = str(request.get("NameContains") or "").lower()
    status: str | None = request.get("StatusEquals")
    created, modified = _between(request, "CreationTime"), _between(request, "LastModifiedTime")
    return (
        item
        for item in items
        if part in item.name.lower()
        and status in (None, item.status)
        and created[0] < item.created_at < created[1]
        and modified[0] < item.modified_at < modified[1]
    )


def _between(request: Request, moment: str) -> tuple[float, float]:
    after, before = (_seconds(request, f"{moment}{side}") for side in ("After", "Before"))
    return -math.inf if after is None else after, math.inf if before is None else before


def _seconds(request: Request, member: str) -> float | None:
    moment = request.get(member)
    if moment is None:
        return None
    if isinstance(moment, datetime):
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    return float(moment)


def _by_name(item: Listed) -> Place:
    return (item.name, item.name)


def _by_creation(item: Listed) -> Place:
    return (item.created_at, item.name)


def _by_status(item: Listed) -> Place:
    return (item.status, item.name)


_PLACES: Final = {"Name": _by_name, "CreationTime": _by_creation, "Status": _by_status}
