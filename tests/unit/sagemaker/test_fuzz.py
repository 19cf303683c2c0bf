"""Random and boundary requests to every used operation: an answer in AWS's form each time, never a 5xx, never a hang.

STANDBY_FUZZ_INPUTS sets how many, 10,000 where it is not set.
"""

import contextlib
import json
import os
import random
from typing import Any

import pytest
from botocore.parsers import create_parser

from standby.sagemaker.auth.caller import Caller
from standby.sagemaker.dispatch import Operation
from standby.sagemaker.errors import AwsError
from standby.sagemaker.shapes.requests import parse_rest
from standby.sagemaker.shapes.services import CLOUDWATCH, RUNTIME, STS, operation
from support.asgi import Answer, ask
from support.aws_operations import USED, Inventor, used
from support.aws_plane import TARGETS, call, plane

INPUTS = int(os.environ.get("STANDBY_FUZZ_INPUTS", "10000"))
JSON_OPERATIONS = [(service, name) for service, name in used() if service in TARGETS]


def inventing(service: str, name: str) -> Operation:
    """Return an operation whose answers are any that its shape allows; what it is given must be as its shape says."""
    inventor = Inventor(1)

    async def answer(_caller: Caller, _request_id: str, request: dict[str, Any]) -> dict[str, Any]:
        shape = operation(service, name).input_shape
        assert shape is None or (set(request) <= set(shape.members) and set(shape.required_members) <= set(request))
        answer: dict[str, Any] = inventor.answer(service, name)
        return answer

    return answer


APP = plane({(service, name): inventing(service, name) for service, name in used() if service != RUNTIME})


def check(answer: Answer) -> None:
    """Check that a JSON answer is one that SDKs understand."""
    assert answer.status in {200, 400}, answer
    assert answer.headers["x-amzn-requestid"]
    if answer.status == 400:
        body = json.loads(answer.body)
        assert body["__type"] in {"ValidationException", "SerializationException", "UnknownOperationException"}
        assert len(answer.body) < 300_000


@pytest.mark.parametrize("harm", [0.0, 0.02, 0.2])
async def test_requests_by_shape_with_more_and_more_wrong_in_them(harm: float) -> None:
    good = 0
    for number in range(INPUTS // 4):
        service, name = JSON_OPERATIONS[number % len(JSON_OPERATIONS)]
        inventor = Inventor(number, harm=harm)
        answer = await call(APP, service, name, inventor.request(service, name))
        check(answer)
        if answer.status == 200:
            good += 1
            read = {"body": answer.body, "headers": answer.headers, "status_code": 200}
            create_parser("json").parse(read, operation(service, name).output_shape)
    assert good > 0


async def test_bodies_with_changed_bytes() -> None:
    rng = random.Random(3)
    for number in range(INPUTS // 8):
        service, name = rng.choice(JSON_OPERATIONS)
        body = bytearray(json.dumps(Inventor(number).request(service, name)).encode())
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(body))
            match rng.randrange(3):
                case 0:
                    body[at] = rng.randrange(256)
                case 1:
                    body[at:at] = rng.choice([b'"', b"{", b"[", b"\\u", b"\x00", b"1e999", b"null", b"\xed\xa0\x80", b","])
                case _:
                    del body[at : at + rng.randint(1, 20)]
                    body = body or bytearray(b"{")
        check(await call(APP, service, name, bytes(body)))


async def test_heads_of_any_kind() -> None:
    rng = random.Random(4)
    texts = ["", " ", "SageMaker.", "SageMaker.CreateModel", "a" * 5000, "\x00", "é", "application/x-www-form-urlencoded",
             "gzip", "application/json", "chunked", "-1", "0x10", "999999999999999999999", "rpc-v2-cbor"]  # fmt: skip
    names = ["X-Amz-Target", "Content-Type", "Content-Length", "Transfer-Encoding", "Content-Encoding", "smithy-protocol",
             "X-Amz-Date", "Host"]  # fmt: skip
    paths = ["/", "/service/GraniteServiceVersion20100801/operation/GetMetricData", "/service/a/b/c/d/e", "/service//"]
    bodies = [b"", b"{}", b"Action=GetCallerIdentity&Version=2011-06-15", b"\xa0", b"\x00", b"a=b&a.b=c", b"[" * 3000]
    for _ in range(INPUTS // 8):
        headers = [(rng.choice(names), rng.choice(texts)) for _ in range(rng.randint(0, 4))]
        answer = await ask(
            APP, rng.choice(paths), method=rng.choice(["POST", "POST", "POST", "GET", "X"]), headers=headers,
            body=rng.choice(bodies), pieces=rng.randint(1, 3),
        )  # fmt: skip
        assert answer.status in {200, 400, 405, 413}
        assert answer.headers["x-amzn-requestid"]


async def test_forms_and_cbor_of_any_kind() -> None:
    rng = random.Random(6)
    fields = ["Action", "Version", "Dimensions.member.1.Name", "Dimensions.member.1", "Dimensions",
              "MetricDataQueries.member.1.Id", "StartTime", "MaxDatapoints", "....", "a.b.c", "Namespace"]  # fmt: skip
    values = [
        "GetMetricData",
        "ListMetrics",
        "2010-08-01",
        "2011-06-15",
        "",
        "1",
        "-1",
        "NaN",
        "9" * 5000,
        "2026-01-01T00:00:00Z",
    ]
    form = [("Content-Type", "application/x-www-form-urlencoded")]
    for _ in range(INPUTS // 8):
        text = "&".join(f"{rng.choice(fields)}={rng.choice(values)}" for _ in range(rng.randint(1, 6)))
        body = f"Action={rng.choice([*USED[CLOUDWATCH], *USED[STS]])}&Version={rng.choice(values[2:4])}&{text}".encode()
        assert (await ask(APP, headers=form, body=body)).status in {200, 400}
        path = f"/service/GraniteServiceVersion20100801/operation/{rng.choice(USED[CLOUDWATCH])}"
        assert (await ask(APP, path, body=rng.randbytes(rng.randint(0, 60)))).status in {200, 400}


def test_headers_of_the_runtime_of_any_kind() -> None:
    rng = random.Random(7)
    for _ in range(INPUTS // 4):
        name = rng.choice(USED[RUNTIME])
        known = [member.serialization["name"] for member in operation(RUNTIME, name).input_shape.members.values()
                 if member.serialization.get("location") == "header"]  # fmt: skip
        values = [b"", b"a", b"5", b"a" * 2000, b"\xff\x00", rng.randbytes(8), b"-" * 9000]
        headers = [(rng.choice(known).lower().encode(), rng.choice(values)) for _ in range(rng.randint(0, 5))]
        with contextlib.suppress(AwsError):
            parsed = parse_rest(name, path={"EndpointName": "e"}, headers=headers, body=rng.randbytes(5))
            assert parsed["EndpointName"] == "e"
