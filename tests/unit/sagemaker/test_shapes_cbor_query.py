"""CBOR and forms, written by botocore and read by us, and everything that is neither."""

import contextlib
import random
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from botocore.parsers import create_parser
from botocore.serialize import create_serializer

from standby.sagemaker.errors import AwsError
from standby.sagemaker.shapes import cbor
from standby.sagemaker.shapes.answers import answer_values
from standby.sagemaker.shapes.query import parse_form, parse_query
from standby.sagemaker.shapes.requests import parse_values
from standby.sagemaker.shapes.services import CLOUDWATCH, operation

AT = datetime(2026, 1, 1, tzinfo=UTC)
REQUEST: dict[str, Any] = {
    "StartTime": AT,
    "EndTime": AT,
    "MaxDatapoints": 70_000,
    "MetricDataQueries": [
        {
            "Id": "a",
            "ReturnData": True,
            "MetricStat": {
                "Period": 60,
                "Stat": "Sum",
                "Metric": {
                    "Namespace": "AWS/SageMaker",
                    "MetricName": "Invocations",
                    "Dimensions": [{"Name": "EndpointName", "Value": "é"}, {"Name": "VariantName", "Value": "v" * 200}],
                },
            },
        }
    ],
}


def written() -> bytes:
    """Return the request as botocore writes it."""
    serializer = create_serializer("smithy-rpc-v2-cbor", include_validation=True)
    body: bytes = serializer.serialize_to_request(REQUEST, operation(CLOUDWATCH, "GetMetricData"))["body"]
    return body


def test_a_request_of_botocore_comes_back_member_by_member() -> None:
    assert parse_values(CLOUDWATCH, "GetMetricData", cbor.decode(written())) == REQUEST


def test_an_answer_is_what_botocore_reads() -> None:
    output = {"MetricDataResults": [{"Id": "a", "Values": [1.0, 0.5], "Timestamps": [AT, AT], "StatusCode": "Complete"}]}
    body = cbor.encode(answer_values(CLOUDWATCH, "GetMetricData", output))
    answer = {"body": body, "headers": {"smithy-protocol": "rpc-v2-cbor"}, "status_code": 200}
    read = create_parser("smithy-rpc-v2-cbor").parse(answer, operation(CLOUDWATCH, "GetMetricData").output_shape)
    del read["ResponseMetadata"]
    assert read == output


@pytest.mark.parametrize("number", [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**64 - 1, -1, -24, -25, -(2**64)])
def test_whole_numbers_of_every_width(number: int) -> None:
    assert cbor.decode(cbor.encode({"n": number})) == {"n": number}


def test_endless_items_are_read() -> None:
    body = b"\xbf\x61a\x9f\x01\x02\xff\x61b\x7f\x61x\x61y\xff\xff"
    assert cbor.decode(body) == {"a": [1, 2], "b": "xy"}


@pytest.mark.parametrize(
    "body",
    [
        b"\x01",
        b"\xa1",
        b"\xa1\x61a",
        b"\xa1\x01\x01",
        b"\xa1\xa0\x01",
        b"\xbf\x61a\x01",
        b"\xa0\x00",
        b"\xa1\x61a\x1c",
        b"\xa1\x61a\xf8\x20",
        b"\xa1\x61a\xc2\x41\x01",
        b"\xa1\x61a\xc1\xfb\x7f\xf0\x00\x00\x00\x00\x00\x00",
        b"\xa1\x61a\xc1\x61b",
        b"\xa1\x61\xff\x01",
        b"\xa1\x61a\x5f\x7f\xff",
        b"\xa1\x61a\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xa1\x61a" + b"\x81" * 100_000,
        b"\xa1\x61a\xff",
    ],
)
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(AwsError) as caught:
        cbor.decode(body)
    assert caught.value.code == "SerializationException"


def test_a_cut_or_changed_body_is_refused_or_read_but_never_breaks() -> None:
    whole, rng = written(), random.Random(5)
    for cut in range(1, len(whole)):
        with pytest.raises(AwsError):
            cbor.decode(whole[:cut])
    for _ in range(3000):
        body = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        with contextlib.suppress(AwsError):
            parse_values(CLOUDWATCH, "GetMetricData", cbor.decode(bytes(body)))


# ---- forms ---------------------------------------------------------------------------------------------------------


def test_a_form_of_botocore_comes_back_member_by_member() -> None:
    serializer = create_serializer("query", include_validation=True)
    fields = serializer.serialize_to_request(REQUEST, operation(CLOUDWATCH, "GetMetricData"))["body"]
    body = urlencode(fields).encode()
    assert parse_query(CLOUDWATCH, "GetMetricData", parse_form(body)) == REQUEST


@pytest.mark.parametrize(
    "body",
    [
        b"Action",
        b"a=%ff",
        "a=é".encode(),
        b"&".join(b"a%d=1" % number for number in range(6000)),
    ],
)
def test_what_is_no_form_is_refused(body: bytes) -> None:
    with pytest.raises(AwsError) as caught:
        parse_form(body)
    assert caught.value.code == "SerializationException"


@pytest.mark.parametrize(
    "fields",
    [
        {"Dimensions": "x"},
        {"Dimensions.member": "x"},
        {"Dimensions.member.x.Name": "a"},
        {"Dimensions.member.1": "a"},
        {"Dimensions.member.1.Name": "a", "Dimensions.member.1.Name.b": "c"},
        {"Namespace.a": "b"},
        {"Dimensions.member.1.Name.b": "c", "Dimensions.member.1.Name": "a"},
        {"Dimensions.member." + "9" * 5000 + ".Name": "a"},
    ],
)
def test_names_that_do_not_fit_the_shape_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(AwsError) as caught:
        parse_query(CLOUDWATCH, "ListMetrics", fields)
    assert caught.value.status == 400
