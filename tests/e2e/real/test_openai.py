"""openai-python against ``/v1``, with the real model, at zero and warm."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from support.user import PARIS, QUESTION, Up

pytestmark = [pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module")]

SERVED = "org/SmolLM2-135M"
ASKED = [ChatCompletionUserMessageParam(role="user", content=QUESTION)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(running: Up) -> AsyncIterator[AsyncOpenAI]:
    await running.serve("smol", "s3://models/smollm2/", served_name=SERVED, keep_ready="10m")
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key=running.key, max_retries=0, timeout=60) as found:
        yield found


async def test_the_catalogue_holds_what_is_at_zero(client: AsyncOpenAI) -> None:
    """Field case B52, with a name that has a slash in it."""
    listed = [model.id async for model in client.models.list()]
    one = await client.models.retrieve(SERVED)

    assert listed == [SERVED]
    assert (one.id, one.object) == (SERVED, "model")


async def test_a_chat_from_zero_and_warm(client: AsyncOpenAI, running: Up) -> None:
    rungs, texts = [], []
    for _ in range(2):
        raw = await client.chat.completions.with_raw_response.create(model=SERVED, messages=ASKED, temperature=0)
        rungs.append(raw.headers["x-standby-rung"])
        answer = raw.parse()
        texts.append(answer.choices[0].message.content)
        assert answer.model == SERVED
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8

    assert rungs == ["cold", "ready"]
    assert texts == [PARIS, PARIS]
    assert len((await running.show("smol"))["instances"]) == 1


async def test_a_chat_is_streamed(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model=SERVED, messages=ASKED, temperature=0, stream=True)
    chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == PARIS
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)


async def test_a_stream_may_end_with_the_usage(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=SERVED, messages=ASKED, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == PARIS
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8


async def test_a_text_is_completed_whole_and_streamed(client: AsyncOpenAI) -> None:
    whole = await client.completions.create(model=SERVED, prompt="The capital of France is", max_tokens=6, temperature=0)
    stream = await client.completions.create(
        model=SERVED, prompt="The capital of France is", max_tokens=6, temperature=0, stream=True
    )
    pieces = [chunk.choices[0].text async for chunk in stream]

    assert "Paris" in whole.choices[0].text
    assert "".join(pieces) == whole.choices[0].text
    assert len(pieces) > 2


async def test_a_wrong_key_is_an_authentication_error(client: AsyncOpenAI) -> None:
    stranger = client.with_options(api_key="sk-standby-0000000000000000-nothing")

    with pytest.raises(openai.AuthenticationError) as caught:
        await stranger.chat.completions.create(model=SERVED, messages=ASKED)
    with pytest.raises(openai.AuthenticationError):
        await stranger.models.retrieve(SERVED)

    assert caught.value.code == "invalid_api_key"
    assert caught.value.response.headers["www-authenticate"] == "Bearer"


async def test_an_unknown_model_is_not_found(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as asked:
        await client.chat.completions.create(model="org/nothing", messages=ASKED)
    with pytest.raises(openai.NotFoundError) as looked_up:
        await client.models.retrieve("org/nothing")

    for caught in (asked, looked_up):
        assert caught.value.code == "model_not_found"
        assert "'org/nothing' does not exist" in caught.value.message


async def test_what_the_engine_refuses_is_a_bad_request(client: AsyncOpenAI) -> None:
    """The engine's own 400 passes through; a body without a model is refused before any engine is asked."""
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model=SERVED, messages=ASKED, extra_body={"messages": "no list"})
    with pytest.raises(openai.BadRequestError) as unnamed:
        await client.chat.completions.create(model="", messages=ASKED)

    assert "no 'model'" in unnamed.value.message


async def test_a_prompt_beyond_the_context_is_a_bad_request(client: AsyncOpenAI) -> None:
    long = [ChatCompletionUserMessageParam(role="user", content="one two three " * 2000)]

    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=SERVED, messages=long)

    assert "context" in caught.value.message


async def test_a_body_that_is_too_large_is_413(client: AsyncOpenAI) -> None:
    huge = [ChatCompletionUserMessageParam(role="user", content="x" * (6 * 1024 * 1024))]

    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(model=SERVED, messages=huge)

    assert caught.value.status_code == 413
    assert "6291456" in caught.value.message


async def test_a_full_waiting_room_is_a_rate_limit(client: AsyncOpenAI, running: Up) -> None:
    """An endpoint at zero whose waiting room holds nobody refuses at once, and says when to come again."""
    body = {"name": "narrow", "model": "smol", "policy": {"queue_requests": 0}}
    await running.call("POST", "/endpoints", body)

    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model="narrow", messages=ASKED)

    assert caught.value.code == "queue_full"
    assert int(caught.value.response.headers["retry-after"]) >= 1
