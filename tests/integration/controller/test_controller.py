"""The controller on a real nats-server, with a node that only says what a node would say."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.bus.subjects import beat_subject, demand_subject
from standby.bus.tables_set import Tables, open_tables
from standby.controller.actions import Retarget
from standby.controller.apply import Applied, Applier
from standby.controller.leader import LEASE_KEY
from standby.controller.loop import Controller
from standby.domain.assignment import Assignment
from standby.domain.demand import Demand, GatewayBeat
from standby.domain.endpoint import Backend, EndpointStatus, ScalePolicy, Variant
from standby.domain.errors import LeaseLost
from standby.domain.events import AnyEvent, DecisionMade
from standby.domain.instance import InstanceState, Rung
from standby.domain.model import EngineKind
from standby.host import tasks as host_tasks
from support.cluster import TENANT, make_config, make_endpoint, make_model
from support.fake_node import FakeNode, fake_node
from support.nats_server import NatsServer, nats_server
from support.waiting import until

LIMIT_S = 60.0
# Who is deaf stays so: no listing tells a controller what it has missed.
NO_LISTING_S = 3600.0


@dataclass
class World:
    """A bus connection of the test's own, its tables, and one gateway's voice."""

    server: NatsServer
    bus: Bus
    tables: Tables
    sequence: int = 0

    async def create_endpoint(self, name: str, status: EndpointStatus = EndpointStatus.CREATING, **policy: object) -> None:
        await self.create_hybrid(name, status=status, **policy)

    async def create_hybrid(
        self, name: str, *backends: Backend, status: EndpointStatus = EndpointStatus.IN_SERVICE, **policy: object
    ) -> None:
        model = make_model(f"m-{name}")
        variant = Variant(model=model.name, backends=backends, policy=ScalePolicy.model_validate(policy))
        await self.tables.models.put(f"{TENANT}.{model.name}", model)
        await self.tables.endpoint_configs.put(f"{TENANT}.{name}", make_config(name, variant))
        await self.tables.endpoints.put(f"{TENANT}.{name}", make_endpoint(name, status))

    def demand(
        self, name: str, queued: int, in_flight: int = 0, *, variant: str = "", backend: str = "", idle: float = 0.0
    ) -> Demand:
        self.sequence += 1
        return Demand(
            gateway="g1",
            boot_id="b1",
            sequence=self.sequence,
            tenant=TENANT,
            endpoint=name,
            in_flight=in_flight,
            queued=queued,
            idle=idle,
            variant=variant,
            backend=backend,
        )

    async def ask(self, name: str, queued: int = 1, *, variant: str = "", backend: str = "") -> None:
        said = self.demand(name, queued, variant=variant, backend=backend)
        await self.bus.publish(demand_subject(TENANT, name), said.encode())

    async def beat(self, *demands: Demand) -> None:
        self.sequence += 1
        beat = GatewayBeat(gateway="g1", boot_id="b1", sequence=self.sequence, demands=demands)
        await self.bus.publish(beat_subject("g1"), beat.encode())

    async def assignments(self) -> list[Assignment]:
        return [entry.value for entry in (await self.tables.assignments.list()).values()]

    async def status(self, name: str) -> EndpointStatus | None:
        entry = await self.tables.endpoints.get(f"{TENANT}.{name}")
        return None if entry is None else entry.value.status


@asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with nats_server(tmp_path) as server, server.bus() as bus:
        yield World(server, bus, await open_tables(bus))


@asynccontextmanager
async def controller(server: NatsServer, name: str, ttl: float = 20.0, *, leads: bool = True) -> AsyncIterator[Controller]:
    """Run a controller on its own connection, from when it ``leads``; stopped cleanly at the end."""
    async with server.bus(name, nats_relist_interval=NO_LISTING_S) as bus:
        events = await EventLog.open(bus)
        one = Controller(bus, await open_tables(bus), events, name=name, lease_ttl=ttl)
        task = asyncio.get_running_loop().create_task(one.run())
        try:
            if leads:
                await until(lambda: one.leadership.leading, "it leads")
            yield one
        finally:
            await host_tasks.end([task], again_s=10.0)
            await events.close()
        assert task.cancelled(), task


@asynccontextmanager
async def controller_process(server: NatsServer, name: str, ttl: float) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``standby controller`` as a child process; killed at the end if it still runs."""
    settings = server.settings()
    assert settings.nats_password is not None
    environment = {
        **os.environ,
        "STANDBY_NATS_URL": settings.nats_url,
        "STANDBY_NATS_RELIST_INTERVAL": str(NO_LISTING_S),
        "STANDBY_NATS_USER": settings.nats_user or "",
        "STANDBY_NATS_PASSWORD": settings.nats_password.get_secret_value(),
    }
    arguments = ("-m", "standby.controller.main", "--name", name, "--lease-ttl", str(ttl))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def leader_is(tables: Tables, name: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (entry := await tables.leases.get(LEASE_KEY)) is None or entry.value.holder != name:
            await asyncio.sleep(0.02)


async def test_a_request_at_zero_becomes_one_assignment_and_every_decision_an_event(tmp_path: Path) -> None:
    async with world(tmp_path) as w, fake_node(w.tables) as node, controller(w.server, "c1"):
        told: list[AnyEvent] = []
        await (await EventLog.open(w.bus)).follow(told.append)
        await w.create_endpoint("e", keep_ready=600)
        await asyncio.gather(*(w.ask("e", queued=n) for n in range(1, 41)))
        await until(lambda: list(node.states.values()) == [InstanceState.READY], "one instance is ready")
        # Events come by another way than records; the marker's come after all that there is of this endpoint.
        await w.create_endpoint("marker")
        await w.ask("marker")
        await until(lambda: any(isinstance(e, DecisionMade) and e.endpoint == "marker" for e in told), "the marker's is told")
        assert any(e.kind == "endpoint" and e.endpoint == "e" for e in told)
        assert await w.status("e") is EndpointStatus.IN_SERVICE
        (assignment,) = [one for one in await w.assignments() if one.endpoint == "e"]
        assert (assignment.leader_epoch, assignment.rung) == (1, Rung.READY)
        decisions = [e for e in told if isinstance(e, DecisionMade) and (e.endpoint, e.action) == ("e", "assign")]
        assert len(decisions) == 1
        assert decisions[0].inputs["queued"]
        assert "wait and no instance is ready" in decisions[0].reason


async def test_it_sinks_and_climbs_again_on_the_plans_own_clock(tmp_path: Path) -> None:
    async with world(tmp_path) as w, fake_node(w.tables) as node, controller(w.server, "c1"):
        await w.create_endpoint("e", keep_ready="300ms", keep_asleep="300ms", keep_staged="300ms")
        await w.ask("e")
        await until(lambda: InstanceState.READY in node.states.values(), "ready")
        await w.beat()
        await until(lambda: node.mirror.entries == {}, "cold at last")
        assert [a.rung for a in node.seen] == [Rung.READY, Rung.ASLEEP, Rung.STAGED]
        await w.ask("e")
        await until(lambda: InstanceState.READY in node.states.values(), "ready again")


async def test_a_killed_leader_is_replaced_and_nothing_is_started_twice(tmp_path: Path) -> None:
    """The successor lists first; what runs keeps its intent and only gets the new epoch."""
    async with world(tmp_path) as w, fake_node(w.tables) as node, controller_process(w.server, "first", ttl=4.0) as first:
        await leader_is(w.tables, "first")
        await w.create_endpoint("e", keep_ready=600)
        await w.ask("e")
        await until(lambda: InstanceState.READY in node.states.values(), "ready")
        (before,) = await w.assignments()
        async with controller(w.server, "second", ttl=4.0, leads=False) as second:
            await asyncio.sleep(0.2)
            assert not second.leadership.leading
            first.send_signal(signal.SIGKILL)
            await first.wait()
            await until(lambda: second.leadership.leading, "the second leads")
            await until(lambda: node.seen[-1].leader_epoch == second.leadership.epoch, "stamped with the new epoch")
            (after,) = await w.assignments()
            assert (after.instance, after.intent, after.rung) == (before.instance, before.intent, Rung.READY)
            await w.create_endpoint("late")
            await w.ask("late")
            await until(lambda: len(node.states) == 2, "the second decides")


async def test_a_leader_that_is_told_to_stop_gives_the_lease_back(tmp_path: Path) -> None:
    async with world(tmp_path) as w, controller_process(w.server, "first", ttl=60.0) as first:
        await leader_is(w.tables, "first")
        async with controller(w.server, "second", ttl=60.0, leads=False) as second:
            first.send_signal(signal.SIGTERM)
            assert await first.wait() == 0
            await until(lambda: second.leadership.leading, "long before 60 s are over", LIMIT_S / 2)
            assert second.leadership.epoch == 2


async def test_a_part_of_it_that_loses_its_cancellation_keeps_it_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a call to the bus may whose answer comes in the same moment: it is told again, and the lease is given back."""

    async def deaf(_one: Controller) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    monkeypatch.setattr(Controller, "_keep_habits", deaf)
    async with world(tmp_path) as w:
        async with controller(w.server, "first", ttl=60.0):
            pass
        async with asyncio.timeout(LIMIT_S / 2), controller(w.server, "second", ttl=60.0) as second:
            assert second.leadership.epoch == 2


async def test_a_part_of_it_that_is_cancelled_from_inside_begins_another_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a client of the bus that is closed: neither does it lead without that part, nor does the process end."""
    terms = 0

    async def cancelled_once(_one: Controller) -> None:
        nonlocal terms
        terms += 1
        if terms == 1:
            raise asyncio.CancelledError
        await asyncio.Event().wait()

    monkeypatch.setattr(Controller, "_keep_habits", cancelled_once)
    async with world(tmp_path) as w, controller(w.server, "first", ttl=60.0) as first:
        await until(lambda: terms == 2, "another term")
        assert first.leadership.leading
        assert first.leadership.epoch == 2


class Deluded:
    """A controller that was paused for so long that it still believes itself leading."""

    holder = "old"

    def __init__(self, value: Assignment, revision: int) -> None:
        self.value, self.revision = value, revision

    def check(self) -> int:
        return 1

    def assignment(self, _key: str) -> Deluded:
        return self

    def wrote_assignment(self, _key: str, value: Assignment, revision: int) -> None:
        self.value, self.revision = value, revision


async def test_a_former_leaders_write_is_refused(tmp_path: Path) -> None:
    """By its own clock where that runs, and by the revision where it believes itself leading: a takeover moves them all."""
    async with world(tmp_path) as w, fake_node(w.tables) as node:
        await w.create_endpoint("e", keep_ready=600)
        async with controller(w.server, "old") as old:
            await w.ask("e")
            await until(lambda: InstanceState.READY in node.states.values(), "ready")
            (key,) = node.mirror.entries
            known = old.state.assignment(key)
            assert known is not None
        stale = Retarget(
            key=key,
            revision=known.revision,
            tenant=TENANT,
            endpoint="e",
            before=Rung.READY,
            rung=Rung.STAGED,
            slots=4,
            reason="from the past",
        )
        async with controller(w.server, "new") as new:
            before = known.value.leader_epoch
            await until(lambda: node.seen[-1].leader_epoch == new.leadership.epoch > before, "the new one has stamped")
            with pytest.raises(LeaseLost):
                await Applier(w.tables, old.state, old.leadership).apply(stale, Applied())
            deluded = Deluded(known.value, known.revision)
            done = Applied()
            await Applier(w.tables, deluded, deluded).apply(stale, done)  # type: ignore[arg-type]
            assert (done.written, done.conflicts) == (0, 1)
            (now,) = await w.assignments()
            assert (now.rung, now.intent) == (Rung.READY, known.value.intent)
            assert deluded.value.leader_epoch == new.leadership.epoch, "and it has learned of its successor"


async def seed_running(w: World, node: FakeNode, names: list[str]) -> None:
    async with controller(w.server, "seed"):
        for name in names:
            await w.create_endpoint(name, keep_ready=600)
            await w.ask(name)
        await until(lambda: len(node.states) == len(names), "all run")


async def test_an_empty_registry_stops_nothing_and_is_said_loudly(tmp_path: Path) -> None:
    async with world(tmp_path) as w, fake_node(w.tables) as node:
        await seed_running(w, node, ["a", "b"])
        for name in ("a", "b"):
            await w.tables.endpoints.delete(f"{TENANT}.{name}")
        told: list[AnyEvent] = []
        await (await EventLog.open(w.bus)).follow(told.append)
        async with controller(w.server, "c2"):
            await until(lambda: any(isinstance(e, DecisionMade) and e.action == "halt" for e in told), "halted")
            assert len(await w.assignments()) == 2


async def test_an_endpoint_that_is_really_gone_is_cleaned_up(tmp_path: Path) -> None:
    async with world(tmp_path) as w, fake_node(w.tables) as node:
        await seed_running(w, node, ["a", "b"])
        await w.tables.endpoints.delete(f"{TENANT}.a")
        async with controller(w.server, "c2"):
            await until(lambda: len(node.mirror.entries) == 1, "its assignment is removed")
            (left,) = await w.assignments()
            assert left.endpoint == "b"


async def test_deleting_ends_with_the_record_itself(tmp_path: Path) -> None:
    async with world(tmp_path) as w, fake_node(w.tables) as node, controller(w.server, "c1"):
        await w.create_endpoint("e", keep_ready=600)
        await w.ask("e")
        await until(lambda: InstanceState.READY in node.states.values(), "ready")
        entry = await w.tables.endpoints.get(f"{TENANT}.e")
        assert entry is not None
        deleting = entry.value.model_copy(update={"status": EndpointStatus.DELETING})
        await w.tables.endpoints.put(f"{TENANT}.e", deleting)
        async with asyncio.timeout(LIMIT_S):
            while await w.status("e") is not None:
                await asyncio.sleep(0.02)
        assert await w.assignments() == []
        await until(lambda: node.states == {}, "the node has heard of it")


async def test_after_the_bus_was_away_demand_is_heard_again(tmp_path: Path) -> None:
    """Field case B38: who asks after the server's return is heard without any listing, and nothing was stopped meanwhile."""
    async with world(tmp_path) as w, fake_node(w.tables) as node, controller(w.server, "c1", ttl=2.0):
        await w.create_endpoint("a", keep_ready=600)
        await w.create_endpoint("b", keep_ready=600)
        await w.ask("a")
        await until(lambda: len(node.states) == 1, "a runs")
        await w.server.restart(kill=True, down_s=0.5)
        await until(lambda: w.bus.connected, "back")
        async with asyncio.timeout(LIMIT_S):
            while len(node.states) < 2:
                await w.ask("b")
                await asyncio.sleep(0.1)
        assert len(await w.assignments()) == 2


async def test_a_write_of_a_former_leader_that_lands_late_is_stamped(tmp_path: Path) -> None:
    """Nodes ignore what bears an older epoch than they have seen: unstamped, its instance would be on its way for ever."""
    async with world(tmp_path) as w, controller(w.server, "c1") as one, fake_node(w.tables) as node:
        await w.create_endpoint("e")
        await w.ask("e")
        await until(lambda: bool(node.seen), "the first assignment is written")
        epoch = one.leadership.epoch
        late = node.seen[0].model_copy(update={"instance": "late", "intent": "late", "leader_epoch": epoch - 1})
        await w.tables.assignments.create("n1.late", late)
        await until(lambda: ("late", epoch) in {(a.instance, a.leader_epoch) for a in node.seen}, "it is stamped")


async def test_removals_leave_nothing_behind_in_the_controller(tmp_path: Path) -> None:
    async with world(tmp_path) as w, controller(w.server, "c1") as one, fake_node(w.tables) as node:
        await w.create_endpoint("e")
        await w.ask("e")
        await until(lambda: bool(node.states), "the instance is reported")
        entry = await w.tables.endpoints.get(f"{TENANT}.e")
        assert entry is not None
        deleting = entry.value.model_copy(update={"status": EndpointStatus.DELETING})
        await w.tables.endpoints.put(entry.key, deleting)
        await until(lambda: not one.state.endpoints.entries, "the endpoint is gone")
        await until(lambda: not one.state._by_endpoint and not one.state._instances_of, "nothing of it is left")
        await until(lambda: (one.state._removed, one.state._dropped_endpoints, one.state._status) == (set(), {}, {}))


async def test_two_engines_of_a_variant_are_woken_and_laid_to_sleep_by_their_own_demand(tmp_path: Path) -> None:
    spare = Backend(name="spare", engine=EngineKind.FAKE, slots=7, engine_options={"tokens": 3})
    async with world(tmp_path) as there, controller(there.server, "c1"), fake_node(there.tables) as node:
        await there.create_hybrid("h", Backend(engine=EngineKind.FAKE), spare, keep_ready=0.5, keep_asleep="forever")

        def rungs() -> dict[str, Rung]:
            newest = {one.instance: one for one in node.seen}
            return {one.backend: one.rung for one in newest.values()}

        async def saying(said: Callable[[], Awaitable[None]], wanted: dict[str, Rung]) -> None:
            """Say it again and again, as a gateway that lives does, until the rungs are those."""
            while rungs() != wanted:
                await said()
                await asyncio.sleep(0.1)

        async def ask(*backends: str) -> None:
            for backend in backends:
                await there.ask("h", variant="AllTraffic", backend=backend)

        async def beat(spare: int) -> None:
            idle = 0.0 if spare else asyncio.get_running_loop().time() - began
            busy = there.demand("h", 0, 1, variant="AllTraffic", backend="fake")
            await there.beat(busy, there.demand("h", spare, variant="AllTraffic", backend="spare", idle=idle))

        await saying(lambda: ask("spare"), {"spare": Rung.READY})
        (only,) = await there.assignments()
        assert (only.slots, only.model.engine_options, only.variant) == (7, {"tokens": 3}, "AllTraffic")
        await saying(lambda: ask("spare", "fake"), {"spare": Rung.READY, "fake": Rung.READY})
        began = asyncio.get_running_loop().time()
        await saying(lambda: beat(spare=0), {"spare": Rung.ASLEEP, "fake": Rung.READY})
        # Who is served by the other engine and would rather have this one says so; nobody waits.
        await saying(lambda: beat(spare=1), {"spare": Rung.READY, "fake": Rung.READY})
