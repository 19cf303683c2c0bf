"""When a zygote is replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from standby.warm_pool.zygote_rules import Fate, ZygoteFacts, ZygoteLimits, back_off_s, judge

pytestmark = pytest.mark.decision

GOOD = ZygoteFacts(
    failure="", age_s=10, resident=700 * 2**20, resident_at_start=650 * 2**20, forks=3, version="0.32", installed="0.32"
)


def test_a_good_one_is_kept() -> None:
    assert judge(GOOD, ZygoteLimits()).fate is Fate.KEEP
    assert judge(replace(GOOD, forks=10**6), ZygoteLimits()).fate is Fate.KEEP


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"failure": "zygote ended: exit code 1"}, "zygote ended: exit code 1"),
        ({"installed": "0.33"}, "0.33 is installed, it has imported 0.32"),
        ({"resident": 976 * 2**20}, "it has grown to 976 MiB from 650 MiB, the limit is 1.5 times"),
        ({"age_s": 86401}, "it is 86401 s old, the limit is 86400 s"),
        ({"forks": 50}, "it has forked 50 times, the limit is 50"),
    ],
)
def test_each_fault_replaces_it_and_is_named(change: dict[str, Any], reason: str) -> None:
    verdict = judge(replace(GOOD, **change), ZygoteLimits(max_forks=50))
    assert (verdict.fate, verdict.reason) == (Fate.REPLACE, reason)


@pytest.mark.parametrize("change", [{"version": ""}, {"installed": ""}])
def test_an_unknown_version_proves_nothing(change: dict[str, Any]) -> None:
    assert judge(replace(GOOD, **change), ZygoteLimits()).fate is Fate.KEEP


def test_the_wait_after_failures_doubles_up_to_a_minute() -> None:
    assert [back_off_s(failures) for failures in (1, 2, 3, 6, 7, 8, 10**6)] == [1, 2, 4, 32, 60, 60, 60]
