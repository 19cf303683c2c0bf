"""The gateway's directory, followed over a real nats-server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from standby.domain.endpoint import Variant
from standby.domain.errors import ModelNotFound
from standby.domain.serving import version_of
from standby.gateway import sessions
from standby.gateway.desk import AllRooms
from standby.gateway.directory import Directory
from support.builders import TENANT, a_config, a_model, an_endpoint, an_instance
from support.control_api import Control
from support.waiting import until


@pytest.fixture
async def directory(control: Control) -> AsyncIterator[Directory]:
    made = Directory(control.tables, AllRooms(10_000), time.monotonic, time.time, on_demand=lambda _desk, _urgent: None)
    await made.start()
    yield made
    await made.stop()


async def test_a_served_name_that_two_endpoints_had_for_a_moment_stays_with_the_one_that_is_left(
    control: Control, directory: Directory
) -> None:
    """Two gateways created endpoints of one served name at once, and one of them withdrew."""
    tables = control.tables
    for name in ("a", "b"):
        await tables.endpoint_configs.create(f"{TENANT}.{name}-1", a_config(name=f"{name}-1"))
        endpoint = an_endpoint(name=name, config=f"{name}-1", served_name="m")
        await tables.endpoints.create(f"{TENANT}.{name}", endpoint)
    await until(lambda: len(directory.endpoints.entries) == 2 and len(directory.configs.entries) == 2)
    await tables.endpoints.delete(f"{TENANT}.b")
    await until(lambda: len(directory.endpoints.entries) == 1)
    assert directory.desk_serving(TENANT, "m").route.endpoint.name == "a"
    await tables.endpoints.delete(f"{TENANT}.a")
    await until(lambda: not directory.endpoints.entries)
    with pytest.raises(ModelNotFound):
        directory.desk_serving(TENANT, "m")


async def test_an_instance_that_is_heard_of_before_its_endpoint_is_used(control: Control, directory: Directory) -> None:
    tables = control.tables
    await tables.instances.put("n1.i1", an_instance())
    await until(lambda: bool(directory.instances.entries))
    await tables.endpoints.create(f"{TENANT}.e", an_endpoint())
    await tables.endpoint_configs.create(f"{TENANT}.e-1", a_config())
    await until(lambda: bool(directory.endpoints.entries) and bool(directory.configs.entries))
    assert directory.desk(TENANT, "e").has_ready


async def test_an_update_whose_config_is_not_here_yet_takes_nothing_away(control: Control, directory: Directory) -> None:
    """An endpoint's record may come before the config that it names: what serves goes on, and takes it up when it comes."""
    tables = control.tables
    await tables.endpoint_configs.create(f"{TENANT}.e-1", a_config())
    revision = await tables.endpoints.create(f"{TENANT}.e", an_endpoint())
    await until(lambda: bool(directory.endpoints.entries) and bool(directory.configs.entries))
    desk = directory.desk(TENANT, "e")
    await tables.endpoints.update(f"{TENANT}.e", an_endpoint(config="e-2"), revision)
    await until(lambda: directory.endpoints.entries[f"{TENANT}.e"].value.config == "e-2")
    assert directory.desk(TENANT, "e") is desk
    assert not desk.closed
    two = (Variant(name="a", model="m", weight=1), Variant(name="b", model="m2", weight=0))
    await tables.endpoint_configs.create(f"{TENANT}.e-2", a_config(name="e-2", variants=two))
    await until(lambda: len(list(directory.desks())) == 2)
    assert directory.desk(TENANT, "e").route.variant.name == "a"
    assert directory.desk(TENANT, "e", "b").route.variant.name == "b"


async def test_a_session_leads_to_the_variant_of_its_instance(control: Control, directory: Directory) -> None:
    tables = control.tables
    two = (Variant(name="a", model="m"), Variant(name="b", model="m2", weight=0))
    await tables.endpoint_configs.create(f"{TENANT}.e-1", a_config(variants=two))
    await tables.endpoints.create(f"{TENANT}.e", an_endpoint())
    await tables.instances.put("n1.i1", an_instance(variant="b"))
    await until(lambda: all(copy.entries for copy in (directory.endpoints, directory.configs, directory.instances)))
    session = sessions.new_id("00112233aabbccdd", "i1", time.time() + 60)
    assert directory.desk(TENANT, "e", None, session).route.variant.name == "b"
    assert directory.desk(TENANT, "e", None, sessions.NEW_SESSION).route.variant.name == "a"


async def test_versions_follow_the_models(control: Control, directory: Directory) -> None:
    tables = control.tables
    await tables.endpoint_configs.create(f"{TENANT}.e-1", a_config())
    await tables.endpoints.create(f"{TENANT}.e", an_endpoint())
    await until(lambda: bool(directory.endpoints.entries) and bool(directory.configs.entries))
    desk = directory.desk(TENANT, "e")
    assert desk.route.version == ""
    model = a_model()
    await tables.models.create(f"{TENANT}.m", model)
    await until(lambda: desk.route.version == version_of(model, a_config().variants[0]))


async def test_a_lost_nodes_instances_have_no_slots(control: Control, directory: Directory) -> None:
    """Their records say that they are ready for as long as nobody takes them away."""
    tables = control.tables
    await tables.endpoints.create(f"{TENANT}.e", an_endpoint())
    for node, slots in (("n1", 3), ("n2", 4)):
        await tables.instances.put(f"{node}.i-{node}", an_instance(id=f"i-{node}", node=node, slots=slots))
    await until(lambda: len(directory.instances.entries) == 2 and bool(directory.endpoints.entries))
    assert directory.slots() == {(TENANT, "e"): 7}
    assert directory.slots({"n1"}) == {(TENANT, "e"): 4}
    assert directory.slots({"n1", "n2"}) == {(TENANT, "e"): 0}
