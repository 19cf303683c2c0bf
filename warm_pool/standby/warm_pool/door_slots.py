"""Who may pass the door: one gate per instance, with its epoch, its slots and everything that is in flight.

| gate | `fence` | `DoorSlots.open` with a higher epoch | `DoorSlots.remove` |
|---|---|---|---|
| OPEN | FENCED | same engine: OPEN; another engine: emptied, a new gate | FENCED and emptied, forgotten |
| FENCED | FENCED | same engine: OPEN; another engine: emptied, a new gate | emptied, forgotten |

What is in flight at the same engine (the same socket) goes on: a drain that is called off cuts nothing off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from standby.domain.errors import Conflict
from standby.warm_pool.door_load import SERVER_ERROR, DoorLoad, Pulse
from standby.wire.headers import Refusal
from standby.wire.pool import Address, ConnectionPool


class GateState(Enum):
    """Whether new requests may pass."""

    OPEN = "open"
    FENCED = "fenced"


# Each request asks for it: up to Python 3.11 an enum's member takes ten times as long to look up as a name of the module.
_FENCED: Final = GateState.FENCED


@dataclass(slots=True)
class DoorResults:
    """How requests at one door have ended, of all its gates. ``refused`` never got a slot; of ``ended``, who is neither served
    nor failed was cut off: its caller left, or the node ended it."""

    ended: int = 0
    served: int = 0
    failed: int = 0
    refused: int = 0

    @property
    def cut_off(self) -> int:
        """Requests that were ended from outside."""
        return self.ended - self.served - self.failed


class InFlight(Protocol):
    """What a gate needs to know of a request that holds one of its slots."""

    def abort(self, reason: str) -> None:
        """End the request now, saying why to its caller."""

    def check(self, now: float) -> None:
        """End the request if it has been quiet for too long; ``now`` is the loop's clock."""


class Gate:
    """One instance at one epoch. A slot is membership in ``_in_flight``, so it cannot be given back twice or forgotten."""

    def __init__(
        self,
        instance: str,
        *,
        epoch: int,
        slots: int,
        address: Address,
        on_change: Callable[[str], None],
        results: DoorResults,
    ) -> None:
        self.instance = instance
        self.epoch = epoch
        self.slots = slots
        self.address = address
        self.state = GateState.OPEN
        self.pool = ConnectionPool(address, reuse_chunked=False)
        self._epoch_header = str(epoch).encode()
        self._on_change = on_change
        self._results = results
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._in_flight: set[InFlight] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        self._last_end: float | None = None
        self._served = 0
        self._failures = 0
        self._died_with = 0
        self.pulse = Pulse()

    def reopen(self, *, epoch: int, slots: int) -> None:
        """Let requests of a higher epoch pass to the same engine; what is in flight goes on."""
        self.pool.close()
        self.pool = ConnectionPool(self.address, reuse_chunked=False)
        self.epoch, self.slots, self.state = epoch, slots, GateState.OPEN
        self._epoch_header = str(epoch).encode()
        self._died_with = 0
        self.pulse.forget()

    def refusal(self, epoch: bytes) -> Refusal | None:
        """Return why a request that names ``epoch`` may not pass now, or None."""
        if epoch != self._epoch_header:
            return Refusal.STALE_EPOCH
        if self.state is _FENCED:
            return Refusal.DRAINING
        if len(self._in_flight) >= self.slots:
            return Refusal.FULL
        return None

    def take(self, request: InFlight, now: float) -> None:
        """Give the request a slot; ``refusal`` has just said that there is one."""
        if self._busy_since is None:
            self._busy_since = now
        self._in_flight.add(request)
        self.pulse.asked(now)

    def give_back(self, request: InFlight, *, now: float, status: int, served: bool, engine_failed: bool) -> None:
        """Take the slot back, in whatever way the request ended; a second call for the same request does nothing.

        ``status`` is the engine's, of an answer whose bytes have passed since the last check; 0: none.
        """
        if request not in self._in_flight:
            return
        self._in_flight.remove(request)
        self._last_end = now
        self._served += served
        self._failures += engine_failed
        results = self._results
        results.ended += 1
        results.served += served
        results.failed += engine_failed
        if served:
            self._died_with = 0
        if served or 0 < status < SERVER_ERROR:
            self.pulse.answered(now, status, busy=self.busy)
        if not self._in_flight:
            if self._busy_since is not None:
                self._busy_s += now - self._busy_since
                self._busy_since = None
            self._tell_waiters()
        if not self._in_flight or engine_failed:
            self._on_change(self.instance)

    def dying(self) -> int:
        """Return how many requests of all gateways were in flight at the engine's end; call it before their slots go back.

        They learn of it one after the other: the first one saw them all.
        """
        self._died_with = max(self._died_with, len(self._in_flight))
        return self._died_with

    def fence(self) -> None:
        """Let nothing new pass; idle connections to the engine are closed, those in use live until their answer ends."""
        self.state = GateState.FENCED
        self.pool.close()

    def empty(self, reason: str) -> int:
        """Abort everything in flight and return how many that were."""
        requests = tuple(self._in_flight)
        for request in requests:
            request.abort(reason)
        return len(requests)

    async def drained(self, limit_s: float) -> bool:
        """Wait until nothing is in flight; False when that took longer than ``limit_s``."""
        if not self._in_flight:
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(limit_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    @property
    def busy(self) -> bool:
        """True while something is in flight."""
        return bool(self._in_flight)

    @property
    def load(self) -> DoorLoad:
        """What passes through now."""
        pulse = self.pulse
        return DoorLoad(
            in_flight=len(self._in_flight),
            last_end=self._last_end,
            served=self._served,
            failures=self._failures,
            last_progress=pulse.last_progress,
            waiting_since=pulse.waiting_since,
            unavailable=pulse.unavailable,
            unavailable_since=pulse.unavailable_since,
            unavailable_at=pulse.unavailable_at,
            errors=pulse.errors,
            errors_since=pulse.errors_since,
            errors_at=pulse.errors_at,
            refused=pulse.refused,
            busy_s=self._busy_s,
            busy_since=self._busy_since,
        )

    def check(self, now: float) -> None:
        """End the requests that have been quiet for too long."""
        for request in tuple(self._in_flight):
            request.check(now)

    def _tell_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class DoorSlots:
    """The gates of one door, by instance; also those replaced ones that still have something in flight."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self.results = DoorResults()
        self._on_change = on_change
        self._gates: dict[str, Gate] = {}
        self._by_header: dict[bytes, Gate] = {}

    def open(self, instance: str, *, epoch: int, slots: int, address: Address) -> None:
        """Open the gate of an instance. Raises Conflict unless the epoch is higher than the one it replaces."""
        before = self._gates.get(instance)
        if before is not None:
            if epoch <= before.epoch:
                raise Conflict(
                    f"door of instance {instance} cannot open at epoch {epoch}: it has already been at {before.epoch}",
                    remedy="open it with a higher epoch, or remove the instance first",
                )
            if before.address == address:
                before.reopen(epoch=epoch, slots=slots)
                return
            self.remove(instance, f"instance {instance} begins epoch {epoch} with another engine")
        gate = Gate(instance, epoch=epoch, slots=slots, address=address, on_change=self._on_change, results=self.results)
        self._gates[instance] = self._by_header[instance.encode()] = gate

    def remove(self, instance: str, reason: str) -> None:
        """Forget the instance; what is still in flight is aborted."""
        gate = self._gates.pop(instance, None)
        if gate is not None:
            del self._by_header[instance.encode()]
            gate.fence()
            gate.empty(reason)

    def find(self, instance: str) -> Gate | None:
        """Return the gate of an instance, or None."""
        return self._gates.get(instance)

    def find_by_header(self, instance: bytes) -> Gate | None:
        """Return the gate that a request's header names, or None."""
        return self._by_header.get(instance)

    @property
    def gates(self) -> tuple[Gate, ...]:
        """All gates."""
        return tuple(self._gates.values())
