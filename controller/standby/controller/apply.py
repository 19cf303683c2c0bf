"""The effects of a plan: each action is one compare-and-set write, fenced by the leader's epoch."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from standby.bus.tables import Entry
from standby.bus.tables_set import Tables
from standby.controller.actions import (
    Action,
    Assign,
    ConfirmAbsent,
    Decision,
    DropEndpoint,
    Inputs,
    MarkEndpoint,
    Retarget,
    SettleUpdate,
    Unassign,
)
from standby.controller.leader import Leadership
from standby.controller.state import ClusterState
from standby.domain.assignment import Assignment
from standby.domain.endpoint import EndpointStatus
from standby.domain.errors import BusUnavailable, RevisionConflict, Unavailable
from standby.domain.events import AnyEvent, DecisionMade, EndpointChanged
from standby.domain.names import key

log = logging.getLogger(__name__)

_LONGEST_STEM = 40


def new_id() -> str:
    """Return an id that nobody else has."""
    return uuid.uuid4().hex[:12]


@dataclass(slots=True)
class Applied:
    """What became of a plan's actions: events to tell, endpoints (``tenant.name``) to look at again."""

    events: list[AnyEvent] = field(default_factory=list)
    again: set[str] = field(default_factory=set)
    written: int = 0
    conflicts: int = 0


class Applier:
    """Writes actions one after the other; nothing is written without the lease.

    A RevisionConflict drops that action: the key is read again and planned again. LeaseLost and BusUnavailable are raised;
    after a BusUnavailable the outcome of the last write is unknown, and everything must be read anew.
    """

    def __init__(
        self,
        tables: Tables,
        state: ClusterState,
        leadership: Leadership,
        *,
        wall: Callable[[], float] = time.time,
        ids: Callable[[], str] = new_id,
    ) -> None:
        self._tables = tables
        self._state = state
        self._leadership = leadership
        self._wall = wall
        self._ids = ids
        self._source = f"controller/{leadership.holder}"

    async def apply(self, action: Action, done: Applied) -> None:
        """Write ``action`` and note in ``done`` what there is to tell."""
        epoch = self._leadership.check()
        done.again.add(key(action.tenant, action.endpoint))
        try:
            match action:
                case Assign():
                    await self._assign(action, epoch, done)
                case Retarget():
                    await self._retarget(action, epoch, done)
                case Unassign():
                    await self._unassign(action, done)
                case MarkEndpoint():
                    await self._mark(action, done)
                case SettleUpdate():
                    await self._settle(action, done)
                case DropEndpoint():
                    await self._drop(action, done)
                case ConfirmAbsent():
                    await self._confirm_absent(action, done)
        except RevisionConflict as conflict:
            done.conflicts += 1
            log.info("%s was overtaken and is planned again: %s", type(action).__name__, conflict)
            await self._read_again(action)

    async def stamp(self) -> int:
        """Write every assignment again with the present epoch; return how many.

        Same intent, so that nodes do nothing new; new revision, so that every write that a former leader still has in
        flight is refused. What a lost store has forgotten is created again.
        """
        epoch = self._leadership.check()
        stamped = 0
        for entry in self._state.assignment_entries():
            self._leadership.check()
            lost = entry.key in self._state.assignments.orphans
            if entry.value.leader_epoch >= epoch and not lost:
                continue
            value = entry.value.model_copy(update={"leader_epoch": epoch})
            try:
                if lost:
                    revision = await self._tables.assignments.create(entry.key, value)
                else:
                    revision = await self._tables.assignments.update(entry.key, value, entry.revision)
            except RevisionConflict:
                await self._reload_assignment(entry.key)
                continue
            self._state.wrote_assignment(entry.key, value, revision)
            stamped += 1
        return stamped

    def tell(self, decision: Decision) -> AnyEvent:
        """Return the event for a decision that changes nothing."""
        if decision.loud:
            log.error("%s: %s", decision.action, decision.reason)
        return self._event(decision.action, decision.reason, decision.tenant, decision.endpoint, inputs=decision.inputs)

    # ---- one action each -------------------------------------------------------------------------------

    async def _assign(self, action: Assign, epoch: int, done: Applied) -> None:
        instance = f"{action.endpoint[:_LONGEST_STEM].rstrip('-')}-{self._ids()}"
        value = Assignment(
            node=action.node,
            instance=instance,
            tenant=action.tenant,
            endpoint=action.endpoint,
            endpoint_generation=action.generation,
            variant=action.variant,
            backend=action.backend,
            served_name=action.served_name,
            model=action.model,
            rung=action.rung,
            slots=action.slots,
            admits=action.admits,
            version=action.version,
            memory_mb=action.memory_mb,
            drain_limit=action.drain_limit,
            activation_limit=action.activation_limit,
            intent=self._ids(),
            leader_epoch=epoch,
            reason=action.reason,
            demand_at=action.demand_at,
        )
        name = key(action.node, instance)
        revision = await self._tables.assignments.create(name, value)
        self._state.wrote_assignment(name, value, revision)
        self._wrote(done, "assign", action, instance, action.inputs)

    async def _retarget(self, action: Retarget, epoch: int, done: Applied) -> None:
        known = self._state.assignment(action.key)
        if known is None or known.revision != action.revision:
            return
        changes: dict[str, object] = {
            "rung": action.rung,
            "slots": action.slots,
            "admits": action.admits,
            "intent": self._ids(),
            "leader_epoch": epoch,
            "reason": action.reason,
            "demand_at": action.demand_at,
            "ahead": action.keeps_ahead(known.value.ahead),
        }
        if action.generation is not None:
            changes["endpoint_generation"] = action.generation
        value = known.value.model_copy(update=changes)
        revision = await self._tables.assignments.update(action.key, value, action.revision)
        self._state.wrote_assignment(action.key, value, revision)
        verb = action.verb or ("resize" if action.rung is action.before else "climb" if action.rung > action.before else "sink")
        inputs = {**action.inputs, "from": action.before.label, "to": action.rung.label, "node": value.node}
        self._wrote(done, verb, action, value.instance, inputs)

    async def _unassign(self, action: Unassign, done: Applied) -> None:
        await self._tables.assignments.delete(action.key, action.revision)
        self._state.removed_assignment(action.key)
        self._wrote(done, "unassign", action, action.key.partition(".")[2], action.inputs)

    async def _mark(self, action: MarkEndpoint, done: Applied) -> None:
        known = self._state.endpoint(action.key)
        if known is None or known.revision != action.revision:
            return
        value = known.value.model_copy(update={"status": action.status, "failure": action.failure, "updated_at": self._wall()})
        revision = await self._tables.endpoints.update(action.key, value, action.revision)
        self._state.wrote_endpoint(Entry(action.key, value, revision))
        self._wrote(done, f"mark {action.status.value}", action, "", {"before": known.value.status.value})
        done.events.append(self._status_event(action, action.status.value))

    async def _settle(self, action: SettleUpdate, done: Applied) -> None:
        known = self._state.endpoint(action.key)
        if known is None or known.revision != action.revision:
            return
        record = known.value
        changes: dict[str, object] = {
            "pending_config": None,
            "pending_capacities": {},
            "status": EndpointStatus.IN_SERVICE,
            "update_failure": action.failure,
            "updated_at": self._wall(),
        }
        if action.failure is None:
            changes |= {"config": record.pending_config, "capacities": record.pending_capacities, "failure": None}
        value = record.model_copy(update=changes)
        revision = await self._tables.endpoints.update(action.key, value, action.revision)
        self._state.wrote_endpoint(Entry(action.key, value, revision))
        verb = "update" if action.failure is None else "roll back"
        self._wrote(done, verb, action, "", {"before": record.config, "wanted": record.pending_config})
        done.events.append(self._status_event(action, value.status.value))

    async def _drop(self, action: DropEndpoint, done: Applied) -> None:
        await self._tables.endpoints.delete(action.key, action.revision)
        self._state.dropped_endpoint(action.key, action.revision)
        self._wrote(done, "drop endpoint", action, "", {})
        done.events.append(self._status_event(action, "Deleted"))

    async def _confirm_absent(self, action: ConfirmAbsent, done: Applied) -> None:
        try:
            entry = await self._tables.endpoints.get(action.key)
        except BusUnavailable:
            raise
        except Unavailable as unreadable:
            log.error("endpoint %s exists but cannot be read, its instances stay: %s", action.key, unreadable)
            return
        if entry is not None:
            log.warning("endpoint %s was missing in the listing but exists at revision %d", action.key, entry.revision)
            self._state.wrote_endpoint(entry)
            return
        reason = f"endpoint {action.endpoint} does not exist: its own record was asked for"
        for name, revision in action.assignments:
            removal = Unassign(
                key=name, revision=revision, tenant=action.tenant, endpoint=action.endpoint, reason=reason, absence=True
            )
            await self.apply(removal, done)

    # ---- inside ----------------------------------------------------------------------------------------

    async def _read_again(self, action: Action) -> None:
        match action:
            case Retarget() | Unassign():
                await self._reload_assignment(action.key)
            case MarkEndpoint() | SettleUpdate() | DropEndpoint():
                entry = await self._tables.endpoints.get(action.key)
                if entry is None:
                    self._state.dropped_endpoint(action.key, action.revision)
                else:
                    self._state.wrote_endpoint(entry)
            case Assign() | ConfirmAbsent():
                pass  # a new instance's id is new each time; what is absent has no revision

    async def _reload_assignment(self, name: str) -> None:
        entry = await self._tables.assignments.get(name)
        if entry is None:
            self._state.removed_assignment(name)
        else:
            self._state.wrote_assignment(name, entry.value, entry.revision)

    def _wrote(self, done: Applied, verb: str, action: Action, instance: str, inputs: Inputs) -> None:
        done.written += 1
        done.events.append(self._event(verb, action.reason, action.tenant, action.endpoint, instance, inputs))
        log.info("%s %s.%s %s: %s", verb, action.tenant, action.endpoint, instance, action.reason)

    def _event(
        self, verb: str, reason: str, tenant: str, endpoint: str, instance: str = "", inputs: Inputs | None = None
    ) -> DecisionMade:
        return DecisionMade(
            id=self._ids(),
            at=self._wall(),
            source=self._source,
            tenant=tenant,
            endpoint=endpoint,
            instance=instance,
            action=verb,
            reason=reason,
            inputs=inputs or {},
        )

    def _status_event(self, action: MarkEndpoint | SettleUpdate | DropEndpoint, status: str) -> EndpointChanged:
        return EndpointChanged(
            id=self._ids(),
            at=self._wall(),
            source=self._source,
            tenant=action.tenant,
            endpoint=action.endpoint,
            status=status,
            reason=action.reason,
        )
