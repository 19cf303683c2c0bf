"""InvokeEndpointWithResponseStream and the containers' contract as AWS's unmodified client sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from botocore.exceptions import ClientError, EventStreamError

from standby.domain.aws import AwsKind
from support.gateway_rig import wake
from support.runtime_answers import dies, good, streaming, words
from support.runtime_rig import QUESTION, RuntimeRig, runtime_rig
from support.upstream import Call
from support.waiting import until


@pytest_asyncio.fixture
async def there() -> AsyncIterator[RuntimeRig]:
    async with runtime_rig() as rig:
        rig.answers(good)
        yield rig


# ---- InvokeEndpointWithResponseStream (check 21, field case B47) ---------------------------------------------------------


@pytest.mark.check(21)
async def test_a_streams_bytes_are_the_containers(there: RuntimeRig) -> None:
    """Check 21."""
    there.answers(streaming)
    answer, parts = await there.stream(ContentType="application/json", Accept="text/event-stream", CustomAttributes="a=b")
    assert b"".join(parts) == b"data: 0\n\ndata: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
    assert answer["ContentType"] == "text/event-stream"
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    seen = there.asked[0].headers
    assert (seen["accept"], seen["x-amzn-sagemaker-custom-attributes"]) == ("text/event-stream", "a=b")


@pytest.mark.check(21)
async def test_the_first_part_does_not_wait_for_the_second(there: RuntimeRig) -> None:
    """Check 21: each piece is a frame of its own, at once."""
    release = asyncio.Event()

    async def held(call: Call) -> None:
        await call.begin_stream()
        await call.chunk(b"data: first\n\n")
        await release.wait()
        await call.end_stream()

    there.answers(held)
    seen: list[bytes] = []
    asking = asyncio.create_task(there.stream(seen=seen))
    await until(lambda: there.asked)
    client = await there.gateway.connect()
    client.send("POST", "/endpoints/e/invocations-response-stream", there.gateway.headers(), QUESTION)
    data = b""
    while b"data: first" not in data:
        data += await client.reader.read(4096)
    assert b"application/vnd.amazon.eventstream" in data
    release.set()
    assert (await asking)[1] == [b"data: first\n\n"]


@pytest.mark.check(21)
async def test_an_engine_that_dies_in_the_middle_raises_at_the_client(there: RuntimeRig) -> None:
    """Check 21 and field case B47 c: without the exception frame, the SDK reports success."""
    there.answers(dies)
    seen: list[bytes] = []
    with pytest.raises(EventStreamError) as raised:
        await there.stream(seen=seen)
    assert raised.value.response["Error"]["Code"] == "ModelStreamError"
    assert "broke off in its middle" in raised.value.response["Error"]["Message"]
    assert b"".join(seen).strip() == b"data: 0\n\ndata: 1\n\ndata: 2", "the engine's own bytes and no more"
    await until(lambda: there.gateway.accounts.outcomes == ["broken_stream"])


async def test_an_answer_that_is_no_event_stream_breaks_off_honestly(there: RuntimeRig) -> None:
    """A body with a length, cut in its middle: neither door nor relay has an event for that."""

    async def cut(call: Call) -> None:
        await call.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n" + b"x" * 50)
        call.close()

    there.answers(cut)
    with pytest.raises(EventStreamError, match="ModelStreamError"):
        await there.stream()
    with pytest.raises(ClientError, match="ModelError"):
        await there.invoke()


async def test_a_gateways_end_is_told_to_open_streams() -> None:
    """Field cases B47 d and B29."""
    async with runtime_rig(grace_s=1) as there:

        async def held(call: Call) -> None:
            await call.begin_stream()
            await call.chunk(b"data: first\n\n")

        there.answers(held)
        seen: list[bytes] = []
        asking = asyncio.create_task(there.stream(seen=seen))
        await until(lambda: seen)
        there.gateway.server.should_exit = True
        with pytest.raises(EventStreamError, match="the gateway is shutting down"):
            await asking


async def test_a_stream_that_takes_too_long() -> None:
    async with runtime_rig(stream_limit_s=2.0) as there:

        async def held(call: Call) -> None:
            await call.begin_stream()
            await call.chunk(b"data: first\n\n")
            await call.gone.wait()

        there.answers(held)
        client = await there.gateway.connect()
        body = json.dumps({"messages": [], "stream": True}).encode()
        answer = await client.request("POST", "/endpoints/e/invocations-response-stream", there.gateway.headers(), body)
        assert answer.complete
        assert b"ModelStreamError" in answer.body
        assert b"ModelInvocationTimeExceeded" in answer.body
        await there.engine.idle()


async def test_a_caller_who_leaves_a_stream_frees_the_engine(there: RuntimeRig) -> None:
    async def held(call: Call) -> None:
        await call.begin_stream()
        await call.chunk(b"data: first\n\n")
        await call.gone.wait()

    there.answers(held)
    client = await there.gateway.connect()
    client.send("POST", "/endpoints/e/invocations-response-stream", there.gateway.headers(), QUESTION)
    await client.reader.readuntil(b"first")
    client.abort()
    await there.engine.begun(1)
    await there.asked[0].gone.wait()
    await until(lambda: there.gateway.accounts.outcomes == ["client_gone"])


async def test_heartbeats_keep_a_cold_start_alive() -> None:
    """Asked for by the endpoint's tag: the head comes at once, empty parts while nothing is there yet, then the answer."""
    async with runtime_rig(awake=False) as there:
        there.answers(streaming)
        there.declare(AwsKind.ENDPOINT, "e", tags={"standby:heartbeat": "100ms"})
        seen: list[bytes] = []
        client = there.client()
        arrived = asyncio.Event()
        loop = asyncio.get_running_loop()

        def read() -> None:
            for event in client.invoke_endpoint_with_response_stream(EndpointName="e", Body=QUESTION)["Body"]:
                seen.append(event["PayloadPart"]["Bytes"])
                loop.call_soon_threadsafe(arrived.set)

        reading = asyncio.create_task(asyncio.to_thread(read))
        await arrived.wait()
        await until(lambda: len(seen) >= 3)
        assert set(seen) == {b""}
        wake(there.gateway.desk, there.engine)
        await reading
        assert b"".join(seen) == b"data: 0\n\ndata: 1\n\ndata: 2\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize(
    ("max_cold_wait", "awake", "kind"), [(0.2, False, "InternalStreamFailure"), (20.0, True, "ModelStreamError")]
)
async def test_after_a_heartbeat_errors_ride_in_the_stream(max_cold_wait: float, awake: bool, kind: str) -> None:
    async with runtime_rig(awake=awake, max_cold_wait=max_cold_wait) as there:

        async def refuses(call: Call) -> None:
            await call.json(400, b"no")

        there.answers(refuses)
        there.declare(AwsKind.ENDPOINT, "e", tags={"standby:heartbeat": "1"})
        with pytest.raises(EventStreamError, match=kind):
            await there.stream()


# ---- the containers' contract ------------------------------------------------------------------------------------------


async def test_inputs_are_answered_as_lmi_and_as_tgi_do(there: RuntimeRig) -> None:
    there.answers(words)
    inputs = b'{"inputs": "Once", "parameters": {"max_new_tokens": 4}}'
    assert json.loads((await there.invoke(inputs))["Body"]) == {"generated_text": " upon"}
    there.declare(AwsKind.MODEL, "m", request={"PrimaryContainer": {"Environment": {"STANDBY_OUTPUT": "tgi"}}})
    assert json.loads((await there.invoke(inputs))["Body"]) == [{"generated_text": " upon"}]
    _, parts = await there.stream(inputs)
    assert json.loads(b"".join(parts)) == [{"generated_text": " upon"}]


@pytest.mark.parametrize("operation", ["invoke", "stream"])
async def test_streamed_inputs_are_lmis_lines_by_default(there: RuntimeRig, operation: str) -> None:
    there.answers(words)
    inputs = b'{"inputs": "Once", "stream": true}'
    if operation == "invoke":
        answer = await there.invoke(inputs)
        body = answer["Body"]
    else:
        answer, parts = await there.stream(inputs)
        body = b"".join(parts)
    assert answer["ContentType"] == "application/jsonlines"
    lines = [json.loads(line) for line in body.splitlines()]
    assert [line["token"]["text"] for line in lines] == [" upon", " a time", ""]
    assert lines[-1]["generated_text"] == " upon a time"


async def test_streamed_inputs_are_tgis_events_where_they_are_asked_for(there: RuntimeRig) -> None:
    there.answers(words)
    answer, parts = await there.stream(b'{"inputs": "Once", "stream": true}', Accept="text/event-stream")
    assert answer["ContentType"] == "text/event-stream"
    events = b"".join(parts).decode().strip().split("\n\n")
    assert [json.loads(event.removeprefix("data:"))["token"]["text"] for event in events] == [" upon", " a time", ""]


@pytest.mark.parametrize("operation", ["invoke", "stream"])
async def test_streamed_inputs_that_break_off_never_look_whole(there: RuntimeRig, operation: str) -> None:
    async def breaks(call: Call) -> None:
        await call.begin_stream()
        await call.chunk(b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n')
        await call.chunk(b'data: {"error": {"message": "out of memory"}}\n\n')
        await call.end_stream()

    there.answers(breaks)
    inputs = b'{"inputs": "Once", "stream": true}'
    if operation == "stream":
        with pytest.raises(EventStreamError, match="out of memory"):
            await there.stream(inputs)
    else:
        lines = (await there.invoke(inputs))["Body"].splitlines()
        assert json.loads(lines[0])["token"]["text"] == "a"
        assert "out of memory" in json.loads(lines[-1])["error"]
        assert b"generated_text" not in b"".join(lines)
    await until(lambda: there.gateway.accounts.outcomes == ["broken_stream"])
