"""Fifty thousand names that nobody has registered leave the metrics as large as they were."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from prometheus_client import generate_latest

from standby.domain.access import Role
from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.errors import EndpointNotFound, ModelNotFound, VariantNotFound
from standby.gateway import keys
from standby.gateway.accounts import Accounts
from standby.gateway.dataplane import DataPlane
from standby.gateway.desk import AllRooms, Desk, Route
from standby.gateway.relay import OutcomeKind, RelayOutcome, RelayRequest
from standby.telemetry import metrics
from support.asgi import ask
from support.builders import TENANT, an_endpoint, an_instance

REQUESTS = 50_000
PEPPER = b"pepper"
TOKEN = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'


class OneEndpoint:
    """A directory of the endpoint ``e`` of one tenant."""

    def __init__(self) -> None:
        route = Route(an_endpoint(), Variant(model="m", policy=ScalePolicy()))
        self.of_e = Desk(route, AllRooms(0), time.monotonic, time.time, lambda _desk, _urgent: None)
        self.of_e.instance_changed(an_instance(slots=4), seen=0)
        record, self.secret = keys.issue(tenant=TENANT, name="k", role=Role.ADMIN, pepper=PEPPER, now=0.0)
        self.keys = {record.id: record}

    def desk(self, tenant: str, endpoint: str, variant: str | None, _session: object) -> Desk:
        if (tenant, endpoint) != (TENANT, "e"):
            raise EndpointNotFound(f"there is no {endpoint}")
        if variant is not None:
            raise VariantNotFound(f"there is no {variant}")
        return self.of_e

    def desk_serving(self, tenant: str, served_name: str) -> Desk:
        if (tenant, served_name) != (TENANT, "e"):
            raise ModelNotFound(f"there is no {served_name}")
        return self.of_e


class Doors:
    """Doors whose engines answer at once, with a stream of one token."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def relay(
        self, _request: RelayRequest, send: Callable[[dict[str, Any]], Awaitable[None]], *, extra_headers: Sequence[object]
    ) -> RelayOutcome:
        head = [(b"content-type", b"text/event-stream"), *extra_headers]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": TOKEN, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
        return RelayOutcome(OutcomeKind.DONE, 200, len(TOKEN), time.monotonic())


class Junk:
    """What callers send who make up every name that can be made up."""

    def __init__(self, plane: DataPlane, secret: str) -> None:
        self.plane = plane
        self.secret = secret
        self.random = random.Random(58)

    async def ask(self, number: int) -> int:
        """Send one request and return its status."""
        name = f"junk-{self.random.randrange(10**9)}"
        sent = {"model": "e", "user": name, "messages": [], "stream": True}
        headers = {"authorization": f"Bearer {self.secret}", "x-request-id": name, "content-type": "application/json"}
        path = "/v1/chat/completions"
        match number % 6:
            case 0:
                sent["model"] = name
            case 1:
                path = f"/endpoints/{name}/invocations"
            case 2:
                path, headers["x-amzn-sagemaker-target-variant"] = "/endpoints/e/invocations", name
            case 3:
                headers["x-standby-tenant"] = name
            case 4:
                headers["authorization"] = f"Bearer {name}"
        answer = await ask(self.plane, path, headers=headers.items(), body=json.dumps(sent).encode())
        return answer.status


async def test_fifty_thousand_junk_names_make_no_series() -> None:
    """Field case B58: models, paths, tenants, keys and users; every sixth request is served."""
    directory, accounts = OneEndpoint(), Accounts()
    plane = DataPlane(cast("Any", directory), cast("Any", Doors()), accounts, "token", PEPPER, 10**6, time.monotonic, time.time)
    junk = Junk(plane, directory.secret)

    def told() -> list[str]:
        accounts.refresh([directory.of_e], {(TENANT, "e"): 4})
        return sorted(line.rpartition(" ")[0] for line in generate_latest(metrics.GATEWAY).decode().splitlines())

    statuses = [await junk.ask(number) for number in range(12)]
    assert set(statuses) >= {200, 401, 404}
    before = told()
    for number in range(REQUESTS):
        await junk.ask(number)
    assert told() == before
    assert not any("junk" in line for line in before)
    assert directory.of_e.in_flight == directory.of_e.granted == 0
