"""What a request wishes for beside its answer: a priority, an adapter."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from standby.domain.priority import Priority
from support.builders import an_instance
from support.door_rig import INSTANCE, SLOTS, Rig
from support.gateway_rig import GatewayRig, gateway_rig
from support.raw_http import RawAnswer
from support.waiting import until

CHAT = "/v1/chat/completions"
INVOKE = "/endpoints/e/invocations"
ROUTES = [CHAT, INVOKE, "/endpoints/e/openai/v1/chat/completions", "/endpoints/e/invocations-response-stream"]


@pytest_asyncio.fixture
async def gateway(rig: Rig) -> AsyncIterator[GatewayRig]:
    async with gateway_rig(rig) as made:
        yield made


async def asked(gateway: GatewayRig, path: str, model: str = "e", **headers: str) -> RawAnswer:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "?"}]}
    client = await gateway.connect()
    answer = await client.request("POST", path, gateway.headers(**headers), json.dumps(body).encode())
    await until(lambda: gateway.desk.in_flight == 0)
    return answer


def priority(gateway: GatewayRig) -> Priority:
    """That of the last request."""
    (trace,) = gateway.plane.dispatcher.traces.last(gateway.desk.route.endpoint.tenant, None, 1)
    return trace.priority


def key_has(gateway: GatewayRig, own: Priority) -> None:
    """Give the caller's key a priority."""
    keys = gateway.plane.directory.keys
    assert isinstance(keys, dict)
    for identity, key in tuple(keys.items()):
        keys[identity] = key.model_copy(update={"priority": own})


@pytest.mark.parametrize("path", ROUTES)
async def test_the_four_priorities(gateway: GatewayRig, path: str) -> None:
    for wished in Priority:
        assert (await asked(gateway, path, **{"x-standby-priority": wished.value})).status == 200
        assert priority(gateway) is wished
    await asked(gateway, path)
    assert priority(gateway) is Priority.NORMAL


@pytest.mark.parametrize("path", ROUTES)
async def test_a_key_bounds_them(gateway: GatewayRig, path: str) -> None:
    key_has(gateway, Priority.BATCH)
    await asked(gateway, path, **{"x-standby-priority": "urgent"})
    assert priority(gateway) is Priority.BATCH


@pytest.mark.parametrize("path", ROUTES)
async def test_another_word_is_refused(gateway: GatewayRig, path: str) -> None:
    answer = await asked(gateway, path, **{"x-standby-priority": "asap"})
    assert answer.status == 400
    assert all(word in answer.body.decode() for word in ("asap", *Priority))
    assert not gateway.behind.engine.calls


@pytest.mark.parametrize("path", ROUTES)
async def test_an_adapter_is_asked_for_by_its_own_name(gateway: GatewayRig, path: str) -> None:
    served = gateway.desk.route.endpoint.served_name
    host, port = gateway.behind.address
    loaded = an_instance(id=INSTANCE, slots=SLOTS, epoch=7, door=f"{host}:{port}", adapters=("fr",))
    gateway.desk.instance_changed(loaded, seen=0)
    assert (await asked(gateway, path, f"{served}:fr")).status == 200
    assert json.loads(gateway.behind.engine.calls[0].body)["model"] == "fr"


@pytest.mark.parametrize("name", ["x:fr", "e:", ":fr", "x"])
async def test_no_such_model(gateway: GatewayRig, name: str) -> None:
    assert (await asked(gateway, CHAT, name)).status == 404
