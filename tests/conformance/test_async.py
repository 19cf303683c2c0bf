"""InvokeEndpointAsync as AWS's unmodified client sees it: real processes, a real S3 server, the fake engine (check 23)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from botocore.exceptions import ClientError

from standby.bus.connection import Bus
from standby.bus.lanes import Lanes
from standby.domain.async_invocation import AsyncInvocation, pack
from support.async_rig import BODY, BUCKET, TOPICS, AsyncRig, async_rig
from support.deployment import PARIS
from support.gguf_builder import gguf

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER = "222222222222"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AsyncRig]:
    async with async_rig(tmp_path_factory.mktemp("async")) as running:
        yield running


async def refused(rig: AsyncRig, endpoint: str, **request: Any) -> dict[str, Any]:
    with pytest.raises(ClientError) as raised:
        await rig.invoke(endpoint, **request)
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    return dict(raised.value.response["Error"])


async def event_of(rig: AsyncRig, endpoint: str, inference_id: str) -> dict[str, Any]:
    def told() -> list[dict[str, Any]]:
        return [one for one in rig.there.of_kind("async", endpoint) if one["inference_id"] == inference_id]

    await rig.there.happened(told, f"an event about {inference_id}")
    assert len(told()) == 1
    return told()[0]


@pytest.mark.check(23)
async def test_a_result_appears_where_the_answer_says(rig: AsyncRig) -> None:
    """202 with the caller's own id, and the container's answer as it is; the topic is named in an event."""
    await rig.endpoint("plain", failures=f"s3://{BUCKET}/plain/failed/")
    told = await rig.invoke("plain", InferenceId="i-1", ContentType="application/json")
    assert told["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert told["InferenceId"] == "i-1"
    assert told["OutputLocation"] == f"s3://{BUCKET}/plain/out/i-1.out"
    assert told["FailureLocation"] == f"s3://{BUCKET}/plain/failed/i-1-error.out"
    content = json.loads(await rig.appears(told["OutputLocation"]))
    assert content["choices"][0]["message"]["content"] == PARIS
    event = await event_of(rig, "plain", "i-1")
    assert (event["status"], event["topic"]) == ("Completed", TOPICS["SuccessTopic"])
    assert event["location"] == told["OutputLocation"]
    assert list(await rig.objects("plain")) == ["plain/out/i-1.out"]


async def test_inputs_from_s3_and_names_of_the_callers(rig: AsyncRig) -> None:
    await rig.endpoint("named")
    await rig.s3.upload(BUCKET, "named/in/question.json", b'{"inputs": "Once", "parameters": {"max_new_tokens": 3}}')
    told = await rig.invoke(
        "named",
        InputLocation=f"s3://{BUCKET}/named/in/question.json",
        S3OutputPathExtension="2026/nightly",
        Filename="answer.json",
    )
    assert told["OutputLocation"] == f"s3://{BUCKET}/named/out/2026/nightly/answer.json"
    assert set(json.loads(await rig.appears(told["OutputLocation"]))) == {"generated_text"}
    # As with AWS, whoever gives a name again replaces what is there.
    again = await rig.invoke("named", S3OutputPathExtension="2026/nightly", Filename="answer.json")
    assert again["OutputLocation"] == told["OutputLocation"]
    await event_of(rig, "named", again["InferenceId"])
    assert "choices" in json.loads(await rig.appears(told["OutputLocation"]))


@pytest.mark.check(23)
async def test_a_containers_refusal_is_a_failure_object(rig: AsyncRig) -> None:
    await rig.endpoint("refuses")
    body = json.dumps({"messages": [{"role": "user", "content": "?"}], "fail_with": 422}).encode()
    told = await rig.invoke("refuses", Body=body, InferenceId="bad")
    content = json.loads(await rig.appears(told["FailureLocation"]))
    assert content["ErrorCode"] == "CLIENT_ERROR_FROM_MODEL"
    assert content["OriginalStatusCode"] == 422
    assert 'Received client error (422) from primary with message "' in content["Message"]
    event = await event_of(rig, "refuses", "bad")
    assert (event["status"], event["topic"]) == ("Failed", TOPICS["ErrorTopic"])
    assert list(await rig.objects("refuses")) == ["refuses/out/bad-error.out"]


@pytest.mark.check(23)
@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"Body": BODY, "InputLocation": f"s3://{BUCKET}/x"}, "mutually exclusive"),
        ({"Body": b""}, "there is neither"),
        ({"Body": b"x" * 128_001}, "128000 bytes"),
        ({"InputLocation": "https://example.com/x.json"}, "https is not allowed"),
        ({"InputLocation": f"s3://{BUCKET}/folder/"}, "names no object"),
        ({"S3OutputPathExtension": "../../others"}, "may not hold"),
        ({"RequestTTLSeconds": 21601}, "less than or equal to 21600"),
        ({"InvocationTimeoutSeconds": 3601}, "less than or equal to 3600"),
        ({"Filename": "a.b.c"}, "regular expression"),
    ],
)
async def test_what_cannot_be_is_refused(rig: AsyncRig, request_: dict[str, Any], words: str) -> None:
    if not await rig.there.knows("rules"):
        await rig.endpoint("rules")
    error = await refused(rig, "rules", **request_)
    assert error["Code"] == "ValidationError"
    assert words in error["Message"]


async def test_endpoints_that_are_not_there_or_not_asynchronous(rig: AsyncRig) -> None:
    assert (await refused(rig, "nope"))["Message"] == "Endpoint nope of account 000000000000 not found."
    await rig.endpoint("direct", asynchronous=False)
    error = await refused(rig, "direct")
    assert error["Code"] == "ValidationError"
    assert "no AsyncInferenceConfig" in error["Message"]


async def test_an_id_belongs_to_one_request(rig: AsyncRig) -> None:
    """The same request under its id is one execution; another one is refused."""
    await rig.endpoint("once")
    first = await rig.invoke("once", InferenceId="mine")
    again = await rig.invoke("once", InferenceId="mine")
    assert again["OutputLocation"] == first["OutputLocation"]
    error = await refused(rig, "once", InferenceId="mine", Accept="text/plain")
    assert "was used by another request" in error["Message"]
    await rig.appears(first["OutputLocation"])
    await event_of(rig, "once", "mine")
    await rig.there.until_total("standby_async_queued", "once", 0)
    await rig.there.until_total("standby_requests_total", "once", 1)


async def test_attempts_of_one_sdk_call_are_one_invocation(rig: AsyncRig) -> None:
    await rig.endpoint("attempts")
    headers = {"amz-sdk-invocation-id": "one-call"}
    asked = partial(rig.there.call, "POST", "/endpoints/attempts/async-invocations", headers=headers)
    answers = [await asked(content=BODY), await asked(content=BODY), await asked(content=BODY + b" ")]
    ids = [answer.json()["InferenceId"] for answer in answers]
    assert ids[0] == ids[1] != ids[2]
    assert {answer.status_code for answer in answers} == {202}
    await rig.appears(answers[2].headers["x-amzn-sagemaker-outputlocation"])
    for inference_id in (ids[0], ids[2]):
        await event_of(rig, "attempts", inference_id)
    await rig.there.until_total("standby_async_queued", "attempts", 0)
    await rig.there.until_total("standby_requests_total", "attempts", 2)


async def test_a_wake_that_takes_longer_than_callers_may_wait(rig: AsyncRig) -> None:
    """Normal invocations give up after max_cold_wait; these go on."""
    await rig.endpoint("slow", knobs={"ready_after_s": 3.0}, tags={"standby:max-cold-wait": "500ms"})
    told = await rig.invoke("slow")
    assert await rig.appears(told["OutputLocation"])


@pytest.mark.check(23)
async def test_a_request_that_expired_is_a_failure(rig: AsyncRig) -> None:
    """Its time is over before anybody takes it: it was accepted an hour ago."""
    await rig.endpoint("late")
    shown = await rig.there.show("late")
    assert rig.there.stack.nats is not None
    bus = await Bus.connect(rig.there.stack.nats.settings(), name="test")
    try:
        lanes = Lanes(bus, "async")
        work = AsyncInvocation(
            tenant="000000000000",
            endpoint="late",
            endpoint_created_at=shown["created_at"],
            inference_id="old",
            digest="d" * 64,
            accepted_at=time.time() - 3600,
            ttl_s=60,
            limit_s=60,
            output_uri=f"s3://{BUCKET}/late/out/old.out",
            failure_uri=f"s3://{BUCKET}/late/out/old-error.out",
        )
        await lanes.put(work.lane, "old", pack(work, BODY))
    finally:
        await bus.close()
    content = json.loads(await rig.appears(work.failure_uri))
    assert content["ErrorCode"] == "RequestExpired"
    assert list(await rig.objects("late")) == ["late/out/old-error.out"]


async def test_an_endpoint_that_goes_takes_its_requests_with_it(rig: AsyncRig) -> None:
    await rig.endpoint("going", knobs={"ready_after_s": 60.0})
    told = await rig.invoke("going", InferenceId="left")
    client = await rig.client("sagemaker")
    await asyncio.to_thread(partial(client.delete_endpoint, EndpointName="going"))
    content = json.loads(await rig.appears(told["FailureLocation"]))
    assert "going" in content["Message"]


async def test_an_input_that_is_not_there(rig: AsyncRig) -> None:
    await rig.endpoint("missing")
    told = await rig.invoke("missing", InputLocation=f"s3://{BUCKET}/missing/no.json")
    assert "NoSuchKey" in json.loads(await rig.appears(told["FailureLocation"]))["Message"]


async def test_a_store_that_refuses_is_told_in_an_event(rig: AsyncRig) -> None:
    await rig.endpoint("nowhere", path="s3://no-such-bucket/out")
    await rig.invoke("nowhere", InferenceId="lost")
    event = await event_of(rig, "nowhere", "lost")
    assert (event["status"], event["location"]) == ("Failed", "")
    assert "NoSuchBucket" in event["reason"]


async def test_results_are_written_with_the_keys_that_the_tenant_has_stored(rig: AsyncRig) -> None:
    """Where its model names some: never with the platform's own, which would be good for it."""
    good = {"access_key": rig.s3.access_key, "secret_key": rig.s3.secret_key}
    await rig.there.api("POST", "/credentials", {"name": "own", **good})
    await rig.s3.upload("own-models", "m.gguf", gguf(seed=77))
    place = {"source_uri": "s3://own-models/m.gguf", "source": {"credentials": "own"}}
    await rig.there.api("POST", "/models", {"name": "own", "engine": "fake", **place})
    await rig.endpoint("own", model="own")
    told = await rig.invoke("own", InferenceId="with-own-keys")
    await rig.appears(told["OutputLocation"])
    wrong = {"access_key": "nobody", "secret_key": "wrong"}
    await rig.there.api("POST", "/credentials", {"name": "own", "replace": True, **wrong})
    await rig.invoke("own", InferenceId="with-wrong-keys")
    event = await event_of(rig, "own", "with-wrong-keys")
    assert event["location"] == ""
    assert "HTTP 403" in event["reason"]


async def test_another_tenants_results_are_not_to_be_read(rig: AsyncRig) -> None:
    """The platform's own keys could: neither its endpoint, nor its objects as an input, nor its place for results."""
    await rig.endpoint("private")
    told = await rig.invoke("private", InferenceId="secret")
    await rig.appears(told["OutputLocation"])
    stranger = await rig.client(tenant=OTHER)
    error = await refused(rig, "private", client=stranger, InferenceId="secret")
    assert error["Message"] == f"Endpoint private of account {OTHER} not found."
    await strangers_endpoint(rig, "thief", f"s3://{BUCKET}/thief/out")
    error = await refused(rig, "thief", client=stranger, InputLocation=told["OutputLocation"])
    assert error["Code"] == "AccessDeniedException"
    await strangers_endpoint(rig, "squatter", f"s3://{BUCKET}/private/out")
    error = await refused(rig, "squatter", client=stranger)
    assert error["Code"] == "AccessDeniedException"
    assert list(await rig.objects("private")) == ["private/out/secret.out"]


async def strangers_endpoint(rig: AsyncRig, name: str, path: str) -> None:
    """An asynchronous endpoint of the other tenant; its model need not be good, nothing gets that far."""
    control = await rig.client("sagemaker", tenant=OTHER)
    container = {"Image": "djl-inference:lmi", "ModelDataUrl": f"s3://{BUCKET}/nothing.tar.gz"}
    variant = {"VariantName": "v", "ModelName": name, "InstanceType": "ml.m5.large", "InitialInstanceCount": 1}
    output = {"OutputConfig": {"S3OutputPath": path}}
    role = f"arn:aws:iam::{OTHER}:role/any"
    make = asyncio.to_thread
    await make(partial(control.create_model, ModelName=name, PrimaryContainer=container, ExecutionRoleArn=role))
    await make(
        partial(
            control.create_endpoint_config,
            EndpointConfigName=name,
            ProductionVariants=[variant],
            AsyncInferenceConfig=output,
        )
    )
    await make(partial(control.create_endpoint, EndpointName=name, EndpointConfigName=name))
