"""InvokeEndpoint as AWS's unmodified client sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from botocore.exceptions import ClientError, ReadTimeoutError

from support.gateway_rig import wake
from support.runtime_answers import ANSWER, MIB, attempts, good
from support.runtime_rig import QUESTION, RuntimeRig, runtime_rig
from support.signed import TENANT
from support.upstream import Call, until_gone
from support.waiting import until


@pytest_asyncio.fixture
async def there() -> AsyncIterator[RuntimeRig]:
    async with runtime_rig() as rig:
        rig.answers(good)
        yield rig


# ---- InvokeEndpoint (checks 16 to 20, 22) ------------------------------------------------------------------------------


@pytest.mark.check(16)
async def test_an_answer_has_what_the_model_of_the_operation_has(there: RuntimeRig) -> None:
    """Check 16: CustomAttributes are there only where the container has set them."""
    answer = await there.invoke(ContentType="application/json", Accept="application/json", CustomAttributes="a=b")
    assert answer["Body"] == ANSWER
    assert answer["ContentType"] == "application/json"
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    assert "CustomAttributes" not in answer
    assert answer["ResponseMetadata"]["RequestId"]
    seen = there.asked[0].headers
    assert seen["x-amzn-sagemaker-custom-attributes"] == "a=b"
    assert not [name for name in seen if name.startswith("amz-sdk") or name == "authorization"]

    async def attributed(call: Call) -> None:
        await call.json(200, ANSWER, headers="X-Amzn-SageMaker-Custom-Attributes: trace=1\r\n")

    there.answers(attributed)
    assert (await there.invoke())["CustomAttributes"] == "trace=1"


@pytest.mark.check(17)
async def test_an_unknown_endpoint_is_not_found_in_the_callers_account(there: RuntimeRig) -> None:
    """Check 17, and the same on the streaming operation (field case B47 a)."""
    for ask in (there.invoke, there.stream):
        with pytest.raises(ClientError) as raised:
            await ask(endpoint="x")
        assert raised.value.response["Error"] == {
            "Code": "ValidationError",
            "Message": f"Endpoint x of account {TENANT} not found.",
        }
        assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert raised.value.response["ResponseMetadata"]["RequestId"]
        assert attempts(raised.value) == 1


@pytest.mark.check(18)
@pytest.mark.parametrize("operation", ["invoke", "stream"])
async def test_a_containers_refusal_is_a_model_error(there: RuntimeRig, operation: str) -> None:
    """Check 18 and field case B47 b."""

    async def refuses(call: Call) -> None:
        await call.json(400, b'{"error": {"message": "max_tokens is too large"}}')

    there.answers(refuses)
    with pytest.raises(ClientError) as raised:
        await getattr(there, operation)()
    told = raised.value.response
    assert told["Error"]["Code"] == "ModelError"
    assert told["ResponseMetadata"]["HTTPStatusCode"] == 424
    assert told["OriginalStatusCode"] == 400
    assert told["OriginalMessage"] == '{"error": {"message": "max_tokens is too large"}}'
    assert told["LogStreamArn"] == f"arn:aws:logs:us-east-1:{TENANT}:log-group:/aws/sagemaker/Endpoints/e"
    assert 'Received client error (400) from primary with message "' in told["Error"]["Message"]
    assert attempts(raised.value) == 1
    assert len(there.asked) == 1
    await until(lambda: there.gateway.accounts.outcomes == ["engine_4xx"])


@pytest.mark.check(19)
async def test_beyond_max_concurrency_is_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check 19: the SDK asks three times and gives up; what it asked was never run, nor counted as served."""
    async with runtime_rig(concurrency_limit=4) as there:
        release = asyncio.Event()

        async def slow(call: Call) -> None:
            await release.wait()
            await call.json(200, ANSWER)

        there.answers(slow)
        client = there.client()
        running = [asyncio.create_task(there.invoke(client=client)) for _ in range(4)]
        await until(lambda: len(there.asked) == 4)
        with pytest.raises(ClientError) as raised:
            await there.invoke()
        assert raised.value.response["Error"]["Code"] == "ThrottlingException"
        assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert attempts(raised.value) == 3
        release.set()
        assert [answer["Body"] for answer in await asyncio.gather(*running)] == [ANSWER] * 4
        await until(lambda: sorted(there.gateway.accounts.outcomes) == ["ok"] * 4 + ["throttled"] * 3)
        assert len(there.asked) == 4


@pytest.mark.check(20)
async def test_a_wait_at_zero_that_is_too_long_is_not_ready() -> None:
    """Check 20: the plain operation is not repeated, the streaming one is, and a later call is served."""
    async with runtime_rig(awake=False, max_cold_wait=0.2) as there:
        there.answers(good)
        with pytest.raises(ClientError) as raised:
            await there.invoke()
        assert raised.value.response["Error"]["Code"] == "ModelNotReadyException"
        assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429
        assert raised.value.response["ResponseMetadata"]["HTTPHeaders"]["x-amz-retry-after"] == "1000"
        assert attempts(raised.value) == 1
        with pytest.raises(ClientError) as raised:
            await there.stream()
        assert raised.value.response["Error"]["Code"] == "ModelNotReadyException"
        assert attempts(raised.value) == 3
        wake(there.gateway.desk, there.engine)
        assert (await there.invoke())["Body"] == ANSWER
        assert len(there.asked) == 1


@pytest.mark.check(22)
async def test_a_serverless_body_has_four_mib() -> None:
    """Check 22 and field case B49: the message says the size and the limit."""
    async with runtime_rig(concurrency_limit=4) as there:
        there.answers(good)
        whole = json.dumps({"messages": [], "x": ""}).encode()
        padded = whole.replace(b'""', b'"' + b"x" * (4 * MIB - len(whole)) + b'"')
        assert (await there.invoke(padded))["Body"] == ANSWER
        with pytest.raises(ClientError) as raised:
            await there.invoke(padded + b" ")
        assert raised.value.response["Error"]["Code"] == "ValidationError"
        assert str(4 * MIB + 1) in raised.value.response["Error"]["Message"]
        assert str(4 * MIB) in raised.value.response["Error"]["Message"]


async def test_any_other_body_has_six_mib(there: RuntimeRig) -> None:
    whole = json.dumps({"messages": [], "x": ""}).encode()
    padded = whole.replace(b'""', b'"' + b"x" * (6 * MIB - len(whole)) + b'"')
    assert (await there.invoke(padded))["Body"] == ANSWER
    for ask in (there.invoke, there.stream):
        with pytest.raises(ClientError) as raised:
            await ask(padded + b" ")
        assert raised.value.response["Error"]["Code"] == "ValidationError"
        assert str(6 * MIB) in raised.value.response["Error"]["Message"]
        assert attempts(raised.value) == 1


async def test_an_answer_above_the_limit_is_a_model_error() -> None:
    async with runtime_rig(concurrency_limit=4) as there:

        async def large(call: Call) -> None:
            await call.json(200, b"x" * (4 * MIB + 1))

        there.answers(large)
        with pytest.raises(ClientError, match="larger than the limit of 4194304 bytes"):
            await there.invoke()
        there.answers(good)
        assert (await there.invoke())["Body"] == ANSWER


@pytest.mark.parametrize("operation", ["invoke", "stream"])
async def test_a_model_that_does_not_answer_in_time(operation: str) -> None:
    """AWS's words; not repeated by the SDK, and the engine is free again."""
    async with runtime_rig(invocation_limit_s=2.0) as there:
        there.answers(until_gone)
        with pytest.raises(ClientError) as raised:
            await getattr(there, operation)()
        told = raised.value.response
        assert (told["Error"]["Code"], told["OriginalStatusCode"]) == ("ModelError", 0)
        assert "Your invocation timed out while waiting for a response from container primary" in told["Error"]["Message"]
        assert attempts(raised.value) == 1
        await there.asked[0].gone.wait()
        await until(lambda: there.gateway.accounts.outcomes == ["invocation_timeout"])
        await there.engine.idle()


@pytest.mark.parametrize(
    ("body", "content_type", "status", "word"),
    [
        (b"1,2,3", "text/csv", 415, "text/csv"),
        (b"\x93NUMPY", "application/x-npy", 415, "application/x-npy"),
        (b"{", "application/json", 400, "not JSON"),
        (b"[1]", "application/json", 400, "list"),
        (b'{"question": 1}', "application/json", 400, "none of"),
    ],
)
async def test_a_body_that_the_model_cannot_read(
    there: RuntimeRig, body: bytes, content_type: str, status: int, word: str
) -> None:
    """What a container would say: the service itself does not look into bodies."""
    with pytest.raises(ClientError) as raised:
        await there.invoke(body, ContentType=content_type)
    told = raised.value.response
    assert (told["Error"]["Code"], told["OriginalStatusCode"]) == ("ModelError", status)
    assert word in told["OriginalMessage"]
    assert there.asked == []


@pytest.mark.parametrize(
    ("wish", "words_of_it"),
    [
        ({"TargetModel": "m.tar.gz"}, "is not a multi-model endpoint"),
        ({"TargetContainerHostname": "c"}, "is not a multi-container endpoint"),
        ({"TargetVariant": "Nobody"}, "no such variant"),
        ({"InferenceComponentName": "c"}, "Inference Component Name header is not allowed"),
        ({"CustomAttributes": "x" * 1025}, "1024"),
        ({"InferenceId": "x" * 65}, "64"),
    ],
)
async def test_wishes_that_are_refused(there: RuntimeRig, wish: dict[str, Any], words_of_it: str) -> None:
    with pytest.raises(ClientError) as raised:
        await there.invoke(**wish)
    assert raised.value.response["Error"]["Code"] == "ValidationError"
    assert words_of_it in raised.value.response["Error"]["Message"]
    assert there.asked == []


async def test_wishes_that_are_granted(there: RuntimeRig) -> None:
    answer = await there.invoke(
        TargetVariant="AllTraffic", CustomAttributes="x" * 1024, InferenceId="i", SessionId="NEW_SESSION"
    )
    assert answer["Body"] == ANSWER
    assert "; Expires=" in answer["NewSessionId"]
    assert there.asked[0].headers["x-amzn-sagemaker-inference-id"] == "i"


# ---- retries (field case B46) ------------------------------------------------------------------------------------------


async def test_a_retry_joins_the_run_that_it_repeats(there: RuntimeRig) -> None:
    """The client gives up and asks again, and again; the engine is asked once, and the last attempt has the answer."""
    release = asyncio.Event()

    async def slow(call: Call) -> None:
        await release.wait()
        await call.json(200, ANSWER)

    there.answers(slow)
    client = there.client(read_timeout=3)
    asking = asyncio.create_task(there.invoke(client=client))
    await until(lambda: "joined" in there.gateway.accounts.outcomes)
    release.set()
    assert (await asking)["Body"] == ANSWER
    assert len(there.asked) == 1
    await until(lambda: there.gateway.accounts.outcomes.count("ok") == 1)
    assert set(there.gateway.accounts.outcomes) == {"joined", "ok"}
    await until(lambda: there.gateway.plane.runs.running == 0)


async def test_a_retry_after_the_run_has_ended_gets_what_came_out_of_it() -> None:
    """The run ends between two attempts of its client."""
    async with runtime_rig() as there:
        release = asyncio.Event()

        async def slow(call: Call) -> None:
            await release.wait()
            await call.json(200, ANSWER)

        there.answers(slow)
        first = await there.gateway.connect()
        sdk = there.gateway.headers(**{"amz-sdk-invocation-id": "7", "amz-sdk-request": "attempt=1"})
        first.send("POST", "/endpoints/e/invocations", sdk, QUESTION)
        await until(lambda: len(there.asked) == 1)
        first.abort()
        (run,) = there.gateway.plane.runs._running.values()
        await until(lambda: run.missed)
        release.set()
        await until(lambda: there.gateway.accounts.outcomes == ["ok"])
        again = await (await there.gateway.connect()).request("POST", "/endpoints/e/invocations", sdk, QUESTION)
        assert (again.status, again.body) == (200, ANSWER)
        other = {**sdk, "amz-sdk-invocation-id": "8"}
        assert (
            await (await there.gateway.connect()).request("POST", "/endpoints/e/invocations", other, QUESTION)
        ).status == 200
        assert len(there.asked) == 2


async def test_a_client_that_gives_up_for_good_frees_the_engine() -> None:
    async with runtime_rig(linger_s=4.0) as there:
        there.answers(until_gone)
        with pytest.raises(ReadTimeoutError):
            await there.invoke(client=there.client(read_timeout=0.5, retries={"total_max_attempts": 2}))
        assert len(there.asked) == 1
        await there.asked[0].gone.wait()
        await there.engine.idle()
        await until(lambda: there.gateway.plane.runs.running == 0)
        await until(lambda: sorted(there.gateway.accounts.outcomes) == ["client_gone", "joined"])


async def test_other_tenants_and_other_bodies_never_join(there: RuntimeRig) -> None:
    answers = []

    async def counted(call: Call) -> None:
        answers.append(call)
        await until(lambda: len(answers) == 2)
        await call.json(200, json.dumps({"length": len(call.body)}).encode())

    there.answers(counted)
    sdk = there.gateway.headers(**{"amz-sdk-invocation-id": "7"})
    one, two = await there.gateway.connect(), await there.gateway.connect()
    one.send("POST", "/endpoints/e/invocations", sdk, QUESTION)
    two.send("POST", "/endpoints/e/invocations", sdk, QUESTION + b" ")
    lengths = [json.loads((await client.answer()).body)["length"] for client in (one, two)]
    assert lengths == [len(QUESTION), len(QUESTION) + 1]
