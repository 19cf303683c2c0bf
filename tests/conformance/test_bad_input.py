"""Random requests of two accounts over HTTP, signed, to a whole deployment: never a 5xx, never a hang, never another's data.

STANDBY_FUZZ_INPUTS sets how many. What only the parser or only the operations see is fuzzed with more in their own tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
from botocore.exceptions import ClientError
from botocore.parsers import create_parser
from botocore.validate import ParamValidator

from standby.sagemaker.control.operations import HANDLERS
from standby.sagemaker.shapes.services import operation
from support.aws_operations import Inventor
from support.aws_plane import TARGETS
from support.aws_user import BODY, STREAM, TINY, AwsPlace, AwsUser, aws_place
from support.fake_engine_spec import short_dir
from support.signed_http import Wire, wire
from support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(3600)]

INPUTS = int(os.environ.get("STANDBY_FUZZ_INPUTS", "600"))
AT_ONCE = 6
SERVED = [(service, name) for service, name in HANDLERS if service in TARGETS]
SIGNED_AS = {"sagemaker": "sagemaker", "application-autoscaling": "application-autoscaling"}
ONE, TWO = "000000000000", "222222222222"
SECRET = {ONE: "kept-by-the-first", TWO: "kept-by-the-second"}
OTHER = {ONE: TWO, TWO: ONE}
NAMES = ["m1", "m2", "m3", "c1", "c2", "c3", "e1", "e2", "e3", "AllTraffic", "v2"]
# What an invocation may come to: the service's refusals, the container's error, not ready.
INVOKED = {200, 400, 403, 404, 424, 429}
PREFIX = "x-amzn-sagemaker-"
HEADERS = [
    "target-variant", "target-model", "target-container-hostname", "inference-id", "session-id", "custom-attributes",
    "inference-component", "enable-explanations", "accept", "content-type", "prefix-aware-id", "inputlocation",
    "requestttlseconds", "filename", "s3outputpathextension", "invocationtimeoutseconds",
]  # fmt: skip
VALUES = [
    "", "AllTraffic", "v2", "NEW_SESSION", "x" * 63, "x" * 1025, "x" * 9000, "0", "-1", "99999999999999999999", "text/csv",
    "s3://models/x", "file:///etc/passwd", "../../x", "%00", "a;b=c", "\u00e9", "application/json", "*/*",
]  # fmt: skip
PATHS = [
    "invocations", "invocations-response-stream", "async-invocations", "openai/v1/chat/completions", "openai/v1/models",
    "inference-components/m1/openai/v1/chat/completions", "nothing", "invocations/", "",
]  # fmt: skip
BODIES = [
    BODY, STREAM, b"", b"{", b"[]", b"null", b'{"inputs": "x"}', b'{"inputs": "x", "stream": true}', b'{"prompt": ["a", 1]}',
    b'{"inputs": {"a": 1}}', b'{"messages": 7}', b'{"messages": [], "stream": "yes"}', b'{"inputs": "x", "parameters": []}',
    b'{"inputs": "x", "parameters": {"max_new_tokens": -1, "details": true}}', b"\xff\xfe" * 500, b"[" * 20_000,
    b'{"messages": [{"role": "user", "content": "' + b"x" * 300_000 + b'"}]}', b'{"prompt": "\\ud800"}', b'{"a": 1e999}',
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One request, and for the control plane which operation it is of."""

    user: AwsUser
    asked: Wire
    service: str = ""
    name: str = ""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[AwsPlace]:
    with short_dir() as folder:
        async with aws_place(folder, gateways=2, real=False) as running:
            yield running


async def seed(user: AwsUser) -> None:
    """Make two of everything, with a word in them that no other account may read."""
    word = SECRET[user.account]
    tags = [{"Key": "secret", "Value": word}]
    environment = {"STANDBY_ENGINE": "fake", "SECRET": word, "STANDBY_OPTION_TEXT": word}
    for number in "12":
        container = {"Image": word, "ModelDataUrl": TINY, "Environment": environment}
        await user("create_model", ModelName=f"m{number}", PrimaryContainer=container, Tags=tags)
        await user.config(f"c{number}", f"m{number}", MaxConcurrency=4)
        await user("create_endpoint", EndpointName=f"e{number}", EndpointConfigName=f"c{number}", Tags=tags)


def sensible(rng: random.Random, account: str, name: str) -> dict[str, Any]:
    """Return a request that stands a chance."""
    number = rng.choice("123")
    model, config, endpoint = f"m{number}", f"c{number}", f"e{number}"
    kind, named = rng.choice([("model", model), ("endpoint-config", config), ("endpoint", endpoint)])
    arn = f"arn:aws:sagemaker:us-east-1:{account}:{kind}/{named}"
    container = {"Image": SECRET[account], "ModelDataUrl": TINY, "Environment": {"STANDBY_ENGINE": "fake"}}
    variant = {
        "VariantName": "AllTraffic",
        "ModelName": model,
        "ServerlessConfig": {"MemorySizeInMB": 1024, "MaxConcurrency": 2},
    }
    tags = [{"Key": "secret", "Value": SECRET[account]}]
    requests: dict[str, dict[str, Any]] = {
        "CreateModel": {"ModelName": model, "PrimaryContainer": container, "Tags": tags},
        "CreateEndpointConfig": {"EndpointConfigName": config, "ProductionVariants": [variant], "Tags": tags},
        "CreateEndpoint": {"EndpointName": endpoint, "EndpointConfigName": config, "Tags": tags},
        "UpdateEndpoint": {"EndpointName": endpoint, "EndpointConfigName": f"c{rng.choice('123')}"},
        "UpdateEndpointWeightsAndCapacities": {
            "EndpointName": endpoint, "DesiredWeightsAndCapacities": [{"VariantName": "AllTraffic", "DesiredWeight": 2}]
        },
        "AddTags": {"ResourceArn": arn, "Tags": tags},
        "DeleteTags": {"ResourceArn": arn, "TagKeys": ["secret"]},
        "ListTags": {"ResourceArn": arn},
    }  # fmt: skip
    for kind, member in (("Model", model), ("EndpointConfig", config), ("Endpoint", endpoint)):
        for verb in ("Describe", "Delete"):
            requests[f"{verb}{kind}"] = {f"{kind}Name": member}
    return requests.get(name, {})


def control_case(rng: random.Random, number: int, user: AwsUser) -> Case:
    service, name = rng.choice(SERVED)
    inventor = Inventor(number, harm=rng.choice([0.0, 0.0, 0.01, 0.1]), names=NAMES, accounts=(ONE, TWO))
    request = sensible(rng, user.account, name)
    match rng.randrange(4):
        case 0:
            request = inventor.request(service, name)
        case 1 | 2:
            request = inventor.vary(operation(service, name).input_shape, request)
    body = json.dumps(request).encode()
    if rng.random() < 0.02:
        body = bytes(rng.choices(range(256), k=rng.randrange(200)))
    headers = {"x-amz-target": f"{TARGETS[service]}.{name}", "content-type": "application/x-amz-json-1.1"}
    return Case(user, wire(user, "/", body, headers=headers, service=SIGNED_AS[service]), service, name)


def runtime_case(rng: random.Random, user: AwsUser) -> Case:
    endpoint = rng.choice(["e1", "e2", "e3", "nowhere", "x" * 64, "%2e%2e", "e1%00", "%C3%A9"])
    headers = {PREFIX + name: rng.choice(VALUES) for name in rng.sample(HEADERS, rng.randrange(4))}
    if rng.random() < 0.5:
        headers["content-type"] = rng.choice(["application/json", "text/csv", "", "a" * 300])
    return Case(user, wire(user, f"/endpoints/{endpoint}/{rng.choice(PATHS)}", rng.choice(BODIES), headers=headers))


def check(case: Case, answer: httpx.Response) -> None:
    """Check form, shape and silence about the other account."""
    asked = case.asked
    told = f"{case.name} {asked.url} {asked.headers} {asked.body[:1500]!r}: {answer.status_code} {answer.text[:1500]}"
    assert SECRET[OTHER[case.user.account]] not in answer.text, told
    assert all(SECRET[OTHER[case.user.account]] not in value for value in answer.headers.values()), told
    if not case.name:
        assert answer.status_code in INVOKED, told
        return
    assert answer.status_code in {200, 400}, told
    assert answer.headers["x-amzn-requestid"], told
    if answer.status_code == 400:
        assert answer.json()["__type"], told
        return
    shape = operation(case.service, case.name).output_shape
    if shape is not None:
        parsed = create_parser("json").parse({"body": answer.content, "headers": answer.headers, "status_code": 200}, shape)
        del parsed["ResponseMetadata"]
        report = ParamValidator().validate(parsed, shape)
        assert not report.has_errors(), f"{report.generate_report()} in {told}"


async def test_a_deployment_survives_any_request(place: AwsPlace) -> None:
    users = [place.user, await place.another(TWO, url=place.gateways[1])]
    for user in users:
        await seed(user)
    rng = random.Random(17)
    cases = (
        runtime_case(rng, user) if rng.random() < 0.3 else control_case(rng, number, user)
        for number, user in ((number, rng.choice(users)) for number in range(INPUTS))
    )
    seen: Counter[tuple[str, int]] = Counter()
    async with httpx.AsyncClient(trust_env=False, timeout=90) as client, asyncio.TaskGroup() as group:

        async def ask() -> None:
            for case in cases:
                async with asyncio.timeout(90):
                    answer = await case.asked.send(client)
                check(case, answer)
                seen[case.name, answer.status_code] += 1

        for _ in range(AT_ONCE):
            group.create_task(ask())
    assert sum(seen.values()) == INPUTS
    assert len({status for name, status in seen if not name}) > 2, seen
    assert sum(count for (name, status), count in seen.items() if name and status == 200) > INPUTS / 20, seen
    for url in place.gateways:
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{url}/readyz")).status_code == 200


@pytest.mark.check(11)
async def test_of_two_updates_at_once_one_is_made(place: AwsPlace) -> None:
    """Asked at both gateways at the same moment; the other one is told that the endpoint is busy."""
    user = await place.another("333333333333")
    await user.serving("busy")
    await user.model("slow", start_delay_s=12)
    await user.config("slow", "slow", ProvisionedConcurrency=1)
    callers = [place.at(url, user.key, user.account) for url in place.gateways * 3]

    async def heard(caller: AwsUser) -> bool:
        try:
            await caller("describe_endpoint", EndpointName="busy")
            await caller("describe_endpoint_config", EndpointConfigName="slow")
        except ClientError:
            return False
        return True

    for caller in callers:
        # botocore takes its time to make a client; the calls are to begin together.
        await until(lambda caller=caller: heard(caller), "it has heard of both")  # type: ignore[misc]

    async def update(caller: AwsUser) -> str:
        try:
            await caller("update_endpoint", EndpointName="busy", EndpointConfigName="slow")
        except ClientError as error:
            return str(error.response["Error"]["Message"])
        return ""

    answers = await asyncio.gather(*map(update, callers))
    assert sorted(map(bool, answers)) == [False, True, True, True, True, True], answers
    arn = f"arn:aws:sagemaker:us-east-1:{user.account}:endpoint/busy"
    assert {answer for answer in answers if answer} == {f'Cannot update in-progress endpoint "{arn}".'}
    await user.wait("endpoint_in_service", "busy")
    assert (await user("describe_endpoint", EndpointName="busy"))["EndpointConfigName"] == "slow"
