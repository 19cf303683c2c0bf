"""Pages and the tokens between them."""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from standby.sagemaker.errors import AwsError
from standby.sagemaker.shapes.paging import Listing, Page, Pager, Place

PAGER = Pager(b"pepper")
MINE = Listing("111122223333", "ListEndpoints", {"SortBy": "CreationTime", "MaxResults": 10})

Item = tuple[float, str]


def place(item: Item) -> Place:
    return item


def items(count: int) -> list[Item]:
    """Return items of which every three were made at the same moment."""
    return [(float(number // 3), f"e{number:03}") for number in range(count)]


def all_pages(given: list[Item], *, size: int, descending: bool = False) -> list[list[Item]]:
    pages = []
    token = None
    while True:
        page = PAGER.page(MINE, given, place=place, size=size, descending=descending, token=token)
        pages.append(page.items)
        token = page.next_token
        if token is None:
            return pages


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 10, 25, 26])
def test_all_items_come_once_and_in_order(size: int, descending: bool) -> None:
    pages = all_pages(items(25)[::-1], size=size, descending=descending)
    assert [item for page in pages for item in page] == sorted(items(25), reverse=descending)
    assert all(len(page) == size for page in pages[:-1])
    assert len(pages) == -(-25 // size)


def test_nothing_is_one_empty_page() -> None:
    assert PAGER.page(MINE, [], place=place, size=10) == Page([], None)


def test_items_that_go_and_come_between_two_pages_hide_no_other() -> None:
    first = PAGER.page(MINE, items(10), place=place, size=4)
    changed = [item for item in items(10) if item not in first.items] + [(-1.0, "new")]
    second = PAGER.page(MINE, changed, place=place, size=10, token=first.next_token)
    assert second.items == items(10)[4:]


def test_any_gateway_of_the_deployment_continues_a_list_with_another_page_size() -> None:
    token = PAGER.page(MINE, items(9), place=place, size=3).next_token
    other = Listing(MINE.tenant, MINE.operation, {**MINE.request, "MaxResults": 2, "NextToken": token})
    assert Pager(b"pepper").page(other, items(9), place=place, size=2, token=token).items == items(9)[3:5]


@pytest.mark.parametrize(
    "foreign",
    [
        Listing("444455556666", MINE.operation, MINE.request),
        Listing(MINE.tenant, "ListModels", MINE.request),
        Listing(MINE.tenant, MINE.operation, {**MINE.request, "NameContains": "x"}),
    ],
)
def test_a_token_is_of_one_list_only(foreign: Listing) -> None:
    token = PAGER.page(MINE, items(9), place=place, size=3).next_token
    for pager, listing in ((PAGER, foreign), (Pager(b"other"), MINE)):
        with pytest.raises(AwsError, match="Invalid pagination token") as caught:
            pager.page(listing, items(9), place=place, size=3, token=token)
        assert caught.value.code == "ValidationException"


def test_a_changed_token_is_refused_at_every_byte() -> None:
    token = PAGER.page(MINE, items(9), place=place, size=3).next_token
    assert token is not None
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for at in range(len(raw)):
        changed = bytes([*raw[:at], raw[at] ^ 1, *raw[at + 1 :]])
        refused(base64.urlsafe_b64encode(changed).decode().rstrip("="))


@pytest.mark.parametrize("token", ["", "a", "é", "AAAA", "\x00", "=" * 8, "a" * 8192])
def test_no_text_is_taken_for_a_token(token: str) -> None:
    refused(token)


def refused(token: str) -> None:
    with pytest.raises(AwsError, match="Invalid pagination token"):
        PAGER.page(MINE, items(9), place=place, size=3, token=token)


def test_filters_may_hold_times() -> None:
    request: Mapping[str, Any] = {"CreationTimeAfter": datetime(2026, 1, 1, tzinfo=UTC)}
    listing = Listing("111122223333", "ListModels", request)
    assert PAGER.page(listing, items(3), place=place, size=2).next_token is not None
