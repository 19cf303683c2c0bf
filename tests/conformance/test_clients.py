"""Clients as their users have them, each in a process of its own and none changed: `standby aws` points them here.

They are installed by `make conformance-clients`, beside standby's own environment; what is not installed is left out.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support.aws_user import CLIENTS, REAL, ROLE, TINY, AwsPlace, aws_place
from support.fake_engine_spec import short_dir
from support.user import BIN, PARIS, QUESTION

V2 = BIN.parent / "sagemaker-v2" / "bin" / "python"
V3 = BIN.parent / "sagemaker-v3" / "bin" / "python"
LANGCHAIN = next(CLIENTS.parent.glob("lib/*/site-packages/langchain_aws"), CLIENTS / "no langchain-aws")
FAKE = {"STANDBY_ENGINE": "fake"}

pytestmark = [pytest.mark.drill, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


def installed(path: Path, what: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not path.exists(), reason=f"{what} is not installed: make conformance-clients")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[AwsPlace]:
    with short_dir() as folder:
        async with aws_place(folder) as running:
            await running.user.serving("smol", REAL)
            yield running


def asked(place: AwsPlace) -> dict[str, Any]:
    return {"url": place.up.url, "endpoint": "smol", "question": QUESTION}


def new(name: str) -> dict[str, Any]:
    return {"name": name, "model": TINY, "role": ROLE, "question": QUESTION, "environment": FAKE}


@installed(CLIENTS / "aws", "the AWS CLI")
async def test_the_aws_cli(place: AwsPlace, tmp_path: Path) -> None:
    """A shell after `eval "$(standby aws)"`; `wait` would look a second time after 30 seconds, and need not."""
    container = f"Image=standby,ModelDataUrl={TINY},Environment={{STANDBY_ENGINE=fake}}"
    variant = "VariantName=v,ModelName=cli,ServerlessConfig={MemorySizeInMB=1024,MaxConcurrency=2}"
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"messages": [{"role": "user", "content": QUESTION}]}))
    answer = tmp_path / "answer.json"

    who = json.loads((await place.shell("aws sts get-caller-identity")).out)
    assert (who["Account"], who["Arn"]) == ("000000000000", "arn:aws:iam::000000000000:user/standby-aws")
    await place.shell(
        f"aws sagemaker create-model --model-name cli --primary-container '{container}' --execution-role-arn {ROLE}"
    )
    await place.shell(f"aws sagemaker create-endpoint-config --endpoint-config-name cli --production-variants '{variant}'")
    await place.shell("aws sagemaker create-endpoint --endpoint-name cli --endpoint-config-name cli --tags Key=a,Value=b")
    await place.shell("timeout 25 aws sagemaker wait endpoint-in-service --endpoint-name cli")
    told = await place.shell(
        f"aws sagemaker-runtime invoke-endpoint --endpoint-name cli --content-type application/json "
        f"--body fileb://{body} {answer}"
    )
    assert json.loads(told.out)["InvokedProductionVariant"] == "v"
    assert json.loads(answer.read_text())["choices"][0]["message"]["content"] == PARIS
    listed = json.loads((await place.shell("aws sagemaker list-endpoints --name-contains cli")).out)
    assert [one["EndpointName"] for one in listed["Endpoints"]] == ["cli"]
    again = await place.shell("aws sagemaker create-endpoint --endpoint-name cli --endpoint-config-name cli", code=255)
    assert "ValidationException" in again.err
    assert "Cannot create already existing endpoint" in again.err
    await place.shell("aws sagemaker delete-endpoint --endpoint-name cli")
    await place.shell("timeout 25 aws sagemaker wait endpoint-deleted --endpoint-name cli")


async def test_openais_client_with_a_minted_token(place: AwsPlace) -> None:
    told = await place.script("openai_minted", python=BIN / "python", **asked(place))
    assert told["whole"] == told["streamed"] == PARIS
    assert told["pieces"] > 3


@installed(CLIENTS / "litellm", "LiteLLM")
async def test_litellm(place: AwsPlace) -> None:
    """`sagemaker/` reads a list, as TGI answers; so its model says that it speaks so."""
    await place.user("create_model", ModelName="tgi", ExecutionRoleArn=ROLE, PrimaryContainer=tgi())
    await place.user.config("tgi", "tgi")
    await place.user("create_endpoint", EndpointName="tgi", EndpointConfigName="tgi")
    await place.user.wait("endpoint_in_service", "tgi")
    told = await place.script("litellm_calls", **{**asked(place), "endpoint": "tgi"})
    assert told["chat"] == told["streamed"] == PARIS
    assert told["finish_reason"] == "stop"
    assert told["plain"]
    assert "not found" in told["missing"]


def tgi() -> dict[str, Any]:
    source = {"S3Uri": REAL, "S3DataType": "S3Prefix", "CompressionType": "None"}
    return {"Image": "tgi", "ModelDataSource": {"S3DataSource": source}, "Environment": {"STANDBY_OUTPUT": "tgi"}}


@installed(LANGCHAIN, "langchain-aws")
async def test_langchain_aws(place: AwsPlace) -> None:
    told = await place.script("langchain_calls", **asked(place))
    assert told["chat"] == told["streamed"] == PARIS
    assert told["pieces"] > 3
    assert "Paris" in told["text"]


@installed(V2, "the SageMaker SDK v2")
async def test_sagemakers_sdk_v2(place: AwsPlace) -> None:
    told = await place.script("sagemaker_v2", python=V2, **new("sdk2"))
    assert told == {"answer": PARIS, "stream_ends": True}
    assert "Could not find" in await place.user.refused("describe_endpoint", EndpointName="sdk2")
    assert "Could not find" in await place.user.refused("describe_model", ModelName="sdk2")


@installed(V3, "the SageMaker SDK v3")
async def test_sagemakers_sdk_v3(place: AwsPlace) -> None:
    """Its own minted token opens the OpenAI route."""
    told = await place.script("sagemaker_v3", python=V3, **new("sdk3"))
    token = told.pop("token")
    assert told == {"answer": PARIS, "status": "InService", "listed": ["sdk3"], "model": "sdk3"}
    async with httpx.AsyncClient(base_url=place.up.url, trust_env=False, timeout=30) as client:
        answer = await client.post(
            "/endpoints/smol/openai/v1/chat/completions",
            headers={"authorization": f"Bearer {token}"},
            json={"model": "", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 24},
        )
    assert answer.json()["choices"][0]["message"]["content"] == PARIS
