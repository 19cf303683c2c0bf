"""What engines tell of a stream's usage: asked for by us, read and kept back by the meter (field case B51)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from standby.gateway.metering import Meter
from standby.sagemaker.runtime.asks import ask_of, asking_usage
from standby.sagemaker.runtime.contract import Message
from support.engine_case import Served
from support.engine_client import QUESTION, client

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}], ids=["absent", "false"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_streams_usage_is_that_of_the_whole_answer(served: Served, path: str, options: dict[str, Any]) -> None:
    question = {name: value for name, value in QUESTION.items() if name != "messages"}
    question |= {"messages": QUESTION["messages"]} if "chat" in path else {"prompt": "The capital of France is"}
    async with client(served.handle) as http:
        whole = (await http.post(path, json=question)).json()["usage"]
        payload = {**question, "stream": True, **options}
        body = json.dumps(payload).encode()
        facts = ask_of(payload, body)
        sent: list[Message] = []

        async def take(message: Message) -> None:
            sent.append(message)

        meter = Meter(take, facts)
        json_type = {"content-type": "application/json"}
        async with http.stream("POST", path, content=asking_usage(payload, body, facts), headers=json_type) as answer:
            assert answer.status_code == 200
            headers = [(b"content-type", answer.headers["content-type"].encode())]
            await meter({"type": "http.response.start", "status": 200, "headers": headers})
            async for piece in answer.aiter_raw():
                await meter({"type": "http.response.body", "body": piece, "more_body": True})
        await meter({"type": "http.response.body", "body": b"", "more_body": False})
    told = meter.usage()
    assert (told.prompt, told.completion, told.estimated) == (whole["prompt_tokens"], whole["completion_tokens"], False)
    assert meter.whole
    events = b"".join(message.get("body", b"") for message in sent).strip().split(b"\n\n")
    assert events.pop() == b"data: [DONE]"
    assert all(json.loads(event.removeprefix(b"data: "))["choices"] for event in events)
