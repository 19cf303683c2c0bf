"""Leadership by one key of the ``leases`` table: taken by compare-and-set, kept by renewing, fenced by an epoch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from standby.bus.tables import Entry
from standby.domain.access import Lease
from standby.domain.errors import BusUnavailable, LeaseLost, RevisionConflict

log = logging.getLogger(__name__)

LEASE_KEY: Final = "controller"
NOBODY: Final = ""
_RETRY_S: Final = 0.25


class LeaseTable(Protocol):
    """What leadership needs of ``standby.bus.Table[Lease]``."""

    async def get(self, key: str) -> Entry[Lease] | None:
        """Read the lease."""

    async def create(self, key: str, value: Lease) -> int:
        """Write the first lease; RevisionConflict when there is one."""

    async def update(self, key: str, value: Lease, revision: int) -> int:
        """Write it if it is at ``revision``; RevisionConflict otherwise."""


@dataclass(frozen=True, slots=True)
class _Sighting:
    """Somebody's lease as it was last seen to change, on our own clock."""

    lease: Lease
    at: float


class Leadership:
    """One candidate; ``epoch_floor`` returns the highest epoch that is known to have been used.

    The holder renews every ``ttl / 3`` and may write for ``ttl`` seconds after the *sending* of its last successful renewal;
    a candidate takes over when it has seen no change for ``ttl`` seconds. What the candidate saw was sent before, so
    the two never overlap as long as both clocks run at the same rate; whatever still slips through is refused by revision
    and by epoch. Never decided by reading the lease alone: a partitioned server answers reads from the past.
    """

    def __init__(
        self,
        table: LeaseTable,
        holder: str,
        *,
        ttl: float = 5.0,
        epoch_floor: Callable[[], int] = int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.holder = holder
        self.ttl = ttl
        self.epoch = 0
        self._table = table
        self._epoch_floor = epoch_floor
        self._clock = clock
        self._sleep = sleep
        self._sighting: _Sighting | None = None
        self._lease: Lease | None = None
        self._revision = 0
        self._valid_until = 0.0

    @property
    def leading(self) -> bool:
        """Whether this candidate may write now."""
        return self._lease is not None and self._clock() < self._valid_until

    def check(self) -> int:
        """Return the epoch to write with. Raises LeaseLost when this candidate may not write (any more)."""
        if not self.leading:
            raise LeaseLost(
                f"controller {self.holder} does not hold the lease (epoch {self.epoch}, limit {self.ttl:g} s without renewal)",
                remedy="the new leader decides; this one writes nothing",
            )
        return self.epoch

    async def campaign(self) -> int:
        """Return the epoch when this candidate has become the leader; waits for as long as that takes."""
        while True:
            try:
                wait = await self.try_acquire()
            except BusUnavailable as error:
                log.debug("no lease while the bus is away: %s", error)
                wait = _RETRY_S
            if wait is None:
                log.info("controller %s leads with epoch %d", self.holder, self.epoch)
                return self.epoch
            await self._sleep(wait)

    async def try_acquire(self) -> float | None:
        """Try once. Return None when this candidate leads now, else the seconds after which to look again."""
        asked_at = self._clock()
        entry = await self._table.get(LEASE_KEY)
        if entry is not None and entry.value.holder != NOBODY and not self._is_own(entry.value):
            wait = self._still_held(entry.value, asked_at)
            if wait > 0:
                return wait
        # after a lost store the lease is gone too, and an epoch below one already used would fence its own holder
        known = max(self.epoch, self._epoch_floor(), 0 if entry is None else entry.value.epoch)
        lease = Lease(holder=self.holder, epoch=known + 1)
        sent_at = self._clock()
        try:
            if entry is None:
                revision = await self._table.create(LEASE_KEY, lease)
            else:
                revision = await self._table.update(LEASE_KEY, lease, entry.revision)
        except RevisionConflict:
            return _RETRY_S
        self._hold(lease, revision, sent_at)
        self.epoch = lease.epoch
        return None

    async def keep(self) -> None:
        """Renew until that fails for good, then raise LeaseLost; from then on ``check`` refuses."""
        while True:
            await self._sleep(self.ttl / 3)
            await self._renew()

    async def release(self) -> None:
        """Give the lease back, so that a successor need not wait; best effort, never raises."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        with contextlib.suppress(RevisionConflict, BusUnavailable):
            freed = lease.model_copy(update={"holder": NOBODY, "beat": lease.beat + 1})
            await self._table.update(LEASE_KEY, freed, self._revision)
            log.info("controller %s gave its lease back (epoch %d)", self.holder, lease.epoch)

    def _is_own(self, lease: Lease) -> bool:
        """Tell the lease that this candidate held itself: nobody else renews it, so its silence need not be waited for.

        After the bus was away for longer than ``ttl`` that wait would keep every endpoint at zero (field case B38). Each
        epoch is taken once, by compare-and-set, so holder and epoch together name one term of one process.
        """
        return (lease.holder, lease.epoch) == (self.holder, self.epoch)

    def _still_held(self, lease: Lease, now: float) -> float:
        """Return how long to wait for the holder's silence to count; zero when it has been silent for ``ttl``."""
        if self._sighting is None or self._sighting.lease != lease:
            self._sighting = _Sighting(lease, now)
        silent = now - self._sighting.at
        # look often enough to notice a lease that was given back long before it would have run out
        return 0.0 if silent >= self.ttl else min(self.ttl - silent, self.ttl / 10)

    def _hold(self, lease: Lease, revision: int, sent_at: float) -> None:
        self._lease = lease
        self._revision = revision
        self._valid_until = sent_at + self.ttl
        self._sighting = None

    async def _renew(self) -> None:
        first_sent_at = self._clock()
        while True:
            self.check()
            assert self._lease is not None
            lease = self._lease.model_copy(update={"beat": self._lease.beat + 1})
            sent_at = self._clock()
            try:
                self._hold(lease, await self._table.update(LEASE_KEY, lease, self._revision), sent_at)
                return
            except RevisionConflict:
                if await self._was_ours(first_sent_at):
                    return
            except BusUnavailable as error:
                log.warning("controller %s could not renew its lease: %s", self.holder, error)
            await self._sleep(min(_RETRY_S, self.ttl / 10))

    async def _was_ours(self, sent_at: float) -> bool:
        """Tell a renewal whose receipt was lost from a lease that somebody else has taken (raises LeaseLost)."""
        try:
            entry = await self._table.get(LEASE_KEY)
        except BusUnavailable:
            return False
        if entry is not None and (entry.value.holder, entry.value.epoch) == (self.holder, self.epoch):
            self._hold(entry.value, entry.revision, sent_at)
            return True
        self._lease = None
        taker = "nobody" if entry is None else f"{entry.value.holder} with epoch {entry.value.epoch}"
        raise LeaseLost(
            f"controller {self.holder} lost its lease (epoch {self.epoch}) to {taker}",
            remedy="the new leader decides; this one writes nothing",
        )
