"""Requests by shape: types, rules and the words in which AWS's services tell them."""

import json
import sys
import unicodedata
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.serialize import create_serializer

from standby.sagemaker.errors import AwsError
from standby.sagemaker.shapes.coercion import coerce, decode
from standby.sagemaker.shapes.patterns import matches
from standby.sagemaker.shapes.requests import broken, parse_json, parse_rest
from standby.sagemaker.shapes.services import SAGEMAKER, operation
from support.aws_operations import USED, Inventor

ROLE = "arn:aws:iam::111122223333:role/standby"


def config(**serverless: Any) -> dict[str, Any]:
    """Return the request of an endpoint config with one serverless variant."""
    variant = {"VariantName": "AllTraffic", "ModelName": "m", "ServerlessConfig": serverless}
    return {"EndpointConfigName": "c", "ProductionVariants": [variant]}


def refused(service: str, name: str, request: Any) -> AwsError:
    """Return the refusal of a request, given as bytes or as JSON's values."""
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    with pytest.raises(AwsError) as caught:
        parse_json(service, name, body)
    assert caught.value.status == 400
    return caught.value


def test_a_good_request_keeps_the_models_spelling() -> None:
    request = config(MemorySizeInMB=2048, MaxConcurrency=5)
    assert parse_json(SAGEMAKER, "CreateEndpointConfig", json.dumps(request).encode()) == request


def test_a_value_over_its_maximum_is_told_with_its_path() -> None:
    error = refused(SAGEMAKER, "CreateEndpointConfig", config(MemorySizeInMB=2048, MaxConcurrency=500))
    assert error.code == "ValidationException"
    assert error.message == (
        "1 validation error detected: Value '500' at 'productionVariants.1.member.serverlessConfig.maxConcurrency' failed to "
        "satisfy constraint: Member must have value less than or equal to 200"
    )


def test_several_faults_are_told_at_once() -> None:
    error = refused(SAGEMAKER, "CreateEndpointConfig", config(MaxConcurrency=0))
    assert error.message == (
        "2 validation errors detected: Value null at 'productionVariants.1.member.serverlessConfig.memorySizeInMB' failed to "
        "satisfy constraint: Member must not be null; Value '0' at "
        "'productionVariants.1.member.serverlessConfig.maxConcurrency' failed to satisfy constraint: "
        "Member must have value greater than or equal to 1"
    )


def test_a_name_is_checked_for_length_and_pattern() -> None:
    error = refused(SAGEMAKER, "DescribeEndpoint", {"EndpointName": "-" * 64})
    assert error.message is not None
    assert "at 'endpointName' failed to satisfy constraint: Member must have length less than or equal to 63" in error.message
    assert "Member must satisfy regular expression pattern: [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}" in error.message


def test_an_unknown_sort_is_told_with_the_values_that_are_known() -> None:
    error = refused(SAGEMAKER, "ListEndpoints", {"SortBy": "Bogus"})
    assert error.message == (
        "1 validation error detected: Value 'Bogus' at 'sortBy' failed to satisfy constraint: "
        "Member must satisfy enum value set: [Name, CreationTime, Status]"
    )


def test_rules_of_simple_list_members_are_told_at_the_list() -> None:
    error = refused(SAGEMAKER, "DeleteTags", {"ResourceArn": "arn:aws:sagemaker:r:111122223333:model/m", "TagKeys": ["a", ""]})
    assert error.message is not None
    assert "Value '[a, ]' at 'tagKeys' failed to satisfy constraint: Member must satisfy constraint: [" in error.message


def test_rules_of_maps_are_told_at_the_map() -> None:
    container = {"Image": "i", "Environment": {"1x": "y" * 2000}}
    error = refused(SAGEMAKER, "CreateModel", {"ModelName": "m", "PrimaryContainer": container})
    assert error.message is not None
    assert (
        "at 'primaryContainer.environment' failed to satisfy constraint: Map keys must satisfy constraint: [" in error.message
    )
    assert "Map value must satisfy constraint: [" in error.message


def test_members_that_are_not_known_are_passed_over_and_nulls_are_nothing() -> None:
    body = b'{"EndpointName":"e","NotThere":{"a":[1]}}'
    assert parse_json(SAGEMAKER, "DescribeEndpoint", body) == {"EndpointName": "e"}
    assert parse_json(SAGEMAKER, "ListEndpoints", b'{"SortBy":null}') == {}
    assert parse_json(SAGEMAKER, "ListEndpoints", b"") == {}


def test_of_equal_members_the_last_counts() -> None:
    assert parse_json(SAGEMAKER, "DescribeEndpoint", b'{"EndpointName":"a","EndpointName":"b"}') == {"EndpointName": "b"}


def test_nulls_inside_lists_are_refused() -> None:
    error = refused(SAGEMAKER, "CreateModel", {"ModelName": "m", "Tags": [None]})
    assert error.message is not None
    assert "Value null at 'tags.1.member' failed to satisfy constraint: Member must not be null" in error.message


def test_times_are_datetimes_whether_numbers_or_text() -> None:
    expected = {"CreationTimeAfter": datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)}
    for value in (b"1767225600.5", b'"2026-01-01T00:00:00.5Z"'):
        assert parse_json(SAGEMAKER, "ListEndpoints", b'{"CreationTimeAfter":' + value + b"}") == expected


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("DescribeEndpoint", b'{"EndpointName":5}'),
        ("DescribeEndpoint", b'{"EndpointName":["e"]}'),
        ("DescribeEndpoint", b'{"EndpointName":{"a":1}}'),
        ("DescribeEndpoint", b'{"EndpointName":true}'),
        ("DescribeEndpoint", b'["e"]'),
        ("DescribeEndpoint", b'"e"'),
        ("DescribeEndpoint", b"null"),
        ("DescribeEndpoint", b"{"),
        ("DescribeEndpoint", b'{"EndpointName":"\xff"}'),
        ("DescribeEndpoint", b"\xff\xfe{\x00}\x00"),
        ("DescribeEndpoint", b'{"EndpointName":"\\ud800"}'),
        ("DescribeEndpoint", b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        ("ListEndpoints", b'{"MaxResults":NaN}'),
        ("ListEndpoints", b'{"MaxResults":1.5}'),
        ("ListEndpoints", b'{"MaxResults":"5"}'),
        ("ListEndpoints", b'{"MaxResults":true}'),
        ("ListEndpoints", b'{"MaxResults":2147483648}'),
        ("ListEndpoints", b'{"MaxResults":1e400}'),
        ("ListEndpoints", b'{"MaxResults":' + b"9" * 5000 + b"}"),
        ("ListEndpoints", b'{"CreationTimeAfter":1e300}'),
        ("ListEndpoints", b'{"CreationTimeAfter":"yesterday"}'),
        ("ListEndpoints", b'{"CreationTimeAfter":true}'),
        ("UpdateEndpointWeightsAndCapacities", b'{"DesiredWeightsAndCapacities":[{"DesiredWeight":1' + b"0" * 400 + b"}]}"),
        ("CreateModel", b'{"ModelName":"m","EnableNetworkIsolation":"true"}'),
        ("CreateModel", b'{"ModelName":"m","Tags":{"Key":"a"}}'),
        ("CreateModel", b'{"ModelName":"m","PrimaryContainer":[]}'),
        ("CreateModel", b'{"ModelName":"m","PrimaryContainer":{"Environment":["a"]}}'),
    ],
)
def test_what_has_another_type_is_no_request(name: str, body: bytes) -> None:
    error = refused(SAGEMAKER, name, body)
    assert error.code == "SerializationException"
    assert error.message


def test_weights_beyond_a_32_bit_float_are_refused() -> None:
    request = config(MemorySizeInMB=1024, MaxConcurrency=1)
    request["ProductionVariants"][0]["InitialVariantWeight"] = 1e39
    assert refused(SAGEMAKER, "CreateEndpointConfig", request).code == "SerializationException"


def test_a_huge_wrong_value_does_not_come_back_whole() -> None:
    tags = [{"Key": "k" * 1000, "Value": "v" * 1000}] * 400
    error = refused(SAGEMAKER, "CreateModel", {"ModelName": "m" * 100_000, "Tags": tags})
    assert error.message is not None
    assert error.message.startswith("803 validation errors detected: ")
    assert len(error.message) < 100_000


def test_a_rule_that_the_model_lacks_is_told_alike() -> None:
    error = broken("productionVariants.1.member.serverlessConfig.memorySizeInMB", 1500, "Member must be a multiple of 1024")
    assert error.message == (
        "1 validation error detected: Value '1500' at 'productionVariants.1.member.serverlessConfig.memorySizeInMB' failed to "
        "satisfy constraint: Member must be a multiple of 1024"
    )


def test_letters_digits_and_separators_of_all_unicode_are_what_javas_classes_say() -> None:
    pattern = r"([\p{L}\p{Z}\p{N}_.:/=+\-@]*)"
    wrong = [
        code
        for code in range(sys.maxunicode + 1)
        if matches(pattern, chr(code)) is not (unicodedata.category(chr(code))[0] in "LZN" or chr(code) in "_.:/=+-@")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"\p{ASCII}*", ["", "a\n~"], ["é"]),
        (r"\p{Print}+", ["a ~"], ["", "é", "\n"]),
        (r"\A\S[\p{Print}]*\z", ["a b"], [" a", "a\n", ""]),
        (r"[\u0020-\uD7FF\uE000-\uFFFD\uD800\uDC00-\uDBFF\uDFFF\r\n\t]*", ["a\r\n\t😀é"], ["\x00", "\uffff"]),
        (r"^[a-zA-Z0-9](-*[a-zA-Z0-9])*", ["a-b"], ["a-", "a\n", "é", "\u0660"]),
        (r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+", [ROLE], [ROLE.replace("1", "\u0661")]),
    ],
)
def test_javas_patterns_mean_the_same_here(pattern: str, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not matches(pattern, text)] == []
    assert [text for text in bad if matches(pattern, text)] == []


# ---- the runtime's headers ----------------------------------------------------------------------------------------


def rest(name: str, *headers: tuple[str, str], body: bytes = b"{}", endpoint: str = "e") -> dict[str, Any]:
    """Parse a request of the runtime with these headers."""
    given = [(key.lower().encode(), value.encode("latin-1")) for key, value in headers]
    return parse_rest(name, path={"EndpointName": endpoint}, headers=given, body=body)


def test_each_operation_has_its_own_header_for_the_accepted_type() -> None:
    headers = (("Accept", "a/b"), ("X-Amzn-SageMaker-Accept", "c/d"), ("Content-Type", "e/f"),
               ("X-Amzn-SageMaker-Content-Type", "g/h"))  # fmt: skip
    plain = rest("InvokeEndpoint", *headers)
    stream = rest("InvokeEndpointWithResponseStream", *headers)
    later = rest("InvokeEndpointAsync", *headers)
    assert (plain["Accept"], plain["ContentType"]) == ("a/b", "e/f")
    assert (stream["Accept"], stream["ContentType"]) == ("c/d", "e/f")
    assert (later["Accept"], later["ContentType"]) == ("c/d", "g/h")


def test_numbers_in_headers_are_numbers_within_their_limits() -> None:
    assert rest("InvokeEndpointAsync", ("X-Amzn-SageMaker-RequestTTLSeconds", "60"))["RequestTTLSeconds"] == 60
    for value in ("59", "21601", "abc", "6e1000", "NaN", ""):
        with pytest.raises(AwsError) as caught:
            rest("InvokeEndpointAsync", ("X-Amzn-SageMaker-RequestTTLSeconds", value))
        assert caught.value.code == "ValidationError"


def test_an_empty_body_is_no_body() -> None:
    assert rest("InvokeEndpointAsync", body=b"") == {"EndpointName": "e"}


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ((("X-Amzn-SageMaker-Custom-Attributes", "é"),), "Value at 'customAttributes' failed"),
        ((("X-Amzn-SageMaker-Custom-Attributes", "a" * 1025),), "length less than or equal to 1024"),
        ((("X-Amzn-SageMaker-Inference-Id", ""),), "length greater than or equal to 1"),
        ((("X-Amzn-SageMaker-Session-Id", "a b"),), "'sessionId'"),
        ((("X-Amzn-SageMaker-Target-Variant", "a"), ("x-amzn-sagemaker-target-variant", "b")), "more than once"),
    ],
)
def test_headers_obey_their_rules(headers: tuple[tuple[str, str], ...], told: str) -> None:
    with pytest.raises(AwsError, match=told) as caught:
        rest("InvokeEndpoint", *headers)
    assert (caught.value.code, caught.value.status) == ("ValidationError", 400)


def test_a_body_over_the_models_limit_is_refused() -> None:
    with pytest.raises(AwsError, match="Value at 'body' failed to satisfy constraint: Member must have length less than"):
        rest("InvokeEndpointAsync", body=b"x" * 128_001)


@pytest.mark.parametrize("name", USED[SAGEMAKER])
def test_what_botocore_serialises_is_read_as_it_was(name: str) -> None:
    """botocore's own client code is the oracle: a request that it wrote comes back member by member."""
    serializer = create_serializer("json", include_validation=True)
    model = operation(SAGEMAKER, name)
    for seed in range(20):
        request = Inventor(seed).request(SAGEMAKER, name)
        written = serializer.serialize_to_request(request, model)["body"]
        again = serializer.serialize_to_request(coerce(model.input_shape, decode(written)), model)["body"]
        assert json.loads(again) == json.loads(written)
