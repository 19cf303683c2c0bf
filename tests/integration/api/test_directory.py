"""The gateway's directory, followed over a real nats-server."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from standby.domain.errors import ModelNotFound
from standby.gateway.desk import AllRooms
from standby.gateway.directory import Directory
from support.builders import TENANT, a_config, an_endpoint, an_instance
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
