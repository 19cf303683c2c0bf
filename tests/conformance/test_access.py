"""Who is let in, over a whole deployment: every request is signed by botocore, then spoilt in one place."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import httpx
import pytest
import pytest_asyncio
from botocore.exceptions import ClientError

from support.aws_user import BODY, AwsPlace, AwsUser, aws_place
from support.fake_engine_spec import short_dir
from support.raw_http import RawAnswer, RawClient
from support.signed import bearer_token
from support.signed_http import Wire, control, credentials_of, wire
from support.user import PARIS, QUESTION

pytestmark = pytest.mark.asyncio(loop_scope="module")
OTHER = "222222222222"
MIB = 2**20
INVOKE = "/endpoints/e/invocations"
DESCRIBE = json.dumps({"EndpointName": "e"}).encode()
DELETE = json.dumps({"ModelName": "e"}).encode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[AwsPlace]:
    with short_dir() as folder:
        async with aws_place(folder, real=False) as running:
            await running.user.serving("e")
            yield running


@pytest.fixture
def user(place: AwsPlace) -> AwsUser:
    return place.user


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(place: AwsPlace) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        yield client


def told(answer: httpx.Response) -> tuple[int, str]:
    """The status and the code of a refusal."""
    code = answer.headers.get("x-amzn-errortype") or answer.json()["__type"]
    return answer.status_code, str(code)


async def refusal(user: AwsUser) -> tuple[int, str]:
    with pytest.raises(ClientError) as raised:
        await user("describe_endpoint", EndpointName="e")
    answer = raised.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], str(answer["Error"]["Code"])


@pytest.mark.check(24)
async def test_wrong_secrets_keys_and_tokens(place: AwsPlace) -> None:
    good = place.user.key
    wrong_secret = {**good, "aws_secret_access_key": "x" * 40}
    unknown = {**good, "aws_access_key_id": "SBKA" + "A" * 16}
    session = await place.another("0" * 12, "--session")
    assert (await session("describe_endpoint", EndpointName="e"))["EndpointName"] == "e"
    for key, code in (
        (wrong_secret, "InvalidSignatureException"),
        (unknown, "UnrecognizedClientException"),
        ({**good, "aws_session_token": "x"}, "UnrecognizedClientException"),
        ({**session.key, "aws_session_token": "x"}, "UnrecognizedClientException"),
        ({name: value for name, value in session.key.items() if name != "aws_session_token"}, "UnrecognizedClientException"),
    ):
        assert await refusal(place.at(place.up.url, key, "0" * 12)) == (403, code)


@pytest.mark.check(24)
@pytest.mark.parametrize(("minutes", "status"), [(-20, 403), (20, 403), (-4, 200), (4, 200)])
async def test_clocks(user: AwsUser, http: httpx.AsyncClient, minutes: float, status: int) -> None:
    answer = await control(user, "DescribeEndpoint", DESCRIBE, at=time.time() + 60 * minutes).send(http)
    assert answer.status_code == status
    invoked = await wire(user, INVOKE, BODY, at=time.time() + 60 * minutes).send(http)
    assert invoked.status_code == status
    if status == 403:
        assert told(answer) == told(invoked) == (403, "InvalidSignatureException")


@pytest.mark.check(24)
async def test_nothing_signed_can_be_altered(user: AwsUser, http: httpx.AsyncClient) -> None:
    """Target, body, date, path, query, host, and a header that the signature does not cover."""
    asked = control(user, "DescribeEndpoint", DESCRIBE)
    host = asked.headers["host"]
    for altered in (
        asked.with_header("x-amz-target", "SageMaker.DeleteEndpoint"),
        replace(asked, body=DESCRIBE + b" "),
        replace(asked, url=f"{user.url}/?x=1"),
        asked.with_header("host", host.replace("127.0.0.1", "localhost")),
        asked.with_header("x-amz-date", time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + 30))),
        asked.with_header("x-amz-security-token", "t"),
        asked.with_header("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
    ):
        answer = await altered.send(http)
        assert answer.status_code == 403, (altered, answer.text)
        assert b"AllTraffic" not in answer.content
    invocation = wire(user, INVOKE, BODY)
    for altered in (
        replace(invocation, body=BODY + b" "),
        replace(invocation, url=user.url + "/endpoints/f/invocations"),
        replace(invocation, url=user.url + "/endpoints/%65/invocations"),
        invocation.with_header("x-amzn-sagemaker-target-variant", "AllTraffic"),
        invocation.with_header("x-amzn-sagemaker-session-id", "NEW_SESSION"),
    ):
        answer = await altered.send(http)
        assert answer.status_code in (403, 404), (altered, answer.text)
    assert (await user("describe_endpoint", EndpointName="e"))["EndpointStatus"] == "InService"


@pytest.mark.check(24)
async def test_a_replay_changes_nothing_twice(user: AwsUser, http: httpx.AsyncClient) -> None:
    """Inside the window the same bytes are the same request, as on AWS: what exists is not made again."""
    body = json.dumps({"ModelName": "again", "PrimaryContainer": {"Image": "i", "ModelDataUrl": "s3://models/none"}}).encode()
    made = control(user, "CreateModel", body)
    answers = [await made.send(http) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 400, 400]
    assert "already existing" in answers[1].json()["message"]
    for service in ("s3", "application-autoscaling"):
        assert told(await control(user, "ListModels", service=service).send(http)) == (403, "InvalidSignatureException")


@pytest.mark.check(24)
async def test_other_accounts_find_nothing(place: AwsPlace, http: httpx.AsyncClient) -> None:
    """A signature, a bearer token and a bearer key of another account: its own account is named, and nothing of the first."""
    other = await place.another(OTHER)
    text = await other.refused("describe_endpoint", EndpointName="e")
    assert text == f'Could not find endpoint "arn:aws:sagemaker:us-east-1:{OTHER}:endpoint/e".'
    first = place.user.account
    arn = f"arn:aws:sagemaker:us-east-1:{first}:endpoint/e"
    assert first not in (await other.refused("list_tags", ResourceArn=arn)).replace(arn, "")
    await other.refused("delete_endpoint", EndpointName="e")
    assert (await other("list_endpoints"))["Endpoints"] == []
    with pytest.raises(ClientError, match=f"Endpoint e of account {OTHER} not found"):
        await other.invoke("e")
    token = bearer_token(credentials_of(other), now=time.time())
    answer = await chat(http, place.up.url, token)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"Endpoint e of account {OTHER} not found."


async def chat(http: httpx.AsyncClient, url: str, token: str, **headers: str) -> httpx.Response:
    body = {"model": "", "messages": [{"role": "user", "content": QUESTION}]}
    return await http.post(
        f"{url}/endpoints/e/openai/v1/chat/completions", headers={"authorization": f"Bearer {token}", **headers}, json=body
    )


@pytest.mark.check(24)
@pytest.mark.parametrize(
    "changes",
    [
        {"expires": 60, "now": -120.0},
        {"now": 1200.0},
        {"expires": 43_201},
        {"action": "DeleteEndpoint"},
        {"service": "s3"},
        {"host": "example.org"},
        {"method": "GET"},
        {"version": "&Version=2"},
    ],
    ids=str,
)
async def test_bearer_tokens_that_are_not_right(place: AwsPlace, http: httpx.AsyncClient, changes: Mapping[str, float]) -> None:
    made = {**changes, "now": time.time() + changes.get("now", 0.0)}
    answer = await chat(http, place.up.url, bearer_token(credentials_of(place.user), **made))  # type: ignore[arg-type]
    assert answer.status_code == 403
    assert PARIS not in answer.text


@pytest.mark.check(24)
async def test_a_bearer_token_that_was_changed(place: AwsPlace, http: httpx.AsyncClient) -> None:
    token = bearer_token(credentials_of(place.user), now=time.time())
    good = await chat(http, place.up.url, token)
    assert good.json()["choices"][0]["message"]["content"] == PARIS
    for at in range(len("sagemaker-api-key-"), len(token), 7):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        answer = await chat(http, place.up.url, changed)
        assert answer.status_code == 403, changed


async def test_no_request_hides_in_another(place: AwsPlace) -> None:
    """A signed request whose head says something twice, or says where it ends in two ways: the model `e` is still there."""
    asked = control(place.user, "ListModels", b"{}")
    hidden = control(place.user, "DeleteModel", DELETE)
    for lines in (
        ["content-length: 2", "x-amz-target: SageMaker.DeleteModel"],
        ["content-length: 2", "content-length: 3"],
        ["content-length: 2", "transfer-encoding: chunked"],
        ["transfer-encoding: chunked, identity"],
        ["transfer-encoding: xchunked"],
        ["content-length: +2"],
        ["content-length: 0x2"],
        ["content-length: 2", f"host: other:{1}"],
        ["content-length: 2", "x-amz-target : SageMaker.DeleteModel"],
        ["content-length: 2", "a: b\rx-amz-target: SageMaker.DeleteModel"],
        ["content-length: 2", "authorization: Bearer sk-standby-0"],
    ):
        answer = await raw(place, asked.raw(*lines))
        assert answer.status in (400, 403), (lines, answer)
    pipelined = asked.raw("content-length: 2") + replace(hidden, headers={**hidden.headers, "authorization": "x"}).raw(
        f"content-length: {len(DELETE)}"
    )
    assert (await raw(place, pipelined)).status == 200
    invocation = wire(place.user, INVOKE, BODY).raw(f"content-length: {len(BODY)}")
    for path in (
        b"/endpoints/x/../e/invocations",
        b"/endpoints//e/invocations",
        b"/endpoints/./e/invocations",
        b"//h/endpoints/e",
    ):
        answer = await raw(place, invocation.replace(INVOKE.encode(), path))
        assert answer.status in (400, 403, 404), (path, answer)
    await place.user("describe_model", ModelName="e")


async def raw(place: AwsPlace, data: bytes) -> RawAnswer:
    host, _, port = place.up.url.removeprefix("http://").partition(":")
    client = await RawClient.connect(host, int(port))
    try:
        client.writer.write(data)
        async with asyncio.timeout(60):
            return await client.answer()
    finally:
        client.abort()


async def test_bodies_above_every_limit(user: AwsUser, http: httpx.AsyncClient) -> None:
    """6 MiB + 1 to a model, 1 MiB + 1 to the control plane, also where nobody says how much comes; then all is well."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(7):
            yield b" " * MIB

    def unframed(asked: Wire) -> dict[str, str]:
        return {name: value for name, value in asked.headers.items() if name != "content-length"}

    invocation, listing = wire(user, INVOKE, b" " * (6 * MIB + 1)), control(user, "ListModels", b" " * (MIB + 1))
    assert told(await invocation.send(http)) == (400, "ValidationError")
    assert told(await listing.send(http)) == (413, "RequestEntityTooLargeException")
    for asked in (invocation, listing):
        answer = await http.post(asked.url, headers=unframed(asked), content=endless())
        assert told(answer) in [(400, "ValidationError"), (413, "RequestEntityTooLargeException")]
    assert await user.text("e") == PARIS
