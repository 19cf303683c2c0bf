"""Measured sizes: highest of a life, folded over lives, kept over restarts; and what is needed by them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.domain.model import EngineKind
from standby.domain.prices import Footprint, NodePrices, Transition
from standby.host import tasks
from standby.warm_pool.kept_file import read_kept, write_kept
from standby.warm_pool.ledger import Claim
from standby.warm_pool.measured import MOST_SIZES, Sizes, StoredSizes, folded, grown, needed
from standby.warm_pool.price_book import PriceBook
from standby.warm_pool.price_keeper import PRICES_FILE, SIZES_FILE, PriceKeeper
from standby.warm_pool.price_key import price_key
from standby.warm_pool.reality import Difference, reconcile
from standby.warm_pool.transitions import Observation
from support.builders import an_assignment
from support.waiting import until

AMOUNTS = st.none() | st.integers(0, 10**12)
FOOTPRINTS = st.builds(Footprint, awake=AMOUNTS, asleep=AMOUNTS, peak=AMOUNTS, device_awake=AMOUNTS, device_asleep=AMOUNTS)
MIB = 1024 * 1024


def unasked() -> int:
    raise AssertionError("what is known needs no estimate")


@given(FOOTPRINTS, FOOTPRINTS)
def test_a_look_never_lowers_what_is_held_awake(before: Footprint, seen: Footprint) -> None:
    after = grown(before, seen)
    for name in ("awake", "peak", "device_awake"):
        known = [getattr(one, name) for one in (before, seen) if getattr(one, name) is not None]
        assert getattr(after, name) == max(known, default=None)
    assert after.asleep == (before.asleep if seen.asleep is None else seen.asleep)


def test_one_instance_that_went_astray_is_forgotten_by_and_by() -> None:
    size = Footprint(awake=10_000)
    for _ in range(20):
        size = folded(size, Footprint(awake=1_000))
    assert 1_000 <= size.awake <= 1_010  # type: ignore[operator]
    assert folded(size, Footprint(awake=5_000)).awake == 5_000
    assert folded(size, Footprint(asleep=7)) == size.model_copy(update={"asleep": 7})


def test_the_highest_of_a_life_counts_while_it_lives_and_after() -> None:
    sizes = Sizes()
    for awake in (50, 80, 20):
        sizes.seen("m", "a", Footprint(awake=awake))
    sizes.seen("m", "b", Footprint(asleep=5))
    assert sizes.footprint("m") == Footprint(awake=80, asleep=5)
    before = sizes.revision
    sizes.seen("m", "a", Footprint(awake=70))
    assert sizes.revision == before, "nothing new"
    sizes.ended("a")
    sizes.ended("nobody")
    assert sizes.footprint("m") == Footprint(awake=80, asleep=5)
    assert Sizes.of(sizes.stored()).footprint("m") == Footprint(awake=80, asleep=5)


def test_options_that_change_while_it_lives_begin_a_new_size() -> None:
    sizes = Sizes()
    sizes.seen("m-1", "a", Footprint(awake=80))
    sizes.seen("m-2", "a", Footprint(awake=20))
    assert (sizes.footprint("m-1").awake, sizes.footprint("m-2").awake) == (80, 20)


def test_only_the_newest_sizes_are_kept() -> None:
    sizes = Sizes()
    for number in range(MOST_SIZES + 5):
        sizes.seen(f"m{number}", "a", Footprint(awake=1))
        sizes.ended("a")
    assert (len(sizes.kept), sizes.footprint("m0"), sizes.footprint(f"m{MOST_SIZES + 4}").awake) == (MOST_SIZES, Footprint(), 1)


# ---- what is needed -------------------------------------------------------------------------------------------------


def test_the_configured_size_is_the_need() -> None:
    assert needed(an_assignment(memory_mb=3), Footprint(awake=9 * MIB), unasked, ()) == Claim(3 * MIB)


def test_else_the_measured_peak_with_a_margin_is() -> None:
    assert needed(an_assignment(), Footprint(awake=100, peak=200), unasked, ()) == Claim(220)
    assert needed(an_assignment(), Footprint(awake=200), unasked, ()) == Claim(220)


def test_else_the_estimate_is() -> None:
    assert needed(an_assignment(), Footprint(asleep=5), lambda: 70, ()) == Claim(70)


def test_devices_share_what_was_measured_or_estimated() -> None:
    size = Footprint(awake=100, device_awake=1000)
    assert needed(an_assignment(), size, unasked, ("g0", "g1")) == Claim(110, {"g0": 515, "g1": 515})
    assert needed(an_assignment(memory_mb=1), Footprint(), lambda: 9, ("g0", "g1")) == Claim(MIB, {"g0": 5, "g1": 5})


# ---- the ledger against reality -------------------------------------------------------------------------------------


def test_a_claim_without_a_process_is_a_difference() -> None:
    (found,) = reconcile({"a": Claim(60), "b": Claim(60)}, {}, alive={"b"})
    assert found == Difference("a", "host", 60, 0, "a has no process and holds a claim on host memory")


def test_what_holds_more_than_was_promised_is_a_difference() -> None:
    claims = {"a": Claim(60, {"g0": 10})}
    found = reconcile(claims, {"a": Claim(65, {"g0": 40})}, alive={"a"}, tolerance=5)
    assert [(one.resource, one.claimed, one.measured) for one in found] == [(["device", "g0"][1], 10, 40)]
    (forgotten,) = reconcile({}, {"b": Claim(50)}, alive={"b"}, tolerance=5)
    assert forgotten.reason == "b holds 50 bytes of host memory, 0 are promised to it"


@given(st.dictionaries(st.sampled_from("abc"), st.builds(Claim, st.integers(0, 100))))
def test_a_ledger_that_promises_what_is_held_has_no_difference(claims: dict[str, Claim]) -> None:
    assert reconcile(claims, claims, alive=claims) == ()


# ---- kept over restarts ---------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_understood_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / SIZES_FILE
    for broken in (b'{"footprints": {"m": {"awa', b'{"footprints": 3}', b"\xff\x00"):
        path.write_bytes(broken)
        with caplog.at_level(logging.WARNING):
            assert read_kept(path, StoredSizes) == StoredSizes()
        assert (tmp_path / f"{SIZES_FILE}.corrupt").read_bytes() == broken
        assert not path.exists()
    assert "cannot be understood and is set aside as measured.json.corrupt" in caplog.text


def test_a_place_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_kept(tmp_path / "missing" / "file.json", StoredSizes())
    assert "cannot be written" in caplog.text
    (tmp_path / "folder.json").mkdir()
    assert read_kept(tmp_path / "folder.json", PriceBook) == PriceBook()
    assert "cannot be read" in caplog.text


async def test_what_is_measured_is_announced_soon_and_once(tmp_path: Path) -> None:
    told: list[NodePrices] = []
    keeper = PriceKeeper("n1", tmp_path, lambda: 5.0, told.append)
    running = asyncio.create_task(keeper.run())
    for seconds in (1.0, 2.0, 3.0):
        keeper.observed(an_assignment(), Observation(Transition.START, seconds))
    await until((tmp_path / SIZES_FILE).exists)
    await tasks.end([running])
    ((price,),) = (model.transitions.values() for record in told for model in record.models.values())
    assert price.samples == 3


async def test_a_look_that_says_nothing_new_writes_nothing(tmp_path: Path) -> None:
    keeper = PriceKeeper("n1", tmp_path, lambda: 5.0, lambda _record: None)
    running = asyncio.create_task(keeper.run())
    key = price_key(an_assignment()).text
    keeper.sizes.seen(key, "a", Footprint(awake=80))
    keeper.sized()
    await until((tmp_path / SIZES_FILE).exists)
    await tasks.end([running])
    keeper.sizes.seen(key, "a", Footprint(awake=70))
    keeper.sized()
    assert not keeper._changed.is_set()
    keeper.sizes.seen(key, "a", Footprint(awake=90))
    keeper.sized()
    assert keeper._changed.is_set()


async def test_a_restarted_agent_knows_prices_and_sizes(tmp_path: Path) -> None:
    told: list[NodePrices] = []
    first = PriceKeeper("n1", tmp_path, lambda: 5.0, told.append)
    first.load()
    assignment = an_assignment()
    first.observed(assignment, Observation(Transition.START, 2.0))
    first.hatched(EngineKind.VLLM, 6.0)
    first.sizes.seen(price_key(assignment).text, "a", Footprint(awake=80))
    await first.flush()

    second = PriceKeeper("n1", tmp_path, lambda: 6.0, told.append)
    second.load()

    assert second.book == first.book
    key = price_key(assignment).text
    assert second.sizes.footprint(key) == Footprint(awake=80)
    assert (told[-1].models[key].footprint.awake, told[-1].hatch[EngineKind.VLLM].seconds) == (80, 6.0)
    assert {path.name for path in tmp_path.iterdir()} == {PRICES_FILE, SIZES_FILE}
    assert (tmp_path / PRICES_FILE).stat().st_mode & 0o777 == 0o600
