"""AWS's own client library against a whole gateway: what is signed, what is parsed and what comes back."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from standby.domain.access import Scope
from support.aws_gateway import ONE, TWO, AwsGateway, aws_gateway
from support.raw_http import RawAnswer, RawClient

TARGET = {"x-amz-target": "SageMaker.ListModels", "content-type": "application/x-amz-json-1.1"}


@pytest.fixture
async def aws(tmp_path: Path) -> AsyncIterator[AwsGateway]:
    async with aws_gateway(tmp_path) as started:
        yield started


async def refused(aws: AwsGateway, function: Any, **request: Any) -> tuple[int, str, str]:
    """Return status, code and message of a refusal as botocore tells them."""
    with pytest.raises(ClientError) as caught:
        await aws.call(function, **request)
    told = caught.value.response
    assert told["ResponseMetadata"]["RequestId"]
    return told["ResponseMetadata"]["HTTPStatusCode"], told["Error"]["Code"], told["Error"]["Message"]


async def test_sts_knows_who_asks_and_session_tokens_count(aws: AwsGateway) -> None:
    for tenant, session in ((ONE, False), (TWO, True)):
        sts = aws.client("sts", await aws.key(tenant, session=session))
        identity = await aws.call(sts.get_caller_identity)
        assert (identity["Account"], identity["Arn"]) == (tenant, f"arn:aws:iam::{tenant}:user/tester")


async def test_refusals_reach_the_client_with_code_and_message(aws: AwsGateway) -> None:
    client = aws.client("sagemaker", await aws.key())
    status, code, message = await refused(aws, client.describe_endpoint, EndpointName="gone")
    assert (status, code) == (400, "ValidationException")
    assert message == f'Could not find endpoint "arn:aws:sagemaker:us-east-1:{ONE}:endpoint/gone".'
    serverless = {"MemorySizeInMB": 2048, "MaxConcurrency": 500}
    variant = {"VariantName": "v", "ModelName": "m", "ServerlessConfig": serverless}
    status, code, message = await refused(
        aws, client.create_endpoint_config, EndpointConfigName="c", ProductionVariants=[variant]
    )
    assert (status, code) == (400, "ValidationException")
    assert "'productionVariants.1.member.serverlessConfig.maxConcurrency'" in message
    assert "less than or equal to 200" in message


async def test_an_operation_that_is_not_served_is_unknown(aws: AwsGateway) -> None:
    client = aws.client("sagemaker", await aws.key())
    assert (await refused(aws, client.list_notebook_instances))[:2] == (400, "UnknownOperationException")


async def test_a_key_for_invoking_only_changes_nothing(aws: AwsGateway) -> None:
    client = aws.client("sagemaker", await aws.key(scopes=(Scope.INVOKE,)))
    status, code, message = await refused(aws, client.delete_model, ModelName="m")
    assert (status, code) == (400, "AccessDeniedException")
    assert "sagemaker:DeleteModel" in message


async def test_lists_come_in_pages_and_a_token_is_of_one_tenant(aws: AwsGateway) -> None:
    client, other = aws.client("sagemaker", await aws.key(ONE)), aws.client("sagemaker", await aws.key(TWO))
    for number in range(5):
        container = {"Image": "standby", "ModelDataUrl": f"s3://nowhere/{number}.tar.gz"}
        await aws.call(client.create_model, ModelName=f"m{number}", PrimaryContainer=container)
    paginator = client.get_paginator("list_models")
    pages = await asyncio.to_thread(lambda: list(paginator.paginate(PaginationConfig={"PageSize": 2})))
    assert [[model["ModelName"] for model in page["Models"]] for page in pages] == [["m4", "m3"], ["m2", "m1"], ["m0"]]
    token = pages[0]["NextToken"]
    assert (await refused(aws, other.list_models, NextToken=token))[1] == "ValidationException"
    assert (await refused(aws, client.list_models, NextToken=token, NameContains="m"))[1] == "ValidationException"


async def test_requests_without_a_signature_come_nowhere(aws: AwsGateway) -> None:
    async with httpx.AsyncClient(base_url=aws.url, trust_env=False) as client:
        answer = await client.post("/", headers=TARGET, content=b"{}")
        assert (answer.status_code, answer.json()["__type"]) == (403, "MissingAuthenticationTokenException")
        assert answer.headers["x-amzn-requestid"]
        for method in ("GET", "OPTIONS", "HEAD", "PUT"):
            answer = await client.request(method, "/")
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        answer = await client.post("/", headers=TARGET, content=b"x" * (1024 * 1024 + 1))
        assert (answer.status_code, answer.json()["__type"]) == (413, "RequestEntityTooLargeException")
        ready = (await client.get("/readyz")).json()
        assert "aws" in ready["staleness_s"]


async def raw(aws: AwsGateway, head: str, body: bytes = b"{}") -> RawAnswer:
    client = await RawClient.connect("127.0.0.1", aws.port)
    try:
        client.writer.write(f"POST / HTTP/1.1\r\nhost: t\r\n{head}\r\n\r\n".encode() + body)
        return await client.answer()
    finally:
        client.writer.close()


async def test_no_request_hides_in_another(aws: AwsGateway) -> None:
    """The port's parser or the control plane refuses it before any key is looked at."""
    for head in (
        "x-amz-target: SageMaker.ListModels\r\nx-amz-target: SageMaker.DeleteModel\r\ncontent-length: 2",
        "content-length: 2\r\ncontent-length: 2",
        "content-length: 2\r\ncontent-length: 40",
        "content-length: 2\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked, identity",
        "content-length: +2",
        "content-length: 2\r\nhost: other",
        "content-length: 2\r\ncontent-encoding: gzip",
        "x-amz-target : SageMaker.ListModels\r\ncontent-length: 2",
    ):
        assert (await raw(aws, head)).status == 400, head


async def test_the_id_of_a_request_is_new_each_time(aws: AwsGateway) -> None:
    answers = [await raw(aws, "content-length: 2") for _ in range(3)]
    assert len({answer.headers["x-amzn-requestid"] for answer in answers}) == 3
    assert {json.loads(answer.body)["__type"] for answer in answers} == {"UnknownOperationException"}
