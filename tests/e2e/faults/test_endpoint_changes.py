"""Variants, concurrency limits, changes and updates of running endpoints, with two gateways and real processes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from standby.bus.connection import Bus
from standby.bus.settings import BusSettings
from standby.bus.tables_set import Tables, open_tables
from standby.domain.endpoint import Endpoint, EndpointConfig, EndpointStatus, ScalePolicy, Variant, VariantCapacity
from support.deployment import PARIS, QUESTION, Deployment, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAYS = 2
TENANT = "000000000000"
# Over two seconds for an answer: all of a burst come before the first of them has ended.
SLOW = {"token_delay_ms": 400}


@dataclass
class Records:
    """The endpoints' records, written as the gateways' operations write them."""

    there: Deployment
    tables: Tables

    async def endpoint(self, name: str) -> Endpoint:
        entry = await self.tables.endpoints.get(f"{TENANT}.{name}")
        assert entry is not None
        return entry.value

    async def change(self, name: str, **changes: object) -> None:
        entry = await self.tables.endpoints.get(f"{TENANT}.{name}")
        assert entry is not None
        await self.tables.endpoints.update(entry.key, entry.value.model_copy(update=changes), entry.revision)

    async def update(self, name: str, *variants: Variant) -> str:
        """Begin an update to a config of these variants; return the config's name."""
        config = EndpointConfig(tenant=TENANT, name=f"{name}-next", variants=variants, created_at=time.time())
        await self.tables.endpoint_configs.put(f"{TENANT}.{config.name}", config)
        await self.change(name, status=EndpointStatus.UPDATING, pending_config=config.name)
        return config.name

    async def settled(self, name: str) -> Endpoint:
        """Wait until no update is under way."""

        async def reached() -> Endpoint | None:
            endpoint = await self.endpoint(name)
            return endpoint if endpoint.pending_config is None else None

        found: Endpoint = await self.there.until(reached, f"the update of {name} ends")
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def records(there: Deployment) -> AsyncIterator[Records]:
    nats = there.stack.nats
    assert nats is not None
    bus = await Bus.connect(BusSettings(nats_url=nats.url, nats_user=nats.user, nats_password=nats.password), name="test")
    yield Records(there, await open_tables(bus))
    await bus.close()


async def variants(there: Deployment, name: str, *wanted: Mapping[str, Any]) -> None:
    """Create an endpoint of several variants, known to both gateways."""
    await there.api("POST", "/endpoints", {"name": name, "variants": list(wanted)})
    await there.until(lambda: there.knows(name, 1), f"gateway 1 knows {name}")


async def model(there: Deployment, name: str, **knobs: str | float | bool) -> str:
    """Register a model of the fake engine by way of an endpoint that nobody asks, and return the model's name."""
    await there.endpoint(f"{name}-holder", knobs={**knobs, "text": name})
    shown = await there.show(f"{name}-holder")
    return str(shown["variants"][0]["model"])


async def burst(there: Deployment, endpoint: str, count: int) -> list[httpx.Response]:
    """Ask ``count`` times at once, through both gateways in turn."""
    return list(await asyncio.gather(*(there.chat(endpoint, gateway=number % GATEWAYS) for number in range(count))))


def verdicts(answers: list[httpx.Response]) -> Counter[int | str]:
    return Counter(answer.status_code if answer.status_code == 200 else answer.json()["error"]["code"] for answer in answers)


async def test_over_two_gateways_exactly_as_many_run_as_the_limit_allows(there: Deployment, records: Records) -> None:
    """Cold and warm: what is beyond the limit is told at once, nothing is queued, and a change holds soon."""
    slow = await model(there, "slow", **SLOW)
    await there.api(
        "POST",
        "/endpoints",
        {"name": "limited", "model": slow, "concurrency_limit": 3, "policy": {"slots": 3, "max_cold_wait": 20}},
    )
    await there.until(lambda: there.knows("limited", 1), "gateway 1 knows limited")
    assert verdicts(await burst(there, "limited", 9)) == {200: 3, "throttled": 6}
    assert verdicts(await burst(there, "limited", 9)) == {200: 3, "throttled": 6}
    for limit in (2, 5):
        await records.change("limited", capacities={"AllTraffic": VariantCapacity(concurrency_limit=limit)})
        await there.until(lambda limit=limit: exactly(there, "limited", limit), f"{limit} of ten are let in")  # type: ignore[misc]
    assert (await there.stats("limited"))["peak"] == 5
    await there.became("limited", "ready")
    assert there.spawns("limited") == 1
    await there.until_total("standby_in_flight", "limited", 0)


async def exactly(there: Deployment, endpoint: str, limit: int) -> bool:
    """Whether so many of ten at once are let in, and the others told that it is full."""
    return verdicts(await burst(there, endpoint, 10)) == {200: limit, "throttled": 10 - limit}


async def test_requests_are_shared_by_weight_and_reach_the_named_variant(there: Deployment, records: Records) -> None:
    names = {name: await model(there, f"share-{name}") for name in ("a", "b", "c")}
    await variants(
        there,
        "shared",
        {"name": "a", "model": names["a"], "weight": 3},
        {"name": "b", "model": names["b"], "weight": 1},
        {"name": "c", "model": names["c"], "weight": 0},
    )
    for gateway in range(GATEWAYS):
        answers = [await there.invoke("shared", gateway=gateway) for _ in range(8)]
        assert Counter(a.headers["x-amzn-invoked-production-variant"] for a in answers) == {"a": 6, "b": 2}
    assert {item["variant"] for item in (await there.show("shared"))["instances"]} == {"a", "b"}
    named = await there.call(
        "POST",
        "/endpoints/shared/invocations",
        json={"messages": QUESTION},
        headers={"x-amzn-sagemaker-target-variant": "c"},
    )
    assert named.headers["x-amzn-invoked-production-variant"] == "c", named.text
    assert "share-c" in named.text
    await records.change("shared", capacities={"a": VariantCapacity(weight=0), "c": VariantCapacity(weight=1)})
    await there.until(lambda: _weights(there, "shared", {"b": 2, "c": 2}), "the new weights hold")
    unknown = await there.call(
        "POST",
        "/endpoints/shared/invocations",
        json={"messages": QUESTION},
        headers={"x-amzn-sagemaker-target-variant": "d"},
    )
    assert unknown.status_code == 400


async def _weights(there: Deployment, endpoint: str, expected: Mapping[str, int]) -> bool:
    answers = [await there.invoke(endpoint, gateway=1) for _ in range(sum(expected.values()))]
    return Counter(answer.headers["x-amzn-invoked-production-variant"] for answer in answers) == expected


@dataclass
class Load:
    """Callers that ask one after the other until they are told to stop; none may ever get anything but an answer."""

    there: Deployment
    endpoint: str
    answers: Counter[str]
    stopping: bool = False

    async def caller(self, number: int) -> None:
        while not self.stopping:
            answer = await self.there.chat(self.endpoint, gateway=number % GATEWAYS)
            self.answers[text_of(answer)] += 1


@pytest.mark.parametrize("renamed", [False, True], ids=["same variant", "other variant"])
async def test_an_update_under_load_fails_nobody(there: Deployment, records: Records, *, renamed: bool) -> None:
    name = f"moving-{'renamed' if renamed else 'same'}"
    old = await model(there, f"{name}-old", token_delay_ms=5)
    new = await model(there, f"{name}-new", token_delay_ms=5, start_delay_s=0.5)
    await there.api("POST", "/endpoints", {"name": name, "model": old, "policy": {"slots": 4}})
    await there.until(lambda: there.knows(name, 1), f"gateway 1 knows {name}")
    await there.warm(name)
    load = Load(there, name, Counter())
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(load.caller(number))
        await there.until(_grown(load, f"{name}-old", 1), "the old model answers")
        variant = "next" if renamed else "AllTraffic"
        config = await records.update(name, Variant(name=variant, model=new, policy=ScalePolicy(slots=4)))
        settled = await records.settled(name)
        before = load.answers[f"{name}-new"]
        await there.until(_grown(load, f"{name}-new", before + 8), "the new model answers")
        await there.until(lambda: _one_instance(there, name, variant), "the old instance is gone")
        load.stopping = True
    assert (settled.config, settled.status, settled.update_failure) == (config, EndpointStatus.IN_SERVICE, None)
    assert set(load.answers) == {f"{name}-old", f"{name}-new"}


def _grown(load: Load, text: str, count: int) -> Any:
    async def reached() -> bool:
        return load.answers[text] >= count

    return reached


async def _one_instance(there: Deployment, name: str, variant: str) -> bool:
    return [item["variant"] for item in (await there.show(name))["instances"]] == [variant]


async def test_an_update_whose_engine_does_not_start_is_rolled_back_and_nobody_notices(
    there: Deployment, records: Records
) -> None:
    old = await model(there, "stays", token_delay_ms=5)
    broken = await model(there, "broken", fail_start=3)
    await there.api("POST", "/endpoints", {"name": "steady", "model": old, "policy": {"slots": 4}})
    await there.until(lambda: there.knows("steady", 1), "gateway 1 knows steady")
    await there.warm("steady")
    load = Load(there, "steady", Counter())
    async with asyncio.TaskGroup() as group:
        for number in range(2):
            group.create_task(load.caller(number))
        await there.until(_grown(load, "stays", 1), "it answers")
        await records.update("steady", Variant(model=broken, policy=ScalePolicy(slots=4)))
        settled = await records.settled("steady")
        load.stopping = True
    assert (settled.config, settled.status) == ("steady-1", EndpointStatus.IN_SERVICE)
    assert settled.update_failure is not None
    assert "code 3" in settled.update_failure.reason
    assert set(load.answers) == {"stays"}
    await there.until(lambda: _one_instance(there, "steady", "AllTraffic"), "what failed is gone")


async def test_provisioned_capacity_comes_and_goes_without_a_restart(there: Deployment, records: Records) -> None:
    await there.endpoint("kept", keep_ready="200ms", keep_asleep="1h")
    await records.change("kept", capacities={"AllTraffic": VariantCapacity(min_ready=1)})
    await there.until_state("kept", "ready")
    assert text_of(await there.chat("kept")) == PARIS
    await records.change("kept", capacities={})
    await there.until_state("kept", "asleep")
    await records.change("kept", capacities={"AllTraffic": VariantCapacity(min_ready=1)})
    await there.until_state("kept", "ready")
    await there.became("kept", "ready", 2)
    assert there.spawns("kept") == 1
