"""Comments in silent streams, and how errors are told once the head has gone out."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from standby.sagemaker.errors import AwsError
from standby.sagemaker.runtime.contract import AnswerBroken, ContainerAnswered, Message
from standby.sagemaker.runtime.openai_outlet import OpenAIOutlet, envelope_of
from support.clock import Clock
from support.waiting import until

EVERY_S = 0.02
EVENT = b"data: {}\n\n"


class Client:
    """What the outlet has sent."""

    def __init__(
        self,
        *,
        heartbeat_s: float | None = EVERY_S,
        passes_errors: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.messages: list[Message] = []
        self.outlet = OpenAIOutlet(self._take, [(b"x-request-id", b"r")], monotonic, heartbeat_s, passes_errors=passes_errors)

    async def _take(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def heads(self) -> list[Message]:
        return [message for message in self.messages if message["type"] == "http.response.start"]

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if "body" in message]

    @property
    def comments(self) -> list[bytes]:
        return [body for body in self.bodies if body.startswith(b":")]

    async def head(self, status: int = 200, kind: bytes = b"text/event-stream") -> None:
        headers = [(b"content-type", kind), (b"x-engine", b"1")]
        await self.outlet({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, data: bytes, *, more: bool = True) -> None:
        await self.outlet({"type": "http.response.body", "body": data, "more_body": more})

    async def silence(self) -> None:
        """Long enough for several comments."""
        await asyncio.sleep(5 * EVERY_S)


@asynccontextmanager
async def a_client(**options: Any) -> AsyncIterator[Client]:
    client = Client(**options)
    try:
        yield client
    finally:
        client.outlet.close()


async def test_silence_before_the_answer_sends_the_head_and_comments() -> None:
    async with a_client() as client:
        await until(lambda: len(client.comments) >= 2)
        (head,) = client.heads
        assert head["status"] == 200
        assert (b"x-request-id", b"r") in head["headers"]
        assert (b"content-type", b"text/event-stream") in head["headers"]
        said = rb": standby waiting for the first token, \d+ s since the request came\n\n"
        assert re.fullmatch(said, client.comments[0])
        await client.head()
        await client.body(EVENT, more=False)
        assert len(client.heads) == 1
        assert client.bodies[-1] == EVENT


async def test_silence_between_tokens_too_but_never_inside_an_event() -> None:
    async with a_client() as client:
        await client.head()
        assert (b"x-engine", b"1") in client.heads[0]["headers"]
        await client.body(EVENT)
        await until(lambda: client.comments)
        assert b"the engine is silent" in client.comments[0]
        await client.body(b"data: {")
        before = len(client.comments)
        await client.silence()
        assert len(client.comments) == before
        await client.body(b"}\n\n")
        await until(lambda: len(client.comments) > before)


async def test_nothing_follows_the_end() -> None:
    async with a_client() as client:
        await client.head()
        await client.body(EVENT, more=False)
        await client.silence()
        assert client.bodies == [EVENT]
        await client.outlet.fail(b"{}")
        assert client.bodies == [EVENT]


async def test_bytes_that_flow_need_no_comments() -> None:
    clock = Clock()
    async with a_client(monotonic=clock) as client:
        await client.head()
        for _ in range(30):
            await client.body(EVENT)
            clock.now += EVERY_S / 2
            await asyncio.sleep(EVERY_S / 2)  # real time, in which it looks whether anything is due
        assert not client.comments
        clock.now += EVERY_S
        await until(lambda: client.comments)


async def test_a_whole_answer_gets_no_comments() -> None:
    async with a_client() as client:
        await client.head(kind=b"application/json")
        await client.body(b"{")
        await client.silence()
        assert client.bodies == [b"{"]


async def test_an_error_in_band() -> None:
    async with a_client() as client:
        await until(lambda: client.comments)
        await client.outlet.broken(AwsError("ServiceUnavailable", "away", 503))
        assert client.messages[-1]["more_body"] is False
        told = json.loads(client.bodies[-1].removeprefix(b"data: "))["error"]
        assert (told["message"], told["code"]) == ("away", "ServiceUnavailable")


async def test_an_error_closes_the_event_that_it_interrupts() -> None:
    async with a_client(heartbeat_s=None) as client:
        await client.head()
        await client.body(b"data: {")
        await client.outlet.fail(b"{}")
        assert client.bodies[-1] == b"\n\ndata: {}\n\n"


async def test_an_engines_refusal_goes_on_untouched_while_it_can() -> None:
    async with a_client(passes_errors=True) as client:
        await client.head(400, b"application/json")
        await client.body(b'{"error": 1}', more=False)
        await client.silence()
        assert client.heads[0]["status"] == 400
        assert client.bodies == [b'{"error": 1}']


@pytest.mark.parametrize("passes_errors", [False, True])
async def test_an_engines_refusal_after_the_head_is_raised(passes_errors: bool) -> None:
    async with a_client(passes_errors=passes_errors) as client:
        await until(lambda: client.comments)
        await client.head(429)
        with pytest.raises(ContainerAnswered) as raised:
            await client.body(b"busy", more=False)
        assert (raised.value.status, raised.value.body) == (429, b"busy")


async def test_a_whole_answer_after_the_head_is_no_answer() -> None:
    async with a_client() as client:
        await until(lambda: client.comments)
        with pytest.raises(AnswerBroken, match="did not answer with a stream"):
            await client.head(kind=b"application/json")


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        (b'{"error": {"message": "too\\nlong", "code": "x"}}', "too\nlong", "x"),
        (b'{"detail": "no"}', '{"detail": "no"}', "engine_4xx"),
        (b"", "the engine answered 404", "engine_4xx"),
    ],
)
def test_an_engines_words_become_one_event(body: bytes, message: str, code: str) -> None:
    envelope = envelope_of(404, body)
    assert b"\n" not in envelope
    told = json.loads(envelope)["error"]
    assert (told["message"], told["code"]) == (message, code)
