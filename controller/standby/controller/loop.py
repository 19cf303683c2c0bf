"""The plan-apply loop: it wakes on news or at the plan's own time, decides, writes, and waits again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.bus.subjects import ALL_BEATS, ALL_DEMAND, ALL_OUTLOOKS
from standby.bus.subscription import Subscription
from standby.bus.tables_set import Tables
from standby.controller import figures
from standby.controller.actions import Action, Decision, Plan, awaited
from standby.controller.apply import Applied, Applier
from standby.controller.demand import DemandBook
from standby.controller.economy import Economy
from standby.controller.habits import SAVE_EVERY_S, HabitKeeper
from standby.controller.leader import Leadership
from standby.controller.plan import CLUSTER, plan
from standby.controller.state import ClusterState
from standby.controller.why import outlook
from standby.domain.demand import Demand, GatewayBeat
from standby.domain.errors import BusUnavailable, EndpointNotFound, LeaseLost
from standby.domain.names import key
from standby.host import tasks as host_tasks

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.25
_LAST_SAVE_S: Final = 1.0
# A hold that stays the same is told again only after this long.
_NOTE_AGAIN_S: Final = 30.0


class Controller:
    """One controller process: follows everything all the time, decides while it leads."""

    def __init__(
        self,
        bus: Bus,
        tables: Tables,
        events: EventLog,
        *,
        name: str,
        lease_ttl: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        economy: Economy | None = None,
        save_every_s: float = SAVE_EVERY_S,
    ) -> None:
        self._bus = bus
        self._events = events
        self._clock = clock
        self._book = DemandBook(clock)
        self.state = ClusterState(bus, tables, self._book, self._note, clock, economy)
        self.leadership = Leadership(tables.leases, name, ttl=lease_ttl, epoch_floor=self.state.highest_epoch, clock=clock)
        self._habits = HabitKeeper(tables.habits, self._book, self.leadership)
        self._save_every_s = save_every_s
        self._name = name
        self._applier = Applier(tables, self.state, self.leadership)
        self._wake = asyncio.Event()
        self._dirty: set[str] = set()
        self._all_dirty = True
        self._uncertain = True
        self._urgent = False
        self._wakes: dict[str, float] = {CLUSTER: math.inf}
        self._told: dict[tuple[str, str], float] = {}
        self._subscriptions: list[Subscription] = []

    async def run(self) -> None:
        """Follow, campaign, lead, until cancelled; the lease is then given back. Raises BusUnavailable at the start only."""
        try:
            await self._follow()
            while True:
                await self.leadership.campaign()
                try:
                    await self._serve_term()
                except LeaseLost as lost:
                    log.error("stopped deciding: %s", lost)
        finally:
            await self._save_at_the_end()
            await self.leadership.release()
            await self._unfollow()

    async def _serve_term(self) -> None:
        """Do what a leader does, until the lease is lost, a part of it ends or this is cancelled. Raises LeaseLost."""
        parts = (self.leadership.keep(), self._lead(), self._answer(), self._keep_habits())
        work = [asyncio.ensure_future(part) for part in parts]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # No task group: it cancels its tasks once, and one that loses that would keep this process from ending.
            await host_tasks.end(work)
        failures = [failure for one in work if not one.cancelled() and (failure := one.exception()) is not None]
        if not failures:
            # A client of the bus that is closed cancels whoever waits for its answers: that is nobody's failure.
            log.error("a part of what a leader does has ended by itself: another term begins")
            return
        # Whatever else went wrong is no lost lease, after which one would try again.
        raise next((one for one in failures if not isinstance(one, LeaseLost)), failures[0])

    # ---- news ------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        await self.state.start()
        self._subscriptions.append(await self._bus.subscribe(ALL_DEMAND, self._on_demand))
        self._subscriptions.append(await self._bus.subscribe(ALL_BEATS, self._on_beat))
        self._bus.on_reconnect(self._on_reconnect)

    async def _unfollow(self) -> None:
        self._bus.off_reconnect(self._on_reconnect)
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        await self.state.stop()

    def _on_demand(self, subject: str, payload: bytes) -> None:
        try:
            demand = Demand.model_validate_json(payload)
        except ValidationError as error:
            log.warning("message on %s is no demand: %s", subject, error.errors()[:1])
            return
        was_valid = self._book.valid
        if self._book.take_demand(demand):
            self._urgent = self._urgent or demand.queued > 0
            self._note(key(demand.tenant, demand.endpoint))
        if not was_valid:
            self._note(None)

    def _on_beat(self, subject: str, payload: bytes) -> None:
        try:
            beat = GatewayBeat.model_validate_json(payload)
        except ValidationError as error:
            log.warning("message on %s is no beat: %s", subject, error.errors()[:1])
            return
        was_valid = self._book.valid
        for endpoint in self._book.take_beat(beat):
            self._note(endpoint)
        if not was_valid:
            self._note(None)

    async def _on_reconnect(self) -> None:
        self._uncertain = True
        self._note(None)

    def _note(self, endpoint: str | None) -> None:
        """Something may have changed for ``endpoint``, or for all."""
        if endpoint is None:
            self._all_dirty = True
        else:
            self._dirty.add(endpoint)
        self._wake.set()

    # ---- deciding --------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        """Decide until the lease is lost. On taking over: a complete listing first, then the first decision."""
        self._uncertain = self._all_dirty = True
        self._told.clear()
        fresh = True
        while True:
            try:
                if fresh:
                    known = await self._habits.load()
                    log.info("read the habits of %d endpoints", known)
                    fresh = False
                if self._uncertain:
                    await self._read_everything()
                elif self.state.behind:
                    await self._applier.stamp()
                await self._decide()
            except BusUnavailable as error:
                log.warning("a decision could not be written, everything is read again: %s", error)
                self._uncertain = self._all_dirty = True
                await asyncio.sleep(_RETRY_S)
                continue
            await self._wait()

    async def _keep_habits(self) -> None:
        """Write what was learned, now and then, until cancelled."""
        while True:
            await asyncio.sleep(self._save_every_s)
            try:
                await self._habits.save(self.state.endpoints.entries.keys())
            except BusUnavailable as error:
                log.warning("what was learned of endpoints is written later: %s", error)

    async def _save_at_the_end(self) -> None:
        """Write what the next leader would have to learn anew; the lease's own end is not held up by a bus that is away."""
        with contextlib.suppress(LeaseLost, BusUnavailable, TimeoutError):
            self.leadership.check()
            async with asyncio.timeout(_LAST_SAVE_S):
                await self._habits.save(self.state.endpoints.entries.keys())

    async def _answer(self) -> None:
        """Answer questions about what is meant for an endpoint, until cancelled."""
        while True:
            try:
                serving = await self._bus.serve(ALL_OUTLOOKS, self._on_question)
                break
            except BusUnavailable:
                await asyncio.sleep(_RETRY_S)
        try:
            await asyncio.Event().wait()
        finally:
            await serving.unsubscribe()

    async def _on_question(self, subject: str, _payload: bytes) -> bytes:
        name = subject.partition(".")[2]
        view = self.state.view([name])
        endpoint = view.endpoints.get(name)
        if endpoint is None:
            raise EndpointNotFound(f"there is no endpoint {name[:120]!r}", remedy="list yours with `standby endpoints list`")
        return outlook(view, endpoint, self._clock(), self._name).encode()

    async def _read_everything(self) -> None:
        self._uncertain = False
        await self.state.refresh()
        stamped = await self._applier.stamp()
        self._all_dirty = True
        log.info(
            "read everything: %d endpoints, %d assignments (%d stamped with epoch %d)",
            len(self.state.endpoints.entries),
            len(self.state.assignment_entries()),
            stamped,
            self.leadership.epoch,
        )

    async def _decide(self) -> None:
        """Plan what is due and write it."""
        self.leadership.check()
        made = self._plan()
        if made is None:
            return
        done = Applied()
        try:
            await self._write(made.actions, done)
        finally:
            figures.wrote(done.events)
            for event in done.events:
                await self._events.publish(event)
        for decision in made.decisions:
            await self._tell(decision)

    def _plan(self) -> Plan | None:
        """Return the plan for everything that changed or is due; None when nothing is."""
        now = self._clock()
        due = {name for name, at in self._wakes.items() if at <= now}
        if CLUSTER in due or self._book.next_expiry() <= now:
            for endpoint in self._book.expire():
                self._dirty.add(endpoint)
            self._all_dirty = True
        whole, names = self._all_dirty, (self._dirty | due) - {CLUSTER}
        self._all_dirty, self._urgent = False, False
        self._dirty.clear()
        if not whole and not names:
            return None
        view = self.state.view(None if whole else names)
        began = time.perf_counter()
        made = plan(view, now)
        figures.planned(time.perf_counter() - began)
        self._book.look_ahead(view.endpoints, made.horizons)
        if whole:
            self._wakes.clear()
            self._book.forget_endpoints(self.state.endpoints.entries)
        for name in names:
            self._wakes.pop(name, None)
        # a part of the cluster cannot tell when all of it is due: only bring that moment nearer
        cluster = min(made.wakes.get(CLUSTER, math.inf), self._wakes.get(CLUSTER, math.inf))
        self._wakes.update(made.wakes)
        self._wakes[CLUSTER] = cluster
        return made

    async def _write(self, actions: tuple[Action, ...], done: Applied) -> None:
        """Write ``actions`` in turn; a request at zero that arrives meanwhile goes before what nobody waits for."""
        for at, action in enumerate(actions):
            if self._urgent and not awaited(action):
                self._dirty.update(key(left.tenant, left.endpoint) for left in actions[at:])
                self._all_dirty = True
                break
            await self._applier.apply(action, done)
        if done.conflicts:
            await asyncio.sleep(_RETRY_S / 10)
        # the state that was just written has its own next wake
        self._dirty |= done.again

    async def _tell(self, decision: Decision) -> None:
        now = self._clock()
        about = (key(decision.tenant, decision.endpoint) if decision.endpoint else "", decision.action)
        if now - self._told.get(about, -math.inf) < _NOTE_AGAIN_S:
            return
        self._told[about] = now
        figures.held_back(decision)
        await self._events.publish(self._applier.tell(decision))

    async def _wait(self) -> None:
        """Return on news or when the earliest wake of the plan is due."""
        if self._dirty or self._all_dirty:
            return
        at = min(self._book.next_expiry(), *self._wakes.values())
        self._wake.clear()
        timer = None
        if math.isfinite(at):
            loop = asyncio.get_running_loop()
            timer = loop.call_later(max(0.0, at - self._clock()), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
