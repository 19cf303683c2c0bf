"""The OpenAI route below an endpoint, and who may ask at all."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from support.raw_http import RawClient
from support.runtime_answers import good
from support.runtime_rig import QUESTION, RuntimeRig, runtime_rig
from support.signed import TENANT
from support.upstream import Call


@pytest_asyncio.fixture
async def there() -> AsyncIterator[RuntimeRig]:
    async with runtime_rig() as rig:
        rig.answers(good)
        yield rig


# ---- the OpenAI route --------------------------------------------------------------------------------------------------


def openai_client(there: RuntimeRig, key: str, route: str = "e") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{there.url}/endpoints/{route}/openai/v1",
        api_key=key,
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    )


ASKED: dict[str, Any] = {"model": "", "messages": [{"role": "user", "content": "?"}]}


async def test_openais_client_with_a_minted_token_and_with_our_key(there: RuntimeRig) -> None:
    for key in (there.token(time.time()), there.gateway.secret):
        async with openai_client(there, key) as client:
            answer = await client.chat.completions.create(**ASKED)
            assert answer.choices[0].message.content == "Paris"
    assert json.loads(there.asked[0].body)["model"] == ""


async def test_openais_errors_have_openais_envelope(there: RuntimeRig) -> None:
    async with openai_client(there, there.gateway.secret, "x") as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(**ASKED)
    assert raised.value.body == {
        "message": f"Endpoint x of account {TENANT} not found.",
        "type": "invalid_request_error",
        "param": None,
        "code": "validation_error",
    }
    assert raised.value.response.headers["x-amzn-requestid"]

    async def refuses(call: Call) -> None:
        await call.json(400, b'{"error": {"message": "too long"}}')

    there.answers(refuses)
    async with openai_client(there, there.gateway.secret) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.chat.completions.create(**ASKED)
    assert raised.value.code == "model_error"
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["message"] == "too long"


async def test_components_are_named_in_the_path_only(there: RuntimeRig) -> None:
    async with openai_client(there, there.gateway.secret, "e/inference-components/i") as client:
        with pytest.raises(openai.BadRequestError, match="Inference Component Name"):
            await client.chat.completions.create(**ASKED)
    async with openai_client(there, there.gateway.secret) as client:
        with pytest.raises(openai.BadRequestError, match="not allowed on this route"):
            await client.chat.completions.create(**ASKED, extra_headers={"X-Amzn-SageMaker-Inference-Component": "i"})


# ---- who may ask -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "authorization", "status", "code"),
    [
        ("invocations", None, 403, "MissingAuthenticationTokenException"),
        ("invocations", "Bearer sk-standby-0-0", 403, "UnrecognizedClientException"),
        ("invocations", "Bearer sagemaker-api-key-AAAA", 403, None),
        ("invocations-response-stream", "Bearer nobody", 403, "UnrecognizedClientException"),
        ("invocations", "AWS4-HMAC-SHA256 nonsense", None, None),
    ],
)
async def test_who_is_not_known_is_refused(
    there: RuntimeRig, path: str, authorization: str | None, status: int | None, code: str | None
) -> None:
    client: RawClient = await there.gateway.connect()
    headers = {} if authorization is None else {"authorization": authorization}
    answer = await client.request("POST", f"/endpoints/e/{path}", headers, QUESTION)
    assert answer.status == (status or answer.status)
    assert answer.status in (400, 403)
    assert code in (None, answer.headers["x-amzn-errortype"])
    assert there.asked == []


async def test_signatures_are_not_for_the_openai_route(there: RuntimeRig) -> None:
    client = await there.gateway.connect()
    headers = {"authorization": "AWS4-HMAC-SHA256 Credential=x"}
    answer = await client.request("POST", "/endpoints/e/openai/v1/chat/completions", headers, QUESTION)
    assert answer.status == 403
    assert "bearer" in json.loads(answer.body)["error"]["message"].lower()
