"""Errors in AWS's words and in OpenAI's, and what the headers of a request ask for."""

from __future__ import annotations

import json

import pytest

from standby.domain import errors
from standby.sagemaker.errors import AwsError
from standby.sagemaker.runtime.answers import Place, aws_error, container_error, model_error, openai_answer
from standby.sagemaker.runtime.contract import ContainerAnswered
from standby.sagemaker.runtime.routes import (
    Operation,
    RuntimeRoute,
    Wishes,
    check_name,
    container_headers,
    heartbeat_of,
    route_of,
    wishes,
)

pytestmark = pytest.mark.decision

PLACE = Place("eu-west-1", "123456789012", "e")
INVOKE = RuntimeRoute(Operation.INVOKE, "e")


@pytest.mark.parametrize(
    ("error", "code", "status", "retry_ms"),
    [
        (errors.EndpointNotFound("x"), "ValidationError", 400, None),
        (errors.VariantNotFound("x"), "ValidationError", 400, None),
        (errors.PayloadTooLarge("x"), "ValidationError", 400, None),
        (errors.InvalidInput("x"), "ValidationError", 400, None),
        (errors.Throttled("x", retry_after_s=2.0), "ThrottlingException", 400, 2000),
        (errors.QueueFull("x"), "ThrottlingException", 400, 1000),
        (errors.ColdWaitExceeded("x", retry_after_s=2.5), "ModelNotReadyException", 429, 2500),
        (errors.BusUnavailable("x", retry_after_s=5.0), "ServiceUnavailable", 503, 5000),
        (errors.Unavailable("x"), "ServiceUnavailable", 503, 1000),
        (errors.EndpointFailed("x", retry_after_s=5.0), "ModelError", 424, 5000),
        (errors.EngineDied("x"), "ModelError", 424, None),
        (errors.InvocationTimeout("x"), "ModelError", 424, None),
        (errors.NotAuthenticated("x"), "UnrecognizedClientException", 403, None),
        (errors.Forbidden("x"), "AccessDeniedException", 400, None),
        (errors.LeaseLost("x"), "InternalFailure", 500, None),
    ],
)
def test_each_error_has_its_name(error: errors.StandbyError, code: str, status: int, retry_ms: int | None) -> None:
    told = aws_error(error, PLACE)
    assert (told.code, told.status, told.retry_after_ms) == (code, status, retry_ms)
    assert told.members["StandbyCode"] == error.code


def test_a_missing_endpoint_names_the_callers_account() -> None:
    told = aws_error(errors.EndpointNotFound("x"), PLACE)
    assert told.message == "Endpoint e of account 123456789012 not found."


def test_a_containers_error_keeps_its_status_and_words() -> None:
    told = container_error(ContainerAnswered(400, '{"error": "zu groß"}'.encode()), PLACE)
    assert told.message == (
        'Received client error (400) from primary with message "{"error": "zu groß"}". '
        "See /aws/sagemaker/Endpoints/e in account 123456789012 for more information."
    )
    assert told.members == {
        "ErrorCode": "CLIENT_ERROR_FROM_MODEL",
        "OriginalStatusCode": 400,
        "OriginalMessage": '{"error": "zu groß"}',
        "LogStreamArn": "arn:aws:logs:eu-west-1:123456789012:log-group:/aws/sagemaker/Endpoints/e",
    }
    assert container_error(ContainerAnswered(503, b"\xff"), PLACE).members["ErrorCode"] == "INTERNAL_FAILURE_FROM_MODEL"
    timeout = aws_error(errors.InvocationTimeout("x"), PLACE)
    assert str(timeout.message).startswith('Received server error (0) from primary with message "Your invocation timed out')


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "message"),
    [
        (AwsError("ValidationError", "no"), 400, "invalid_request_error", "validation_error", "no"),
        (
            AwsError("ThrottlingException", "slow", retry_after_ms=1500),
            429,
            "invalid_request_error",
            "validation_error",
            "slow",
        ),
        (AwsError("ServiceUnavailable", "away", 503), 503, "server_error", "ServiceUnavailable", "away"),
        (model_error(400, '{"error": {"message": "bad"}}', PLACE), 400, "invalid_request_error", "model_error", "bad"),
        (model_error(500, "died", PLACE), 500, "server_error", "model_error", "died"),
        (model_error(0, "slow", PLACE), 504, "server_error", "model_error", "slow"),
    ],
)
def test_openais_clients_get_openais_envelope(error: AwsError, status: int, kind: str, code: str, message: str) -> None:
    told, headers, body = openai_answer(error)
    assert told == status
    assert json.loads(body) == {"error": {"message": message, "type": kind, "param": None, "code": code}}
    assert dict(headers) == ({b"retry-after": b"2"} if error.retry_after_ms else {})


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (errors.PoisonRequest("x", retry_after_s=90.0), 422, "invalid_request_error", "poison_request"),
        (errors.EngineDied("x"), 502, "server_error", "engine_died"),
        (errors.EndpointFailed("x", retry_after_s=5.0), 503, "server_error", "endpoint_failed"),
        (errors.InvocationTimeout("x"), 504, "server_error", "invocation_timeout"),
        (errors.QueueFull("x"), 429, "invalid_request_error", "queue_full"),
        (errors.Throttled("x"), 429, "invalid_request_error", "throttled"),
        (errors.ColdWaitExceeded("x"), 429, "invalid_request_error", "model_not_ready"),
        (errors.Overloaded("x"), 503, "server_error", "overloaded"),
        (errors.EndpointNotFound("x"), 400, "invalid_request_error", "validation_error"),
        (errors.InvalidInput("x"), 400, "invalid_request_error", "validation_error"),
        (errors.LeaseLost("x"), 500, "server_error", "InternalFailure"),
    ],
)
def test_what_the_platform_says_itself_has_its_code_for_openais_clients(
    error: errors.StandbyError, status: int, kind: str, code: str
) -> None:
    """What an engine has died of is not among what OpenAI's SDKs repeat: 408, 409, 429 and 5xx."""
    told, headers, body = openai_answer(aws_error(error, PLACE))
    envelope = json.loads(body)["error"]
    assert (told, envelope["type"], envelope["code"]) == (status, kind, code)
    if error.retry_after_s is not None:
        assert dict(headers)[b"retry-after"] == b"%d" % error.retry_after_s


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/endpoints/e/invocations", (Operation.INVOKE, "e", None)),
        ("/endpoints/e/invocations-response-stream", (Operation.STREAM, "e", None)),
        ("/endpoints/e/openai/v1/chat/completions", (Operation.OPENAI, "e", None)),
        ("/endpoints/e/inference-components/i/openai/v1/chat/completions", (Operation.OPENAI, "e", "i")),
        ("/endpoints/e/inference-components//openai/v1/chat/completions", None),
        ("/endpoints/e/inference-components/a/b/openai/v1/chat/completions", None),
        ("/endpoints/a/b/invocations", None),
        ("/endpoints/e/async-invocations", (Operation.ASYNC, "e", None)),
        ("/endpoints/e/openai/v1/models", None),
        ("/endpoints/e", None),
        ("/v1/chat/completions", None),
    ],
)
def test_paths(path: str, route: tuple[Operation, str, str | None] | None) -> None:
    found = route_of(path)
    assert (None if found is None else tuple(found)) == route


def headers(**values: str) -> list[tuple[bytes, bytes]]:
    return [(f"x-amzn-sagemaker-{name.replace('_', '-')}".encode(), value.encode()) for name, value in values.items()]


def test_what_headers_ask_for() -> None:
    assert wishes(INVOKE, [(b"content-type", b"text/csv")]) == Wishes()
    asked = headers(target_variant="B", session_id="NEW_SESSION", inference_component="c", custom_attributes="a=b")
    assert wishes(INVOKE, asked) == Wishes("B", "NEW_SESSION", "c")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (headers(custom_attributes="x" * 1025), "1024"),
        (headers(inference_id="i" * 65), "64"),
        (headers(target_variant="-"), "targetVariant"),
        (headers(target_model="m.tar.gz"), "not a multi-model endpoint and does not support target model header m.tar.gz"),
        (headers(target_container_hostname="h"), "not a multi-container endpoint"),
        (headers(enable_explanations="`true`"), "explainer"),
        (headers(target_variant="A") + headers(target_variant="B"), "more than once"),
    ],
)
def test_headers_that_are_refused(given: list[tuple[bytes, bytes]], words: str) -> None:
    with pytest.raises(AwsError) as refused:
        wishes(INVOKE, given)
    assert refused.value.code == "ValidationError"
    assert words in str(refused.value.message)


def test_a_name_that_can_be_no_endpoints_is_named() -> None:
    check_name(INVOKE)
    with pytest.raises(AwsError, match="63"):
        check_name(RuntimeRoute(Operation.INVOKE, "e" * 64))


def test_a_container_sees_what_is_meant_for_it() -> None:
    given = [
        (b"authorization", b"secret"),
        (b"content-type", b"application/json"),
        (b"accept", b"plain"),
        (b"x-amzn-sagemaker-accept", b"streamed"),
        (b"x-amzn-sagemaker-custom-attributes", b"a=b"),
        (b"x-amzn-sagemaker-target-variant", b"B"),
    ]
    shown = [(b"content-type", b"application/json"), (b"x-amzn-sagemaker-custom-attributes", b"a=b")]
    assert sorted(container_headers(INVOKE, given)) == sorted([*shown, (b"accept", b"plain")])
    stream = RuntimeRoute(Operation.STREAM, "e")
    assert sorted(container_headers(stream, given)) == sorted([*shown, (b"accept", b"streamed")])


@pytest.mark.parametrize(
    ("header", "tag", "seconds"),
    [(None, None, None), (b"10", None, 10.0), (None, "5s", 5.0), (b"off", "5s", None), (b"250ms", "5s", 0.25)],
)
def test_who_asks_for_heartbeats(header: bytes | None, tag: str | None, seconds: float | None) -> None:
    assert heartbeat_of(header, tag) == seconds


@pytest.mark.parametrize("header", [b"often", b"1ms", b"2h", b"\xff"])
def test_heartbeats_have_bounds(header: bytes) -> None:
    with pytest.raises(AwsError, match="heartbeat"):
        heartbeat_of(header, None)
