"""Leadership on a clock that only the test moves; the table is a compare-and-set cell in memory."""

from __future__ import annotations

import pytest

from standby.bus.tables import Entry
from standby.controller.leader import LEASE_KEY, Leadership
from standby.domain.access import Lease
from standby.domain.errors import BusUnavailable, LeaseLost, RevisionConflict
from support.clock import Clock


class Cell:
    """One key with revisions; it can refuse to answer, or take a write and lose the receipt."""

    def __init__(self) -> None:
        self.entry: Entry[Lease] | None = None
        self.away = False
        self.lose_receipt = False

    async def get(self, key: str) -> Entry[Lease] | None:
        self._reach()
        return self.entry

    async def create(self, key: str, value: Lease) -> int:
        self._reach()
        if self.entry is not None:
            raise RevisionConflict("exists")
        return self._store(value)

    async def update(self, key: str, value: Lease, revision: int) -> int:
        self._reach()
        if self.entry is None or self.entry.revision != revision:
            raise RevisionConflict("another revision")
        return self._store(value)

    def _reach(self) -> None:
        if self.away:
            raise BusUnavailable("away")

    def _store(self, value: Lease) -> int:
        revision = 1 if self.entry is None else self.entry.revision + 1
        self.entry = Entry(LEASE_KEY, value, revision)
        if self.lose_receipt:
            self.lose_receipt = False
            raise BusUnavailable("no receipt")
        return revision


def candidate(cell: Cell, time: Clock, name: str, **options: object) -> Leadership:
    return Leadership(cell, name, ttl=5.0, clock=time, sleep=time.sleep, **options)  # type: ignore[arg-type]


async def test_the_first_candidate_leads_at_once_with_epoch_one() -> None:
    cell, time = Cell(), Clock()
    leader = candidate(cell, time, "a")
    with pytest.raises(LeaseLost):
        leader.check()
    assert await leader.campaign() == 1
    assert leader.check() == 1
    assert time.now == 100.0


async def test_a_silent_leader_is_replaced_after_ttl_on_the_candidates_own_clock() -> None:
    cell, time = Cell(), Clock()
    first, second = candidate(cell, time, "a"), candidate(cell, time, "b")
    await first.campaign()
    assert await second.campaign() == 2
    assert 105.0 <= time.now <= 105.6
    assert not first.leading, "its own validity had ended before"
    with pytest.raises(LeaseLost):
        first.check()


async def test_a_renewing_leader_is_not_replaced() -> None:
    cell, time = Cell(), Clock()
    first, second = candidate(cell, time, "a"), candidate(cell, time, "b")
    await first.campaign()
    for _ in range(20):
        assert await second.try_acquire() is not None
        time.now += 1.0
        await first._renew()
    assert first.leading


async def test_a_released_lease_is_taken_at_once() -> None:
    cell, time = Cell(), Clock()
    first, second = candidate(cell, time, "a"), candidate(cell, time, "b")
    await first.campaign()
    assert await second.try_acquire() is not None
    await first.release()
    assert not first.leading
    assert await second.try_acquire() is None
    assert second.epoch == 2


async def test_who_lost_its_own_lease_by_silence_leads_again_at_once() -> None:
    """Field case B38: after a long outage of the bus nobody waits for the silence of a leader that is oneself."""
    cell, time = Cell(), Clock()
    leader, other = candidate(cell, time, "a"), candidate(cell, time, "b")
    await leader.campaign()
    cell.away = True
    with pytest.raises(LeaseLost):
        await leader.keep()
    cell.away = False
    came_back = time.now
    assert await other.try_acquire() is not None, "a stranger's silence has to be waited for"
    assert await leader.campaign() == 2
    assert time.now == came_back


async def test_who_cannot_renew_stops_after_ttl() -> None:
    cell, time = Cell(), Clock()
    leader = candidate(cell, time, "a")
    await leader.campaign()
    cell.away = True
    with pytest.raises(LeaseLost, match="limit 5 s without renewal"):
        await leader.keep()
    assert 105.0 <= time.now <= 106.0


async def test_a_renewal_whose_receipt_was_lost_is_still_ours() -> None:
    cell, time = Cell(), Clock()
    leader = candidate(cell, time, "a")
    await leader.campaign()
    time.now = 102.0
    cell.lose_receipt = True
    await leader._renew()
    assert leader.leading
    time.now = 106.9
    assert leader.leading, "valid from the first sending, at 102"
    time.now = 107.1
    assert not leader.leading


async def test_a_lease_taken_by_another_is_lost_at_once() -> None:
    cell, time = Cell(), Clock()
    leader = candidate(cell, time, "a")
    await leader.campaign()
    assert cell.entry is not None
    cell.entry = Entry(LEASE_KEY, Lease(holder="b", epoch=2), cell.entry.revision + 1)
    with pytest.raises(LeaseLost, match="to b with epoch 2"):
        await leader._renew()
    assert not leader.leading


async def test_the_epoch_never_falls_even_when_the_store_was_lost() -> None:
    cell, time = Cell(), Clock()
    leader = candidate(cell, time, "a", epoch_floor=lambda: 41)
    assert await leader.campaign() == 42
