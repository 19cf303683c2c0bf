"""Answers by shape, read back by botocore's own parsers."""

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from botocore.parsers import create_parser

from standby.sagemaker.errors import AwsError
from standby.sagemaker.shapes.answers import ShapeMismatch, answer_json, rest_body, rest_headers
from standby.sagemaker.shapes.faults import Protocol, error_answer
from standby.sagemaker.shapes.services import CLOUDWATCH, RUNTIME, SAGEMAKER, STS, operation
from standby.sagemaker.shapes.xml import answer_query

AT = datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)


class Status(StrEnum):
    IN_SERVICE = "InService"


def described(**more: Any) -> dict[str, Any]:
    return {
        "EndpointName": "e",
        "EndpointArn": "arn:aws:sagemaker:us-east-1:111122223333:endpoint/e",
        "EndpointStatus": Status.IN_SERVICE,
        "CreationTime": AT,
        "LastModifiedTime": AT,
        **more,
    }


def parsed(protocol: str, service: str, name: str, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> Any:
    """Read an answer as botocore does."""
    answer = {"body": body, "headers": {key.decode(): value.decode() for key, value in headers}, "status_code": status}
    return create_parser(protocol).parse(answer, operation(service, name).output_shape)


def test_an_answer_is_what_botocore_reads() -> None:
    weight = {"VariantName": "v", "CurrentWeight": 1, "CurrentServerlessConfig": {"MemorySizeInMB": 1024, "MaxConcurrency": 3}}
    body = answer_json(SAGEMAKER, "DescribeEndpoint", described(ProductionVariants=[weight], FailureReason=None))
    assert json.loads(body)["CreationTime"] == 1767225600.5
    read = parsed("json", SAGEMAKER, "DescribeEndpoint", 200, [], body)
    del read["ResponseMetadata"]
    assert read == described(ProductionVariants=[weight])


def test_an_operation_without_an_answer_has_no_body() -> None:
    assert answer_json(SAGEMAKER, "DeleteEndpoint", {}) == b""
    with pytest.raises(ShapeMismatch, match="answers nothing"):
        answer_json(SAGEMAKER, "DeleteEndpoint", {"a": 1})


@pytest.mark.parametrize(
    "wrong",
    [
        {"Bogus": 1},
        {"EndpointName": 1},
        {"EndpointStatus": None, "CreationTime": "now"},
        {"ProductionVariants": {"VariantName": "v"}},
        {"ProductionVariants": [{"Nope": 1}]},
        {"ProductionVariants": [{"VariantName": "v", "CurrentInstanceCount": True}]},
        {"ProductionVariants": [{"VariantName": "v", "CurrentInstanceCount": 1.5}]},
    ],
)
def test_what_the_shape_does_not_have_is_our_mistake(wrong: dict[str, Any]) -> None:
    with pytest.raises(ShapeMismatch):
        answer_json(SAGEMAKER, "DescribeEndpoint", described(**wrong))


def test_numbers_that_json_lacks_are_our_mistake_as_well() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        answer_json(
            SAGEMAKER, "DescribeEndpoint", described(ProductionVariants=[{"VariantName": "v", "CurrentWeight": float("nan")}])
        )


def test_headers_of_the_runtime_are_the_models() -> None:
    output = {"ContentType": "a/b", "InvokedProductionVariant": "v", "CustomAttributes": None, "Body": b""}
    assert rest_headers("InvokeEndpoint", output) == [
        (b"Content-Type", b"a/b"),
        (b"x-Amzn-Invoked-Production-Variant", b"v"),
    ]
    stream = rest_headers("InvokeEndpointWithResponseStream", {"ContentType": "a/b"})
    assert stream == [(b"X-Amzn-SageMaker-Content-Type", b"a/b")]
    later = {"InferenceId": "i", "OutputLocation": "s3://b/k", "FailureLocation": "s3://b/f"}
    read = parsed(
        "rest-json", RUNTIME, "InvokeEndpointAsync", 202, rest_headers("InvokeEndpointAsync", later),
        rest_body("InvokeEndpointAsync", later),
    )  # fmt: skip
    del read["ResponseMetadata"]
    assert read == later


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\x00", "a\n"])
def test_no_value_ends_its_header(value: str) -> None:
    with pytest.raises(ShapeMismatch):
        rest_headers("InvokeEndpoint", {"CustomAttributes": value})


@pytest.mark.parametrize(
    ("protocol", "service", "name"),
    [
        ("json", SAGEMAKER, "DescribeEndpoint"),
        ("rest-json", RUNTIME, "InvokeEndpoint"),
        ("query", STS, "GetCallerIdentity"),
        ("smithy-rpc-v2-cbor", CLOUDWATCH, "GetMetricData"),
    ],
)
def test_an_error_is_found_by_botocore_in_every_protocol(protocol: str, service: str, name: str) -> None:
    ours: Protocol = "cbor" if protocol == "smithy-rpc-v2-cbor" else protocol  # type: ignore[assignment] # the other three
    message = 'Could not find endpoint "arn:<&é".'
    status, headers, body = error_answer(AwsError("ValidationException", message), protocol=ours, request_id="r-1")
    read = parsed(protocol, service, name, status, headers, body)
    assert (status, read["Error"]["Code"], read["Error"]["Message"]) == (400, "ValidationException", message)
    assert (b"x-amzn-requestid", b"r-1") in headers


def test_members_and_the_pause_of_an_error_arrive() -> None:
    members = {"OriginalStatusCode": 400, "OriginalMessage": "bad", "LogStreamArn": "arn:aws:logs:x", "ErrorCode": "C"}
    error = AwsError("ModelError", "Received client error (400)", 424, members, retry_after_ms=2500)
    status, headers, body = error_answer(error, protocol="rest-json", request_id="r")
    assert status == 424
    assert (b"x-amz-retry-after", b"2500") in headers
    assert (b"x-amzn-errortype", b"ModelError") in headers
    assert json.loads(body).items() >= members.items()


def test_throttling_has_a_null_message() -> None:
    _, _, body = error_answer(AwsError("ThrottlingException", None), protocol="rest-json", request_id="r")
    assert json.loads(body)["message"] is None


def test_xml_holds_any_value_and_nothing_that_xml_forbids() -> None:
    output = {"UserId": "<&\"'>\x00\x1b]]>", "Account": "111122223333", "Arn": "arn:aws:iam::111122223333:user/é😀"}
    body = answer_query(STS, "GetCallerIdentity", output, "r")
    read = parsed("query", STS, "GetCallerIdentity", 200, [], body)
    assert read["UserId"] == "<&\"'>]]>"
    assert read["Arn"] == output["Arn"]


def test_lists_structures_and_times_in_xml() -> None:
    output = {"Label": "Invocations", "Datapoints": [{"Timestamp": AT, "Sum": 3.0, "Unit": "None"}]}
    body = answer_query(CLOUDWATCH, "GetMetricStatistics", output, "r")
    read = parsed("query", CLOUDWATCH, "GetMetricStatistics", 200, [], body)
    del read["ResponseMetadata"]
    assert read == output
