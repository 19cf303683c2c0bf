"""When the first token came, and how long each other one took: from the meter, once a stream has ended."""

from __future__ import annotations

import json

import pytest

from standby.domain.ask import Ask
from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.instance import Rung
from standby.gateway.accounts import Accounts
from standby.gateway.desk import AllRooms, Desk, Route
from standby.gateway.metering import Meter
from standby.sagemaker.runtime.contract import AnswerBroken, Message
from standby.telemetry import metrics
from support.builders import an_endpoint

TOKEN = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
LAST = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def used(tokens: int) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
    return b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"


class Stream:
    """A meter under a clock that the test moves."""

    def __init__(self, *, events: bool = True) -> None:
        self.now = 100.0
        self.meter = Meter(self._nowhere, Ask(stream=events), lambda: self.now)
        self.kind = b"text/event-stream" if events else b"application/json"

    async def _nowhere(self, _message: Message) -> None:
        """Nobody reads it."""

    async def begin(self) -> None:
        await self.meter({"type": "http.response.start", "status": 200, "headers": [(b"content-type", self.kind)]})

    async def take(self, at: float, data: bytes, *, last: bool = False) -> None:
        self.now = at
        await self.meter({"type": "http.response.body", "body": data, "more_body": not last})


async def test_the_first_event_counts_when_it_is_whole() -> None:
    stream = Stream()
    await stream.begin()
    await stream.take(101, TOKEN[:10])
    assert stream.meter.first_event_at is None
    await stream.take(102, TOKEN[10:])
    await stream.take(103, TOKEN)
    assert stream.meter.first_event_at == 102


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ((used(5), DONE), 2.0),  # eight seconds for four more tokens, however they were cut into events
        ((LAST, DONE), 8 / 4),  # nobody says how many: five events
    ],
)
async def test_the_pace_is_the_time_between_first_and_last_for_each_other_token(
    end: tuple[bytes, ...], expected: float
) -> None:
    stream = Stream()
    await stream.begin()
    await stream.take(102, TOKEN)
    await stream.take(104, TOKEN)
    await stream.take(106, TOKEN)
    await stream.take(110, b"".join(end), last=True)
    assert stream.meter.pace() == pytest.approx(expected)


async def test_what_broke_off_or_had_one_token_has_no_pace() -> None:
    broken = Stream()
    await broken.begin()
    await broken.take(101, TOKEN)
    await broken.take(102, TOKEN)
    assert (broken.meter.first_event_at, broken.meter.pace()) == (101, None)
    with pytest.raises(AnswerBroken):
        await broken.take(103, b"", last=True)
    assert broken.meter.pace() is None
    single = Stream()
    await single.begin()
    await single.take(101, TOKEN + used(1) + DONE, last=True)
    assert (single.meter.first_event_at, single.meter.pace()) == (101, None)


async def test_a_whole_answer_has_neither() -> None:
    plain = Stream(events=False)
    await plain.begin()
    await plain.take(101, b"{}", last=True)
    assert (plain.meter.first_event_at, plain.meter.pace()) == (None, None)


async def test_an_account_takes_both_and_a_closed_one_takes_nothing() -> None:
    accounts = Accounts()
    route = Route(an_endpoint(name="streamed"), Variant(model="m", policy=ScalePolicy()))
    desk = Desk(route, AllRooms(0), lambda: 0.0, lambda: 0.0, lambda _desk, _urgent: None)
    account = accounts.of(desk)
    stream = Stream()
    await stream.begin()
    await stream.take(102, TOKEN)
    await stream.take(110, TOKEN + used(5) + DONE, last=True)
    account.streamed(Rung.COLD, stream.meter, 90.0)
    place = {"tenant": desk.route.endpoint.tenant, "endpoint": "streamed"}
    told = metrics.GATEWAY.get_sample_value
    assert told("standby_time_to_first_token_seconds_sum", {**place, "rung": "cold"}) == 12
    assert told("standby_time_per_output_token_seconds_sum", place) == 2
    accounts.close(desk)
    account.streamed(Rung.COLD, stream.meter, 90.0)
    assert told("standby_time_to_first_token_seconds_sum", {**place, "rung": "cold"}) is None
