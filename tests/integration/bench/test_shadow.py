"""Requests that are marked as tests: served like any other, counted in nothing that anybody pays by."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from botocore.awsrequest import AWSRequest

from standby.domain.access import Role, Scope, may_shadow
from standby.gateway import keys
from standby.gateway.accounts import Accounts
from standby.telemetry import metrics
from support.gateway_rig import PEPPER
from support.raw_http import RawAnswer
from support.runtime_rig import RuntimeRig, runtime_rig
from support.signed import TENANT
from support.upstream import Call
from support.waiting import until

CHAT = "/v1/chat/completions"
OPENAI = "/endpoints/e/openai/v1/chat/completions"
INVOKE = "/endpoints/e/invocations"
STREAM = "/endpoints/e/invocations-response-stream"
SHADOW = "standby_shadow_requests_total"
# What is counted of one answered request, among others.
PAID = {
    "standby_requests_total",
    "standby_prompt_tokens_total",
    "standby_completion_tokens_total",
    "standby_billed_requests_total",
    "standby_aws_Invocations_total",
}


async def counted(call: Call) -> None:
    """Answer with tokens that are counted, as a stream or whole."""
    body = json.loads(call.body)
    usage = {"prompt_tokens": 11, "completion_tokens": 7}
    if not body.get("stream"):
        content = {"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}], "usage": usage}
        await call.json(200, json.dumps(content).encode())
        return
    await call.begin_stream()
    token = {"choices": [{"delta": {"content": "Paris"}, "finish_reason": "stop"}]}
    for event in (token, {"choices": [], "usage": usage}):
        await call.chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
    await call.chunk(b"data: [DONE]\n\n")
    await call.end_stream()


@pytest.fixture
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[RuntimeRig]:
    """A gateway whose accounts are real; parametrized by the setting that lets tenants mark requests."""
    async with runtime_rig(shadow_by_tenants=getattr(request, "param", False)) as there:
        there.gateway.plane.dispatcher.accounts = there.gateway.plane.accounts = Accounts()
        there.answers(counted)
        yield there


def key_of(rig: RuntimeRig, role: Role, scopes: tuple[Scope, ...] = (Scope.CONTROL, Scope.INVOKE)) -> str:
    record, secret = keys.issue(tenant=TENANT, name="k", pepper=PEPPER, now=0.0, role=role, scopes=scopes)
    rig.gateway.plane.directory.keys[record.id] = record  # type: ignore[index] # the rig's directory has a plain dict
    return secret


async def ask(rig: RuntimeRig, path: str, key: str, *, stream: bool = False, shadow: str | None = "1") -> RawAnswer:
    body = {"model": "e", "messages": [{"role": "user", "content": "?"}], **({"stream": True} if stream else {})}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    if shadow is not None:
        headers["x-standby-shadow"] = shadow
    return await post(rig, path, headers, json.dumps(body).encode())


async def post(rig: RuntimeRig, path: str, headers: dict[str, str], body: bytes) -> RawAnswer:
    client = await rig.gateway.connect()
    try:
        return await client.request("POST", path, headers, body)
    finally:
        await client.close()


def figures(rig: RuntimeRig) -> dict[tuple[str, str], float]:
    """Every counter and sum of every metric, as somebody who scrapes sees them."""
    rig.gateway.plane.accounts.settle()
    return {
        (sample.name, str(sorted(sample.labels.items()))): sample.value
        for family in metrics.REGISTRY.collect()
        if family.type in ("counter", "histogram", "summary")
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@asynccontextmanager
async def what_changes(rig: RuntimeRig) -> AsyncIterator[set[str]]:
    """Yield a set that holds, at the end, the names of all figures of the tenant or of nobody that have changed meanwhile."""
    before, changed = figures(rig), set[str]()
    yield changed
    await until(lambda: rig.gateway.desk.in_flight == 0)
    after = figures(rig)
    changed |= {name for name, labels in after if after[name, labels] != before.get((name, labels), 0.0)}


def told(answer: RawAnswer) -> str | None:
    headers: Mapping[str, str] = answer.headers
    return headers.get("x-standby-shadow")


@pytest.mark.parametrize(("path", "stream"), [(CHAT, False), (CHAT, True), (OPENAI, True), (INVOKE, False), (STREAM, True)])
async def test_a_test_by_an_administrator_leaves_no_trace_in_any_counter(rig: RuntimeRig, path: str, stream: bool) -> None:
    key = key_of(rig, Role.ADMIN)
    async with what_changes(rig) as changed:
        answer = await ask(rig, path, key, stream=stream)
    assert (answer.status, changed) == (200, {SHADOW})
    if path != STREAM:  # whose head goes out by itself
        assert told(answer) == "1"
    assert "x-standby-shadow" not in rig.asked[0].headers


@pytest.mark.parametrize("path", [CHAT, INVOKE])
@pytest.mark.parametrize("mark", [None, "0", ""])
async def test_an_administrator_who_marks_nothing_is_counted(rig: RuntimeRig, path: str, mark: str | None) -> None:
    key = key_of(rig, Role.ADMIN)
    async with what_changes(rig) as changed:
        answer = await ask(rig, path, key, shadow=mark)
    assert (answer.status, told(answer)) == (200, None)
    assert changed >= PAID


@pytest.mark.parametrize("path", [CHAT, OPENAI, INVOKE])
async def test_a_tenant_is_not_served_for_nothing(rig: RuntimeRig, path: str) -> None:
    """The request is served all the same, counted, and the answer says so."""
    key = key_of(rig, Role.TENANT)
    async with what_changes(rig) as changed:
        answer = await ask(rig, path, key)
    assert (answer.status, told(answer)) == (200, "0")
    assert changed >= PAID
    assert SHADOW not in changed


@pytest.mark.parametrize("rig", [True], indirect=True)
async def test_tenants_may_where_the_deployment_lets_them_and_their_key_manages_endpoints(rig: RuntimeRig) -> None:
    async with what_changes(rig) as changed:
        answer = await ask(rig, CHAT, key_of(rig, Role.TENANT))
    assert (told(answer), changed) == ("1", {SHADOW})
    async with what_changes(rig) as changed:
        answer = await ask(rig, CHAT, key_of(rig, Role.TENANT, (Scope.INVOKE,)))
    assert told(answer) == "0"
    assert changed >= PAID


@pytest.mark.parametrize(("rig", "free"), [(False, False), (True, True)], indirect=["rig"])
async def test_who_signs_is_a_tenant(rig: RuntimeRig, free: bool) -> None:
    client = rig.client(retries={"total_max_attempts": 1})
    client.meta.events.register("before-sign.sagemaker-runtime.InvokeEndpoint", _mark)
    async with what_changes(rig) as changed:
        answer = await rig.invoke(client=client)
    assert answer["ResponseMetadata"]["HTTPHeaders"].get("x-standby-shadow") == ("1" if free else "0")
    assert (changed == {SHADOW}) is free


def _mark(request: AWSRequest, **_about: object) -> None:
    request.headers["x-standby-shadow"] = "1"


async def test_a_test_that_fails_is_counted_in_no_error_rate(rig: RuntimeRig) -> None:
    async def refusing(call: Call) -> None:
        await call.json(400, b'{"error": {"message": "too long"}}')

    rig.answers(refusing)
    async with what_changes(rig) as changed:
        answer = await ask(rig, INVOKE, key_of(rig, Role.ADMIN))
    assert (answer.status, changed) == (424, {SHADOW})


async def test_a_test_holds_its_place_like_any_other_request() -> None:
    """The limit of an endpoint is one for tests, too: nobody gets more than its limit by calling it a test."""
    async with runtime_rig(concurrency_limit=4) as rig:
        key = key_of(rig, Role.ADMIN)
        release = asyncio.Event()

        async def slow(call: Call) -> None:
            await release.wait()
            await counted(call)

        rig.answers(slow)
        running = [asyncio.create_task(ask(rig, INVOKE, key)) for _ in range(4)]
        await until(lambda: len(rig.asked) == 4)
        beyond = await ask(rig, INVOKE, key)
        release.set()
        assert (beyond.status, beyond.headers["x-amzn-errortype"].split(":")[0]) == (400, "ThrottlingException")
        assert [answer.status for answer in await asyncio.gather(*running)] == [200] * 4


@pytest.mark.parametrize(
    ("admin", "scopes", "by_tenants", "may"),
    [
        (True, (Scope.INVOKE,), False, True),
        (False, (Scope.CONTROL, Scope.INVOKE), False, False),
        (False, (Scope.CONTROL, Scope.INVOKE), True, True),
        (False, (Scope.INVOKE,), True, False),
    ],
)
def test_who_may(admin: bool, scopes: tuple[Scope, ...], by_tenants: bool, may: bool) -> None:
    assert may_shadow(admin=admin, scopes=scopes, by_tenants=by_tenants) is may
