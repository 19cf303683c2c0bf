"""The agent's memory desk: keeps the ledger, pushes out sleepers for a climb, lets climbs wait for what is being freed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from standby.domain.instance import HAS_PROCESS, InstanceState, Rung
from standby.domain.model import EngineKind
from standby.domain.node import MemoryLedger
from standby.runtime.lifecycle_values import Event, Evicted, ReservationRefused, Reserved, RetryDue
from standby.warm_pool.ledger import HOST, Claim, Ledger, Reservation, reserve, zygote_claim
from standby.warm_pool.managed import Managed
from standby.warm_pool.measured import Sizes, needed
from standby.warm_pool.price_key import price_key
from standby.warm_pool.pushing import Sleeper, victims
from standby.warm_pool.reality import Difference, reconcile

_log = logging.getLogger(__name__)


class Gains(Protocol):
    """Measured prices, as the desk reads them."""

    def gain_of_sleep(self, digest: str) -> float:
        """Return the seconds that a wake saves over the next best climb."""

    def seconds(self, digest: str, rung: Rung) -> float | None:
        """Return the seconds from ``rung`` to ready; None: not measured yet."""


@dataclass
class MemoryDesk:
    """Part of the agent's loop: only it calls. ``instances`` is the agent's own table, ``costs`` its measured prices.

    ``devices_of`` names the devices that an instance computes on; ``end_zygote`` ends the zygote of an engine kind, to be
    answered by ``zygote_ended``. ``pushed_out`` counts what had to make room.
    """

    ledger: Ledger
    instances: Mapping[str, Managed]
    costs: Callable[[], Gains]
    post: Callable[[str, Event], None]
    wall: Callable[[], float]
    sizes: Sizes = field(default_factory=Sizes)
    devices_of: Callable[[Managed], Sequence[str]] = lambda _managed: ()
    end_zygote: Callable[[EngineKind], None] | None = None
    pushed_out: dict[str, int] = field(default_factory=lambda: {"sleeper": 0, "zygote": 0})
    _zygotes: dict[EngineKind, float] = field(default_factory=dict)
    _wanted: dict[str, Claim] = field(default_factory=dict)
    _leaving: set[str] = field(default_factory=set)
    _refused: set[str] = field(default_factory=set)

    # ---- instances ---------------------------------------------------------------------------------------------

    def reserve(self, managed: Managed) -> None:
        """Promise what an awake instance needs; answers with Reserved or ReservationRefused, perhaps later."""
        self._wanted[managed.id] = self.needed(managed)
        self._try(managed)

    def needed(self, managed: Managed) -> Claim:
        """Return what the instance needs while it is awake. Raises what the engine's estimate raises."""
        model, slots = managed.assignment.model, managed.assignment.slots
        size = self.sizes.footprint(price_key(managed.assignment).text)

        def estimate() -> int:
            return managed.adapter.estimate_bytes(model.manifest, model.engine_options, slots)

        return needed(managed.assignment, size, estimate, self.devices_of(managed))

    def hold(self, managed: Managed, host: int, devices: Mapping[str, int] | None = None) -> None:
        """Set what an instance holds now, e.g. its residue while it is asleep."""
        self._set(managed.id, Claim(host, dict(devices or {})))

    def asleep(self, managed: Managed, measured: Claim) -> None:
        """Take up what was measured of a sleeper's whole process tree."""
        self._set(managed.id, measured)

    def awake(self, managed: Managed, measured: Claim) -> None:
        """Take up what was measured of an instance that serves: its claim grows with it, and is not made smaller.

        A configured size stays as it is: who exceeds it is named by ``reality``.
        """
        if managed.assignment.memory_mb is None:
            self.ledger = self.ledger.claim(managed.id, self.ledger.held(managed.id).at_least(measured))

    def release(self, managed: Managed) -> None:
        """Take back all that an instance held."""
        self._wanted.pop(managed.id, None)
        self._refused.discard(managed.id)
        self.sizes.ended(managed.id)
        self._gone(managed.id)

    def stays(self, instance: str) -> None:
        """Wait no longer for what this victim holds: it was woken just then, or it cannot be ended."""
        self._leaving.discard(instance)
        self._serve_waiting()

    @property
    def waiting(self) -> Mapping[str, Claim]:
        """What is wanted and not answered yet, by instance, in the order in which it was asked for."""
        return dict(self._wanted)

    # ---- zygotes and devices -----------------------------------------------------------------------------------

    def reserve_zygote(self, kind: EngineKind, amount: int) -> Reservation:
        """Promise host memory to the zygotes of a kind; they push out nobody, as engines start without them, too.

        Nor do they take what is being freed for a climb.
        """
        if self._wanted:
            return Reservation(granted=False, ledger=self.ledger, reason=f"{', '.join(self._wanted)} wait for memory")
        answer = reserve(self.ledger, zygote_claim(kind), Claim(amount))
        if answer.granted:
            self.ledger = answer.ledger
            self._zygotes[kind] = self.wall()
        return answer

    def zygote_measured(self, kind: EngineKind, amount: int) -> None:
        """Take up what a zygote really holds, whether or not it was promised."""
        self._zygotes.setdefault(kind, self.wall())
        self._set(zygote_claim(kind), Claim(amount))

    def zygote_ended(self, kind: EngineKind) -> None:
        """Take back what a zygote held: its process is gone."""
        self._zygotes.pop(kind, None)
        self._gone(zygote_claim(kind))

    def set_devices(self, devices: Mapping[str, int], cordoned: Mapping[str, str]) -> None:
        """Take up what the inventory says: bytes that may be promised of each device, and which get nothing new and why."""
        if dict(self.ledger.devices) == dict(devices) and dict(self.ledger.cordoned) == dict(cordoned):
            return
        self.ledger = self.ledger.with_devices(devices)
        for device in {*self.ledger.cordoned, *cordoned}:
            self.ledger = self.ledger.cordon(device, cordoned.get(device, ""))
        self._serve_waiting()

    # ---- what it says ------------------------------------------------------------------------------------------

    def snapshot(self) -> MemoryLedger:
        """Return what the node says of its memory."""
        resident = sum(managed.resident_bytes for managed in self.instances.values() if managed.has_process)
        return MemoryLedger(capacity=self.ledger.capacity, reserved=self.ledger.reserved, resident=resident)

    def reality(self) -> tuple[Difference, ...]:
        """Return where the ledger and what was last measured do not agree; empty in good health."""
        alive = {
            managed.id
            for managed in self.instances.values()
            if managed.life.state in HAS_PROCESS or managed.handle is not None or managed.tasks.keys() & {"stop", "spawn"}
        }
        measured = {
            managed.id: Claim(managed.resident_bytes)
            for managed in self.instances.values()
            if managed.has_process and managed.handle is not None and managed.resident_bytes
        }
        return reconcile(self.ledger.claims, measured, alive | {zygote_claim(kind) for kind in self._zygotes})

    # ---- inside ------------------------------------------------------------------------------------------------

    def _set(self, holder: str, claim: Claim) -> None:
        before = self.ledger.held(holder)
        self.ledger = self.ledger.claim(holder, claim)
        if any(claim.of(resource) < before.of(resource) for resource in before.resources):
            self._serve_waiting()

    def _gone(self, holder: str) -> None:
        waited_for = holder in self._leaving
        self._leaving.discard(holder)
        held = holder in self.ledger.claims
        self.ledger = self.ledger.release(holder)
        if held or waited_for:
            self._serve_waiting()

    def _try(self, managed: Managed) -> None:
        answer = reserve(self.ledger, managed.id, self._wanted[managed.id])
        if answer.granted:
            self.ledger = answer.ledger
            del self._wanted[managed.id]
            self.post(managed.id, Reserved())
            return
        chosen = () if answer.hopeless else victims(self._sleepers(managed), answer.short, self._idle_zygotes(managed))
        if chosen:
            _log.info("instance %s: %s; ending %s", managed.id, answer.reason, ", ".join(chosen))
            self._leaving.update(chosen)
            for name in chosen:
                self._push_out(name)
        elif answer.hopeless or not self._leaving:
            del self._wanted[managed.id]
            self._refused.add(managed.id)
            self.post(managed.id, ReservationRefused(answer.reason))

    def _push_out(self, name: str) -> None:
        for kind in tuple(self._zygotes):
            if name == zygote_claim(kind):
                assert self.end_zygote is not None, "zygotes are chosen only where somebody can end them"
                self.pushed_out["zygote"] += 1
                self.end_zygote(kind)
                return
        self.pushed_out["sleeper"] += 1
        self.post(name, Evicted())

    def _serve_waiting(self) -> None:
        for instance in tuple(self._wanted):
            managed = self.instances.get(instance)
            if managed is None:
                self._wanted.pop(instance, None)
            elif instance in self._wanted:
                self._try(managed)
        # Those refused earlier need not sit out their wait, now that something is free.
        refused, self._refused = self._refused, set()
        for instance in refused:
            self.post(instance, RetryDue(freed=True))

    def _sleepers(self, but: Managed) -> list[Sleeper]:
        now = self.wall()
        return [
            Sleeper(
                managed.id,
                held=self.ledger.held(managed.id),
                idle_s=max(0.0, now - managed.rung_since),
                wake_gain_s=self.costs().gain_of_sleep(managed.digest),
            )
            for managed in self.instances.values()
            if managed.life.state is InstanceState.ASLEEP
            and managed.life.wanted is Rung.ASLEEP
            and managed is not but
            and managed.id not in self._leaving
        ]

    def _idle_zygotes(self, but: Managed) -> list[Sleeper]:
        """Return the zygotes that no other instance rests on or is being forked from; ``but`` would start without one."""
        if self.end_zygote is None:
            return []
        used = {
            managed.assignment.model.engine
            for managed in self.instances.values()
            if managed is not but and managed.life.state in {InstanceState.ZYGOTE, InstanceState.STARTING}
        }
        now = self.wall()
        return [
            Sleeper(zygote_claim(kind), self.ledger.held(zygote_claim(kind)), max(0.0, now - since), wake_gain_s=0.0)
            for kind, since in self._zygotes.items()
            if kind not in used and zygote_claim(kind) not in self._leaving and self.ledger.held(zygote_claim(kind)).of(HOST)
        ]
