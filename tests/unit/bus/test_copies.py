"""The wait until a copy shows what was written, and what records in copies cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from standby.bus.copies import updated, visible
from standby.bus.tables import Entry, Table
from standby.domain.access import Lease
from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.errors import RevisionConflict


@dataclass
class Held:
    """A copy that the test changes by itself."""

    entries: Mapping[str, Entry[Lease]] = field(default_factory=dict)

    def staleness(self, _now: float) -> float:
        return 0.0


def held(revision: int) -> Held:
    return Held({"k": Entry("k", Lease(holder="a", epoch=1), revision)})


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Whoever sleeps has not seen what is there."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return slept


async def test_what_is_shown_already_is_not_waited_for(no_sleep: list[float]) -> None:
    """Also where somebody has removed the record since: that revision will never be shown."""
    await visible(held(5), "k", 5)
    await visible(held(6), "k", 5)
    await visible(Held(), "k", None)
    await visible(Held(), "k", 5, was_there=True)
    assert no_sleep == []


@pytest.mark.parametrize(
    ("copy", "revision", "was_there"), [(held(4), 5, True), (held(4), 5, False), (Held(), 5, False), (held(4), None, False)]
)
async def test_what_is_not_shown_yet_is_waited_for_a_second(
    no_sleep: list[float], copy: Held, revision: int | None, was_there: bool
) -> None:
    await visible(copy, "k", revision, was_there=was_there)
    assert sum(no_sleep) == pytest.approx(1.0, abs=0.01)


@dataclass
class Written:
    """A table whose record stands at ``revision``; ``then`` happens with each write, before anybody waits for it."""

    copy: Held
    revision: int
    then: Held

    async def update(self, key: str, _value: Lease, revision: int) -> int:
        if revision != self.revision:
            raise RevisionConflict(f"{key} is at revision {self.revision}, not {revision}")
        self.copy.entries = self.then.entries
        return revision + 1


@pytest.mark.parametrize("then", [held(5), held(6), Held()])
async def test_a_change_that_the_copy_shows_or_that_was_removed_at_once_is_not_waited_for(
    no_sleep: list[float], then: Held
) -> None:
    """The controller may remove the record of a deleted endpoint before the gateway's copy shows that it was to go."""
    copy, entry = held(4), held(4).entries["k"]
    assert await updated(copy, cast("Table[Any]", Written(copy, 4, then)), entry, entry.value)
    assert no_sleep == []


async def test_a_change_of_a_record_that_somebody_else_changed_is_none(no_sleep: list[float]) -> None:
    copy, entry = held(4), held(4).entries["k"]
    assert not await updated(copy, cast("Table[Any]", Written(copy, 5, held(9))), entry, entry.value)
    assert (copy.entries["k"].revision, no_sleep) == (4, [])


def test_equal_policies_are_one_object() -> None:
    written = Variant(model="m", policy=ScalePolicy(slots=7)).model_dump_json()
    one, two = Variant.model_validate_json(written), Variant.model_validate_json(written)
    assert one.policy is two.policy
    assert one.policy != Variant(model="m").policy
