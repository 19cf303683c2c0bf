"""The agent's memory desk: keeps the ledger, pushes out sleepers for a climb, lets climbs wait for what is being freed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from standby.domain.instance import InstanceState, Rung
from standby.domain.node import MemoryLedger
from standby.runtime.lifecycle_values import Event, Evicted, ReservationRefused, Reserved, RetryDue
from standby.warm_pool.costs import Costs
from standby.warm_pool.ledger import Ledger, Sleeper, reserve, victims
from standby.warm_pool.managed import Managed

_log = logging.getLogger(__name__)


@dataclass
class MemoryDesk:
    """Part of the agent's loop: only it calls. ``instances`` is the agent's own table, ``costs`` its measured prices."""

    ledger: Ledger
    instances: Mapping[str, Managed]
    costs: Callable[[], Costs]
    post: Callable[[str, Event], None]
    wall: Callable[[], float]
    _leaving: set[str] = field(default_factory=set)
    _refused: set[str] = field(default_factory=set)

    def reserve(self, managed: Managed) -> None:
        """Promise what an awake instance needs; answers with Reserved or ReservationRefused, perhaps later."""
        managed.wants_memory = self._needed(managed)
        self._try(managed)

    def hold(self, managed: Managed, amount: int) -> None:
        """Set what an instance holds now, e.g. its residue while it is asleep."""
        self.ledger = self.ledger.claim(managed.id, amount)
        self._serve_waiting()

    def release(self, managed: Managed) -> None:
        """Take back all that an instance held."""
        managed.wants_memory = None
        self._leaving.discard(managed.id)
        self._refused.discard(managed.id)
        held = managed.id in self.ledger.claims
        self.ledger = self.ledger.release(managed.id)
        if held:
            self._serve_waiting()

    def stays(self, instance: str) -> None:
        """Wait no longer for what this victim holds: it was woken just then, or it cannot be ended."""
        self._leaving.discard(instance)
        self._serve_waiting()

    def snapshot(self) -> MemoryLedger:
        """Return what the node says of its memory."""
        resident = sum(managed.resident_bytes for managed in self.instances.values() if managed.has_process)
        return MemoryLedger(capacity=self.ledger.capacity, reserved=self.ledger.reserved, resident=resident)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _needed(self, managed: Managed) -> int:
        assignment = managed.assignment
        if assignment.memory_mb is not None:
            return assignment.memory_mb * 1024 * 1024
        model = assignment.model
        return managed.adapter.estimate_bytes(model.manifest, model.engine_options, assignment.slots)

    def _try(self, managed: Managed) -> None:
        assert managed.wants_memory is not None
        answer = reserve(self.ledger, managed.id, managed.wants_memory)
        if answer.granted:
            self.ledger = answer.ledger
            managed.wants_memory = None
            self.post(managed.id, Reserved())
            return
        chosen = victims(self._sleepers(managed), answer.short_by)
        if chosen:
            _log.info("instance %s: %s; stopping sleepers %s", managed.id, answer.reason, ", ".join(chosen))
            self._leaving.update(chosen)
            for name in chosen:
                self.post(name, Evicted())
        elif not self._leaving:
            managed.wants_memory = None
            self._refused.add(managed.id)
            self.post(managed.id, ReservationRefused(answer.reason))

    def _serve_waiting(self) -> None:
        for managed in self.instances.values():
            if managed.wants_memory is not None:
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
                held=self.ledger.claims.get(managed.id, 0),
                idle_s=max(0.0, now - managed.rung_since),
                wake_gain_s=self.costs().gain_of_sleep(managed.digest),
            )
            for managed in self.instances.values()
            if managed.life.state is InstanceState.ASLEEP
            and managed.life.wanted is Rung.ASLEEP
            and managed is not but
            and managed.id not in self._leaving
        ]
