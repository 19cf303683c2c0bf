"""What a controller has learned outlives it, and it answers what it means to do; on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.bus.subjects import beat_subject, outlook_subject
from standby.bus.tables_set import Tables, open_tables
from standby.controller.demotion import Step
from standby.controller.habits import MOST_PARTS
from standby.controller.loop import Controller
from standby.controller.recorded import replay_decision
from standby.controller.scaling import ScaleDecision
from standby.domain.demand import Demand, GatewayBeat
from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.errors import EndpointNotFound, Unavailable
from standby.domain.events import DecisionMade
from standby.domain.habits import Habits
from standby.domain.instance import InstanceState
from standby.domain.outlook import Outlook
from standby.host import tasks as host_tasks
from support.cluster import TENANT, make_config, make_endpoint, make_model
from support.fake_node import fake_node
from support.nats_server import NatsServer, nats_server
from support.waiting import until

LIMIT_S = 60.0
# Who is deaf stays so: no listing tells a controller what it has missed.
NO_LISTING_S = 3600.0
NAME = f"{TENANT}.e"


@asynccontextmanager
async def controller(server: NatsServer, name: str, save_every_s: float) -> AsyncIterator[Controller]:
    async with server.bus(name, nats_relist_interval=NO_LISTING_S) as bus:
        events = await EventLog.open(bus)
        one = Controller(bus, await open_tables(bus), events, name=name, lease_ttl=20.0, save_every_s=save_every_s)
        task = asyncio.get_running_loop().create_task(one.run())
        try:
            await until(lambda: one.leadership.leading, "it leads")
            yield one
        finally:
            await host_tasks.end([task], again_s=10.0)
            await events.close()


async def create(tables: Tables, **policy: object) -> None:
    model = make_model("m")
    variant = Variant(model=model.name, policy=ScalePolicy.model_validate(policy))
    await tables.models.put(f"{TENANT}.m", model)
    await tables.endpoint_configs.put(NAME, make_config("e", variant))
    await tables.endpoints.put(NAME, make_endpoint("e"))


class Gateway:
    """One gateway's voice."""

    def __init__(self, bus: Bus, name: str = "g1") -> None:
        self._bus, self._name, self._sequence = bus, name, 0

    async def says(self, in_flight: int = 0, queued: int = 0, idle: float = 0.0) -> None:
        self._sequence += 1
        fields = {"gateway": self._name, "boot_id": "b", "sequence": self._sequence}
        one = Demand(tenant=TENANT, endpoint="e", in_flight=in_flight, queued=queued, idle=idle, **fields)
        await self._bus.publish(beat_subject(self._name), GatewayBeat(demands=(one,), **fields).encode())


async def stored(tables: Tables) -> Habits | None:
    entry = await tables.habits.get(NAME)
    return None if entry is None else entry.value


def seen(one: Controller) -> int:
    gaps = one._book.demand(NAME).gaps
    return 0 if gaps is None else gaps.count


async def teach(one: Controller, gateway: Gateway, times: int) -> None:
    for number in range(times):
        await gateway.says(in_flight=1)
        await until(lambda: one._book.demand(NAME).concurrency == 1, "it hears the request")
        await gateway.says(in_flight=0)
        await until(lambda: one._book.demand(NAME).concurrency == 0, "it hears the end")
        assert seen(one) == number


async def test_next_leader_goes_on_with_what_was_learned(tmp_path: Path) -> None:
    """The first one is stopped before its next round: it writes what it has when it stops."""
    async with nats_server(tmp_path) as server, server.bus() as bus:
        tables = await open_tables(bus)
        await create(tables)
        async with controller(server, "c1", save_every_s=3600.0) as first:
            await teach(first, Gateway(bus), 4)
        found = await stored(tables)
        assert found is not None
        assert found.parts[""]["count"] == 3
        async with controller(server, "c2", save_every_s=3600.0) as second:
            await until(lambda: seen(second) == 3, "it has taken over")


async def test_killed_leader_loses_one_round_at_most_and_two_writers_agree(tmp_path: Path) -> None:
    async with nats_server(tmp_path) as server, server.bus() as bus:
        tables = await open_tables(bus)
        await create(tables)
        async with controller(server, "c1", save_every_s=0.05) as one:
            await teach(one, Gateway(bus), 3)
            await until(lambda: _count(one) == 2, "it is written")
            richer = await stored(tables)
            assert richer is not None
            said = {**richer.parts[""], "count": 50}
            await tables.habits.put(NAME, richer.model_copy(update={"parts": {"": said}}))
            await teach_one(one, Gateway(bus, "g2"))
            await until(lambda: seen(one) >= 50, "it takes over what another one has written")


def _count(one: Controller) -> int:
    return seen(one) if NAME in one._habits._revisions else 0


async def teach_one(one: Controller, gateway: Gateway) -> None:
    await gateway.says(in_flight=1)
    await until(lambda: one._book.demand(NAME).concurrency == 1, "it hears the request")


@pytest.mark.parametrize(
    "parts",
    [
        {"": {"per_octave": 4, "count": -5, "counts": {}}},
        {"": {"per_octave": 4, "count": 1, "counts": {"9999": 1.0}}},
        {"": {"per_octave": 4, "count": 1, "counts": {"1": 1e300}}},
        {"": {"nonsense": True}},
        {f"v{n}": {"per_octave": 4, "count": 1, "counts": {"1": 1.0}} for n in range(10 * MOST_PARTS)},
    ],
)
async def test_absurd_habits_are_ignored(tmp_path: Path, parts: dict[str, dict[str, object]]) -> None:
    async with nats_server(tmp_path) as server, server.bus() as bus:
        tables = await open_tables(bus)
        await create(tables)
        await tables.habits.put(NAME, Habits(tenant=TENANT, endpoint="e", parts=parts))
        async with controller(server, "c1", save_every_s=3600.0) as one:
            await teach(one, Gateway(bus), 2)
            assert len(one._book.habits(NAME)) <= MOST_PARTS + 1


async def test_habits_of_an_endpoint_that_is_gone_are_forgotten(tmp_path: Path) -> None:
    async with nats_server(tmp_path) as server, server.bus() as bus:
        tables = await open_tables(bus)
        await create(tables)
        await tables.habits.put(f"{TENANT}.gone", Habits(tenant=TENANT, endpoint="gone"))
        async with controller(server, "c1", save_every_s=0.05):
            async with asyncio.timeout(LIMIT_S):
                while await tables.habits.get(f"{TENANT}.gone") is not None:
                    await asyncio.sleep(0.02)


async def test_it_says_what_it_means_to_do_and_what_it_has_done_can_be_replayed(tmp_path: Path) -> None:
    async with nats_server(tmp_path) as server, server.bus() as bus:
        tables = await open_tables(bus)
        # Nearly nothing is paid for a caller's wait, so that it falls at once.
        await create(tables, wait_price=0.01, max_instances=1)
        async with controller(server, "c1", save_every_s=3600.0), fake_node(tables) as node:
            gateway = Gateway(bus)
            await gateway.says(queued=1)
            await until(lambda: list(node.states.values()) == [InstanceState.READY], "it is ready")
            await gateway.says(queued=1)  # whoever is silent for seconds wants nothing any more
            answer = Outlook.model_validate_json(await bus.request(outlook_subject(TENANT, "e"), b"", 30.0))
            assert (answer.controller, answer.intentions[0].by) == ("c1", "demand")
            await gateway.says(idle=0.0)
            events = await EventLog.open(bus)
            async with asyncio.timeout(LIMIT_S):
                while not (sunk := [e for e in await events.recent(50, TENANT, "e", kind="decision") if e.action == "sink"]):  # type: ignore[union-attr]
                    await gateway.says(idle=1.0)
                    await asyncio.sleep(0.1)
            told = sunk[0]
            assert isinstance(told, DecisionMade)
            again = replay_decision(told)
            assert isinstance(again, Step)
            assert (again.rung.label, again.reason) == (told.inputs["hold"], told.reason)
            (placed,) = [e for e in await events.recent(50, TENANT, "e", kind="decision") if e.action == "assign"]  # type: ignore[union-attr]
            assert isinstance(placed, DecisionMade)
            counted = replay_decision(placed)
            assert isinstance(counted, ScaleDecision)
            assert counted.count == placed.inputs["desired"] == 1
            assert placed.reason.startswith(counted.reason)
            with pytest.raises(EndpointNotFound):
                await bus.request(outlook_subject(TENANT, "other"), b"", 30.0)
            await events.close()
        with pytest.raises(Unavailable):
            await bus.request(outlook_subject(TENANT, "e"), b"", 2.0)
