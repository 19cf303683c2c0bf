"""``POST /endpoints/{name}/invocations`` with the real model: its three forms, its streams, its ladder."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from standby.warm_pool.run_dir import run_dir
from support.user import PARIS, QUESTION, Up

pytestmark = [pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module")]

CHAT = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 24}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def smol(running: Up) -> AsyncIterator[Up]:
    await running.serve("smol", "s3://models/smollm2/", keep_ready="10m")
    yield running


async def test_the_three_forms(smol: Up) -> None:
    prompt = "The capital of France is"
    chat = await smol.api.post("/endpoints/smol/invocations", json=CHAT)
    text = await smol.api.post("/endpoints/smol/invocations", json={"prompt": prompt, "max_tokens": 6, "temperature": 0})
    inputs = await smol.api.post(
        "/endpoints/smol/invocations",
        json={"inputs": prompt, "parameters": {"max_new_tokens": 6, "do_sample": False, "return_full_text": True}},
    )

    assert chat.json()["choices"][0]["message"]["content"] == PARIS
    assert chat.headers["x-amzn-invoked-production-variant"] == "AllTraffic"
    assert "Paris" in text.json()["choices"][0]["text"]
    assert inputs.json() == {"generated_text": prompt + text.json()["choices"][0]["text"]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "not an object"),
        (b'{"question": "?"}', "none of 'messages', 'prompt', 'inputs'"),
        (b'{"inputs": "x", "parameters": {"max_tokenz": 1}}', "max_tokenz"),
    ],
)
async def test_bodies_that_are_no_form(smol: Up, body: bytes, words: str) -> None:
    answer = await smol.api.post("/endpoints/smol/invocations", content=body)

    assert (answer.status_code, answer.json()["OriginalStatusCode"]) == (424, 400)
    assert words in answer.json()["OriginalMessage"]


async def test_any_content_type_is_read_as_json(smol: Up) -> None:
    """``curl -d`` says that it sends a form."""
    headers = {"content-type": "application/x-www-form-urlencoded"}

    answer = await smol.api.post("/v1/chat/completions", json={**CHAT, "model": "smol"}, headers=headers)

    assert answer.json()["choices"][0]["message"]["content"] == PARIS


async def test_a_stream_is_the_engines_own_byte_for_byte(smol: Up) -> None:
    """Only ids, the time and the engine's stopwatch differ between two answers to the same question."""
    await smol.ask("smol")
    (socket,) = run_dir(smol.state / "node").glob("smol-*/engine.sock")
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=60) as engine:
        own = await _raw(engine, "/v1/chat/completions")
        through = await _raw(smol.api, "/endpoints/smol/invocations")

    assert through.endswith(b"data: [DONE]\n\n")
    assert through.count(b"\n\n") > 8
    assert _timeless(through) == _timeless(own)


async def _raw(client: httpx.AsyncClient, path: str) -> bytes:
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}, "cache_prompt": False}
    async with client.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        return b"".join([piece async for piece in answer.aiter_raw()])


def _timeless(stream: bytes) -> bytes:
    without_ids = re.sub(rb'"(id|created)":("[^"]*"|\d+)', rb'"\1":0', stream)
    return re.sub(rb'"timings":\{[^}]*\}', b'"timings":{}', without_ids)


async def test_the_answer_is_the_same_from_every_rung(running: Up) -> None:
    """Greedy answers before and after asleep and staged are equal to the last letter, and each rung was really there."""
    await running.serve("ladder", "s3://models/smollm2/", keep_ready="1s", keep_asleep="10s", keep_staged="10m")
    question = "Write one sentence about rivers."
    answers = [await running.ask("ladder", question)]
    await running.until_resting("ladder", "asleep")
    answers.append(await running.ask("ladder", question))
    await running.until_resting("ladder", "staged")
    answers.append(await running.ask("ladder", question))

    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert [answer.headers["x-standby-rung"] for answer in answers][1:] == ["asleep", "staged"]
    assert len(texts[0]) > 20
    assert texts == [texts[0]] * 3


async def test_asleep_gives_the_memory_back(running: Up) -> None:
    """Of a 98 MB model at most the interpreter, the buffers and the key-value cache stay."""
    await running.ask("ladder")
    instance = await running.until_resting("ladder", "asleep")

    assert 0 < instance["resident_bytes"] < 98_362_432


async def test_streamed_inputs_say_the_same_as_whole_ones(smol: Up) -> None:
    """LMI's lines by default, TGI's events where the caller asks for them; both add up to the whole answer."""
    inputs = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 6, "do_sample": False}}
    path = "/endpoints/smol/invocations"
    whole = (await smol.api.post(path, json=inputs)).json()["generated_text"]

    lines = await smol.api.post(path, json={**inputs, "stream": True})
    events = await smol.api.post(path, json={**inputs, "stream": True}, headers={"accept": "text/event-stream"})

    assert lines.headers["content-type"] == "application/jsonlines"
    told = [json.loads(line) for line in lines.text.splitlines()]
    assert "".join(line["token"]["text"] for line in told) == told[-1]["generated_text"] == whole
    assert told[-1]["details"] == {"finish_reason": "length", "generated_tokens": 6, "inputs": None}
    assert events.headers["content-type"].startswith("text/event-stream")
    told = [json.loads(event.removeprefix("data:")) for event in events.text.strip().split("\n\n")]
    assert "".join(event["token"]["text"] for event in told) == told[-1]["generated_text"] == whole
