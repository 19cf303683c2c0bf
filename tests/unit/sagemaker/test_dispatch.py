"""The control plane as an ASGI application: which operation, for whom, and how every outcome is told."""

import asyncio
import dataclasses
import json
import logging
from typing import Any

import pytest
from botocore.parsers import create_parser
from starlette.types import Message

from standby.domain import errors
from standby.domain.access import Scope
from standby.sagemaker.auth.caller import Caller
from standby.sagemaker.control.context import ControlCall
from standby.sagemaker.control.sts import HANDLERS as STS_HANDLERS
from standby.sagemaker.dispatch import Audited, Operation, Operations
from standby.sagemaker.errors import AwsError, validation
from standby.sagemaker.shapes import cbor
from standby.sagemaker.shapes.services import AUTOSCALING, CLOUDWATCH, SAGEMAKER, STS, operation
from support.asgi import Answer, ask
from support.aws_plane import TENANT, call, plane

FORM = [("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")]
WHO = b"Action=GetCallerIdentity&Version=2011-06-15"


def raising(error: Exception) -> Operation:
    async def fail(_caller: Caller, _request_id: str, _request: dict[str, Any]) -> dict[str, Any]:
        raise error

    return fail


def answering(output: dict[str, Any]) -> Operation:
    async def answer(_caller: Caller, _request_id: str, _request: dict[str, Any]) -> dict[str, Any]:
        return output

    return answer


def stubs(**by_name: Operation) -> Operations:
    """Return SageMaker's operations by name."""
    return {(SAGEMAKER, name): handler for name, handler in by_name.items()}


async def identity(caller: Caller, request_id: str, request: dict[str, Any]) -> dict[str, Any]:
    """Answer as the gateway's own table of operations does, without a context: this operation needs none."""
    context: Any = None
    return await STS_HANDLERS["GetCallerIdentity"](ControlCall(caller, context, request_id), request)


def error_of(answer: Answer) -> tuple[int, str, str]:
    body = json.loads(answer.body)
    assert body["message"] == body["Message"]
    return answer.status, body["__type"], body["message"]


async def test_an_operation_gets_its_caller_and_its_request_and_answers_by_its_shape() -> None:
    seen: list[Any] = []
    asked: list[Any] = []

    async def create(caller: Caller, request_id: str, request: dict[str, Any]) -> dict[str, Any]:
        seen.append((caller.tenant, request_id, request))
        return {"ModelArn": "arn:aws:sagemaker:us-east-1:111122223333:model/m"}

    answer = await call(
        plane(stubs(CreateModel=create), asked=asked), SAGEMAKER, "CreateModel", {"ModelName": "m", "Unknown": 1}
    )
    assert (answer.status, json.loads(answer.body)) == (200, {"ModelArn": "arn:aws:sagemaker:us-east-1:111122223333:model/m"})
    assert seen == [(TENANT, answer.headers["x-amzn-requestid"], {"ModelName": "m"})]
    assert answer.headers["content-type"] == "application/x-amz-json-1.1"
    assert asked == [("POST", b"/", b"", b'{"ModelName": "m", "Unknown": 1}', "sagemaker")]


@pytest.mark.parametrize(
    "target", ["SageMaker.Nothing", "SageMaker.CreateTrainingJob", "DynamoDB_20120810.ListTables", "x", ".", ""]
)
async def test_what_is_not_served_is_an_unknown_operation(target: str) -> None:
    answer = await ask(plane(stubs(CreateModel=answering({}))), headers=[("X-Amz-Target", target)], body=b"{}")
    assert error_of(answer)[:2] == (400, "UnknownOperationException")


async def test_no_target_at_all_says_so() -> None:
    status, code, message = error_of(await ask(plane({}), body=b"{}"))
    assert (status, code) == (400, "UnknownOperationException")
    assert "X-Amz-Target" in message


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"])
async def test_other_methods_are_told_to_use_post(method: str) -> None:
    answer = await ask(plane({}), method=method)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert (answer.body == b"") is (method == "HEAD")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (validation("no"), 400, "ValidationException"),
        (errors.NotFound("no"), 400, "ValidationException"),
        (errors.Conflict("no"), 400, "ValidationException"),
        (errors.EmptySource("no"), 400, "ValidationException"),
        (errors.RevisionConflict("no"), 400, "ConflictException"),
        (errors.BusUnavailable("no", retry_after_s=2.5), 503, "ServiceUnavailable"),
        (errors.QueueFull("no"), 400, "ThrottlingException"),
        (errors.Forbidden("no"), 400, "AccessDeniedException"),
    ],
)
async def test_refusals_of_the_platform_have_aws_names(error: Exception, status: int, code: str) -> None:
    answer = await call(plane(stubs(CreateModel=raising(error))), SAGEMAKER, "CreateModel", {"ModelName": "m"})
    assert error_of(answer) == (status, code, "no")
    assert answer.headers.get("x-amz-retry-after") == ("2500" if isinstance(error, errors.BusUnavailable) else None)


@pytest.mark.parametrize(
    "handler",
    [
        raising(RuntimeError("secret detail")),
        raising(errors.ForkFailed("secret detail")),
        answering({"Bogus": "secret detail"}),
    ],
)
async def test_mistakes_of_ours_tell_only_an_id_that_leads_to_the_log(
    handler: Operation, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = await call(plane(stubs(CreateModel=handler)), SAGEMAKER, "CreateModel", {"ModelName": "m"})
    status, code, message = error_of(answer)
    assert (status, code) == (500, "InternalFailure")
    assert answer.headers["x-amzn-requestid"] in message
    assert b"secret" not in answer.body
    [record] = caplog.records
    assert record.__dict__["request_id"] == answer.headers["x-amzn-requestid"]
    assert record.exc_info is not None


async def test_even_a_broken_check_of_signatures_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: Any, **__: Any) -> Caller:
        raise RuntimeError("secret")

    app = dataclasses.replace(plane(stubs(CreateModel=answering({}))), authenticate=broken)
    answer = await call(app, SAGEMAKER, "CreateModel", {"ModelName": "m"})
    assert error_of(answer)[:2] == (500, "InternalFailure")
    assert b"secret" not in answer.body
    assert answer.headers["x-amzn-requestid"] in str([record.__dict__ for record in caplog.records])


async def test_a_key_without_the_control_scope_may_only_ask_who_it_is() -> None:
    handlers = {**stubs(CreateModel=answering({})), (STS, "GetCallerIdentity"): identity}
    app = plane(handlers, scopes=(Scope.INVOKE,))
    status, code, message = error_of(await call(app, SAGEMAKER, "CreateModel", {"ModelName": "m"}))
    assert (status, code) == (400, "AccessDeniedException")
    assert "is not authorized to perform: sagemaker:CreateModel" in message
    assert (await ask(app, headers=FORM, body=WHO)).status == 200


async def test_nothing_is_parsed_before_the_caller_is_known() -> None:
    def nobody(*_: Any, **__: Any) -> Caller:
        raise AwsError("InvalidSignatureException", "no", 403)

    app = dataclasses.replace(plane(stubs(CreateModel=answering({}))), authenticate=nobody)
    assert error_of(await call(app, SAGEMAKER, "CreateModel", b"not json"))[:2] == (403, "InvalidSignatureException")


@pytest.mark.parametrize(
    "doubled",
    [
        [("X-Amz-Target", "SageMaker.DeleteModel")],
        [("Content-Length", "2")],
        [("Host", "a"), ("Host", "b")],
        [("Authorization", "a"), ("Authorization", "b")],
        [("X-Amz-Date", "a"), ("X-Amz-Date", "a")],
        [("Transfer-Encoding", "chunked")],
        [("Content-Encoding", "gzip")],
    ],
)
async def test_a_head_that_two_readers_could_read_in_two_ways_is_refused(doubled: list[tuple[str, str]]) -> None:
    app = plane(stubs(CreateModel=answering({}), DeleteModel=answering({})))
    headers = [("X-Amz-Target", "SageMaker.CreateModel"), ("Content-Length", "17"), *doubled]
    answer = await ask(app, headers=headers, body=b'{"ModelName":"m"}')
    assert error_of(answer)[:2] == (400, "ValidationException")


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_a_mebibyte_is_not_kept(announced: bool) -> None:
    body = b"{" + b" " * 1024 * 1024
    headers = [("X-Amz-Target", "SageMaker.CreateModel"), *([("Content-Length", str(len(body)))] if announced else [])]
    answer = await ask(plane(stubs(CreateModel=answering({}))), headers=headers, body=body, pieces=8)
    assert error_of(answer)[:2] == (413, "RequestEntityTooLargeException")


async def test_a_caller_who_leaves_gets_no_answer() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}
    await plane({})(scope, receive, send)
    assert sent == []


# ---- other protocols ------------------------------------------------------------------------------------------------


async def test_sts_says_in_xml_who_asks() -> None:
    asked: list[Any] = []
    answer = await ask(plane({(STS, "GetCallerIdentity"): identity}, asked=asked), headers=FORM, body=WHO)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/xml")
    read = create_parser("query").parse(
        {"body": answer.body, "headers": {}, "status_code": 200}, operation(STS, "GetCallerIdentity").output_shape
    )
    assert (read["Account"], read["Arn"]) == (TENANT, f"arn:aws:iam::{TENANT}:user/tester")
    assert read["ResponseMetadata"]["RequestId"] == answer.headers["x-amzn-requestid"]
    assert asked[0][-1] == "sts"


@pytest.mark.parametrize(
    "body",
    [
        b"Action=AssumeRole&Version=2011-06-15",
        b"Action=GetCallerIdentity&Version=1",
        b"Version=2011-06-15",
        b"x",
        b"",
        b"a=%ff",
    ],
)
async def test_other_forms_are_refused_in_xml(body: bytes) -> None:
    answer = await ask(plane({(STS, "GetCallerIdentity"): identity}), headers=FORM, body=body)
    read = create_parser("query").parse({"body": answer.body, "headers": {}, "status_code": answer.status}, None)
    assert answer.status == 400
    assert read["Error"]["Code"] in {"UnknownOperationException", "InvalidAction", "SerializationException"}


async def test_each_service_has_its_own_name_in_the_signature() -> None:
    asked: list[Any] = []
    app = plane(
        {
            (AUTOSCALING, "DescribeScalableTargets"): answering({"ScalableTargets": []}),
            (CLOUDWATCH, "ListMetrics"): answering({"Metrics": []}),
        },
        asked=asked,
    )
    assert (await call(app, AUTOSCALING, "DescribeScalableTargets", {"ServiceNamespace": "sagemaker"})).status == 200
    path = "/service/GraniteServiceVersion20100801/operation/ListMetrics"
    for answer in (
        await ask(app, path, headers=[("smithy-protocol", "rpc-v2-cbor")], body=cbor.encode({})),
        await ask(app, headers=[("X-Amz-Target", "GraniteServiceVersion20100801.ListMetrics")], body=b"{}"),
        await ask(app, headers=FORM, body=b"Action=ListMetrics&Version=2010-08-01"),
    ):
        assert answer.status == 200
    assert [services for *_, services in asked] == ["application-autoscaling", "monitoring", "monitoring", "monitoring"]


@pytest.mark.parametrize(
    "path", ["/service/", "/service/X/operation/ListMetrics", "/service/GraniteServiceVersion20100801/x/y"]
)
async def test_unknown_paths_of_rpc_are_refused_in_cbor(path: str) -> None:
    answer = await ask(plane({}), path, body=b"")
    assert (answer.status, cbor.decode(answer.body)["__type"]) == (400, "UnknownOperationException")
    assert answer.headers["smithy-protocol"] == "rpc-v2-cbor"


# ---- audit ----------------------------------------------------------------------------------------------------------


async def test_changes_are_audited_with_their_outcome_and_reads_are_not() -> None:
    told: list[Audited] = []

    async def audit(record: Audited) -> None:
        told.append(record)

    handlers = stubs(
        CreateModel=answering({"ModelArn": "a" * 20}),
        DeleteModel=raising(validation("no")),
        ListModels=answering({"Models": []}),
    )
    app = plane(handlers, audit=audit)
    first = await call(app, SAGEMAKER, "CreateModel", {"ModelName": "m"})
    await call(app, SAGEMAKER, "DeleteModel", {"ModelName": "m"})
    await call(app, SAGEMAKER, "ListModels", {})
    assert [(record.operation, record.outcome) for record in told] == [
        ("CreateModel", "ok"),
        ("DeleteModel", "ValidationException"),
    ]
    assert told[0].request_id == first.headers["x-amzn-requestid"]
    assert told[0].caller.tenant == TENANT


async def test_a_change_stays_done_where_it_could_not_be_audited() -> None:
    async def audit(_record: Audited) -> None:
        raise errors.BusUnavailable("away")

    app = plane(stubs(DeleteModel=answering({})), audit=audit)
    answer = await call(app, SAGEMAKER, "DeleteModel", {"ModelName": "m"})
    assert (answer.status, answer.body) == (200, b"")


async def test_a_cancelled_request_is_no_mistake_of_ours() -> None:
    with pytest.raises(asyncio.CancelledError):
        await call(plane(stubs(DeleteModel=raising(asyncio.CancelledError()))), SAGEMAKER, "DeleteModel", {"ModelName": "m"})  # type: ignore[arg-type] # a cancellation is no Exception
