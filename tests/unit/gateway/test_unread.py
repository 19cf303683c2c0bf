"""Prompts that are still to be read: entered with a grant, gone with the first byte or with the grant."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.domain.ask import Ask
from standby.domain.endpoint import ScalePolicy, Variant
from standby.gateway.desk import AllRooms, Desk, Grant, Route
from standby.gateway.metering import Meter
from standby.gateway.unread import Unread
from standby.sagemaker.runtime.contract import Message
from support.builders import an_endpoint, an_instance


@pytest.mark.decision
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 1000), st.lists(st.integers(0, 9), max_size=2)), max_size=20))
def test_the_board_holds_what_was_not_read(moves: list[tuple[str, int, list[int]]]) -> None:
    """Each is read at most once, in any order, and told so as often as anybody likes."""
    board: dict[str, int] = {}
    every: list[Unread] = []
    read: set[int] = set()
    for instance, prompt_bytes, reads in moves:
        every.append(Unread(board, instance, prompt_bytes))
        for place in reads:
            if place < len(every):
                every[place].read()
                read.add(place)
        left: Counter[str] = Counter()
        for place, (name, held, _) in enumerate(moves[: len(every)]):
            left[name] += held if place not in read else 0
        assert board == {name: held for name, held in left.items() if held}


async def a_grant(desk: Desk, ask: Ask) -> Grant:
    return await desk.acquire(arrived=0.0, arrived_at=0.0, body_bytes=10, again=False, ask=ask)


async def test_streams_are_sent_where_nothing_is_to_be_read_and_leave_no_trace() -> None:
    """A whole answer does not tell when its prompt was read, so it counts as a request and no more."""
    route = Route(an_endpoint(), Variant(model="m", policy=ScalePolicy()))
    desk = Desk(route, AllRooms(limit=1000), lambda: 0.0, lambda: 0.0, lambda _desk, _urgent: None)
    for name in ("i1", "i2"):
        desk.instance_changed(an_instance(id=name, slots=4), seen=-5.0)
    board = desk._instances.unread
    first = await a_grant(desk, Ask(prompt_bytes=5000, stream=True))
    assert board == {first.instance: 5000}
    others = [await a_grant(desk, Ask(prompt_bytes=100)) for _ in range(3)]
    assert {one.instance for one in others} == {"i1", "i2"} - {first.instance}
    assert [one.unread for one in others] == [None] * 3
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    meter = Meter(send, Ask(prompt_bytes=5000, stream=True))
    assert first.unread is not None
    meter.on_start = first.unread.read
    await meter({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    assert board == {}
    assert (await a_grant(desk, Ask())).instance == first.instance, "it has fewer requests, and all have begun"
    second = await a_grant(desk, Ask(prompt_bytes=70, stream=True))
    assert board == {second.instance: 70}
    desk.release(second)
    desk.release(first)
    assert board == {}
    assert [message["type"] for message in sent] == ["http.response.start"]
