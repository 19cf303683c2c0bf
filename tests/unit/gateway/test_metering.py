"""What the meter lets through, what it counts, and where it says that an answer is none."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.domain.ask import Ask
from standby.gateway.metering import MAX_HELD, Meter, Usage
from standby.sagemaker.runtime.contract import AnswerBroken, Message
from standby.wire.sse import error_event

STREAM = Ask(prompt_bytes=10, stream=True)
ASKED_FOR = STREAM._replace(wants_usage=True)


def token(text: str, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "1", "choices": [choice], **more}).encode() + b"\n\n"


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 1}}
USED = b"data: " + json.dumps({"id": "1", "choices": [], "usage": USAGE}).encode() + b"\n\n"
DONE = b"data: [DONE]\n\n"
TOKENS = token("a") + token('b "usage": {"error": "\n\n') + token("c", "stop")


class Wire:
    """A meter and what came out of it."""

    def __init__(self, ask: Ask, *, events: bool = True, status: int = 200) -> None:
        self.messages: list[Message] = []
        self.meter = Meter(self._take, ask)
        self.kind = b"text/event-stream; charset=utf-8" if events else b"application/json"
        self.status = status

    async def _take(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def over(self) -> bool:
        return not self.messages[-1].get("more_body", True)

    async def take(self, *pieces: bytes, end: bool = True, **more: Any) -> Meter:
        """Send head and pieces; the last one ends the answer unless told otherwise."""
        head = {"type": "http.response.start", "status": self.status, "headers": [(b"content-type", self.kind)]}
        await self.meter(head)
        for number, piece in enumerate(pieces, 1):
            last = end and number == len(pieces)
            extra = more if number == len(pieces) else {}
            await self.meter({"type": "http.response.body", "body": piece, "more_body": not last, **extra})
        return self.meter


async def test_the_usage_chunk_is_for_the_meter_and_for_who_asked() -> None:
    for ask, told in ((STREAM, b""), (ASKED_FOR, USED)):
        wire = Wire(ask)
        meter = await wire.take(TOKENS, USED, DONE, b"")
        assert wire.body == TOKENS + told + DONE
        assert meter.usage() == Usage(7, 3, estimated=False)
        assert meter.whole


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, len(TOKENS + USED + DONE) - 1), max_size=12))
async def test_however_the_bytes_are_cut(cuts: list[int]) -> None:
    """Only whole events go out, each as soon as it is whole, and together they are the same bytes."""
    sent = TOKENS + USED + DONE
    ends = [0, *sorted(cuts), len(sent)]
    wire = Wire(STREAM)
    meter = await wire.take(*[sent[begin:end] for begin, end in pairwise(ends)])
    assert wire.body == TOKENS + DONE
    assert all(message["body"].endswith(b"\n\n") for message in wire.messages[1:] if message["body"])
    assert meter.usage() == Usage(7, 3, estimated=False)


async def test_a_whole_event_does_not_wait_for_the_next_one() -> None:
    wire = Wire(STREAM)
    await wire.take(token("a") + b'data: {"id"', end=False)
    assert wire.body == token("a")


async def test_an_endless_event_is_not_kept() -> None:
    wire = Wire(STREAM)
    await wire.take(b"data: " + b"x" * MAX_HELD, end=False)
    assert len(wire.body) > MAX_HELD


@pytest.mark.parametrize("word", ["usage", "error"])
async def test_a_huge_event_loses_nothing(word: str) -> None:
    """Log probabilities of a long prompt are larger than what is kept, and have every word in them."""
    huge = token("x", logprobs=[{"token": word, "logprob": -0.5}] * (MAX_HELD // 20))
    sent = token("a") + huge + token("c", "stop") + DONE
    size = 300_000
    wire = Wire(STREAM)
    await wire.take(*(sent[at : at + size] for at in range(0, len(sent), size)))
    assert wire.body == sent


@pytest.mark.parametrize("size", [7, 10_000])
async def test_an_engines_error_is_found_wherever_it_stands(size: int) -> None:
    sent = token("a") + b'data: {"id": "1", "error": {"message": "out of memory"}}\n\n' + DONE
    wire = Wire(STREAM)
    with pytest.raises(AnswerBroken, match="out of memory"):
        await wire.take(*(sent[at : at + size] for at in range(0, len(sent), size)), b"")
    assert wire.body == token("a")


async def test_usage_in_every_chunk_goes_on_untouched() -> None:
    """Where an engine tells it all the time, only the chunk that is nothing but usage is kept back."""
    running = token("a", usage={**USAGE, "completion_tokens": 1}) + token("b", "stop", usage=None)
    wire = Wire(STREAM)
    meter = await wire.take(running, USED + DONE)
    assert wire.body == running + DONE
    assert meter.usage().completion == 3


async def test_what_broke_off_is_counted_as_far_as_it_went() -> None:
    wire = Wire(STREAM)
    meter = await wire.take(token("a"), token("b"), token("c") + b"data: {", end=False)
    assert meter.usage() == Usage(3, 3, estimated=True)
    assert not meter.whole


async def test_nothing_is_used_before_an_engine_was_asked() -> None:
    wire = Wire(STREAM)
    assert wire.meter.usage() == Usage(0, 0, estimated=False)
    wire.meter.asked = True
    assert wire.meter.usage() == Usage(3, 0, estimated=True)


async def test_an_engines_refusal_uses_nothing() -> None:
    wire = Wire(STREAM, events=False, status=400)
    meter = await wire.take(b'{"error": {"message": "no"}}')
    assert meter.usage() == Usage(0, 0, estimated=False)
    assert wire.body == b'{"error": {"message": "no"}}'


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (b"", "without a finish reason"),
        (b'{"error": {"message": "out of memory"}}\n', "out of memory"),
        (b'{"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (b'data: {"error": {"message": "out of memory"}}\n\n' + DONE, "out of memory"),
        (b'data: {"error":"out of memory"}\n\n' + DONE, "out of memory"),
        (b'error: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (b'data: {"choices": [{"del', "without a finish reason"),
    ],
)
@pytest.mark.parametrize("together", [False, True])
async def test_an_end_that_is_none(end: bytes, says: str, together: bool) -> None:
    """Field case B26: an orderly end of the connection is no proper end of the answer; no [DONE] follows an error."""
    wire = Wire(STREAM)
    pieces = (token("a") + end,) if together else (token("a"), end)
    with pytest.raises(AnswerBroken, match=says):
        await wire.take(*pieces)
    assert wire.body == token("a")
    assert not wire.over
    assert not wire.meter.whole
    assert wire.meter.usage().completion == 1


@pytest.mark.parametrize("end", [token("b", "stop"), token("b", "stop") + USED, DONE, DONE.strip()])
async def test_either_mark_is_an_end(end: bytes) -> None:
    wire = Wire(STREAM)
    assert (await wire.take(token("a"), end, b"")).whole
    assert wire.over


async def test_a_stream_that_nobody_asked_for_is_left_alone() -> None:
    wire = Wire(Ask())
    assert (await wire.take(b"data: 1\n\n", b"data: 2\n\n")).whole
    assert wire.body == b"data: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize("tail", [b"", b'data: {"choices": [{"del'])
@pytest.mark.parametrize("held", [False, True])
async def test_the_relays_error_event_stands_alone(tail: bytes, held: bool) -> None:
    """The event in whose middle the stream broke off cannot be read: clients would stumble over it, not over the error."""
    event = error_event("connection_lost", "gone", tail)
    wire = Wire(STREAM)
    meter = await wire.take(token("a") + tail if held else token("a"), event if held else tail + event, fault="gone")
    assert wire.body == token("a") + event.lstrip(b"\n")
    assert wire.messages[-1]["fault"] == "gone"
    assert meter.usage() == Usage(3, 1, estimated=True)
    assert not meter.whole


@pytest.mark.parametrize("cut", [None, 30, -40])
async def test_the_usage_of_a_whole_answer(cut: int | None) -> None:
    answer = json.dumps({"choices": [{"text": '"usage": 5'}], "usage": USAGE, "timings": {}}).encode()
    wire = Wire(Ask(prompt_bytes=10), events=False)
    meter = await wire.take(*([answer] if cut is None else [answer[:cut], answer[cut:], b""]))
    assert wire.body == answer
    assert meter.usage() == Usage(7, 3, estimated=False)
    assert meter.whole


@pytest.mark.parametrize("answer", [b"{}", b'{"usage": null}', b'{"usage": {"prompt_tokens": "x", "completion_tokens": 1}}'])
async def test_a_whole_answer_without_usage_is_estimated(answer: bytes) -> None:
    meter = await Wire(Ask(prompt_bytes=10), events=False).take(answer)
    assert meter.usage() == Usage(3, 0, estimated=True)
