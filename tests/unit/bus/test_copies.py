"""The wait until a copy shows what was written, and what records in copies cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from standby.bus.copies import visible
from standby.bus.tables import Entry
from standby.domain.access import Lease
from standby.domain.endpoint import ScalePolicy, Variant


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


def test_equal_policies_are_one_object() -> None:
    written = Variant(model="m", policy=ScalePolicy(slots=7)).model_dump_json()
    one, two = Variant.model_validate_json(written), Variant.model_validate_json(written)
    assert one.policy is two.policy
    assert one.policy != Variant(model="m").policy
