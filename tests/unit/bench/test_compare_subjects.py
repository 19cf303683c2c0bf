"""How a side of a comparison says that it is cold, that it falls, and what it holds."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, cast

import pytest

from standby.bench.compare.subject import Plain
from standby.bench.compare.subject_standby import StandbySubject
from standby.bench.session import Client
from standby.bench.targets.http import HttpTarget
from standby.bench.targets.requests import Asking, place_of
from standby.domain.errors import Forbidden, NotFound, Unavailable


def a_target() -> HttpTarget:
    return HttpTarget("smol", place_of("http://127.0.0.1:9"), "/v1/chat/completions", Asking())


class Api:
    """A control API that answers with one state after the other, the last one for ever; an error is raised."""

    def __init__(self, *states: str | Exception, evict: Exception | None = None) -> None:
        self.states = deque(states)
        self.evict = evict
        self.orders: list[object] = []

    async def call(self, method: str, _path: str, *, body: object = None) -> Any:
        if method == "POST":
            self.orders.append(body)
            if self.evict is not None:
                raise self.evict
            return {}
        state = self.states.popleft() if len(self.states) > 1 else self.states[0]
        if isinstance(state, Exception):
            raise state
        return {
            "status": "InService",
            "failure": None,
            "variants": [{"model": "smol"}],
            "instances": [{"state": word, "resident_bytes": 100} for word in state.split() if word != "cold"],
        }


def a_subject(api: Api, *, rung: str = "cold", limit_s: float = 30.0, evict: bool = False) -> StandbySubject:
    return StandbySubject(a_target(), cast("Client", api), "smol", rung, limit_s, evict)


async def test_it_waits_for_the_rung_and_says_so() -> None:
    reached = await a_subject(Api("ready", "asleep", "staged", "cold")).to_zero()

    assert reached.ok
    assert reached.words == "waited for the rung cold: its own policy let it fall"


async def test_a_rung_that_does_not_come_is_measured_from_where_it_rests_and_told() -> None:
    reached = await a_subject(Api("asleep"), limit_s=0.1).to_zero()

    assert reached.ok
    assert reached.words == "asleep after 0.1 s of waiting for cold"
    ready = await a_subject(Api("ready"), limit_s=0.1).to_zero()
    assert not ready.ok
    assert not ready.lost


@pytest.mark.parametrize(("answer", "ok"), [(None, True), (NotFound("none has it"), True), (Forbidden("not yours"), False)])
async def test_evicting_orders_it_of_every_node(answer: Exception | None, ok: bool) -> None:
    api = Api("cold", evict=answer)

    reached = await a_subject(api, evict=True).to_zero()
    assert api.orders == [{"action": "evict", "model": "smol"}]
    assert reached.ok is ok
    assert ("thrown out of the nodes' caches" in reached.words) is ok


async def test_a_gateway_that_is_gone_may_mean_that_the_target_is_lost() -> None:
    reached = await a_subject(Api(Unavailable("no gateway"))).to_zero()

    assert (reached.ok, reached.lost) == (False, True)
    assert "no gateway" in reached.words
    assert (await a_subject(Api(Unavailable("no gateway"))).falling()).lost


async def test_one_instance_less_is_scaling_in() -> None:
    assert (await a_subject(Api("ready", "suspending")).falling()).words == "suspending"
    assert (await a_subject(Api("ready ready", "ready ready", "ready")).falling()).words == "1 of 2 instances still ready"
    still = await a_subject(Api("ready"), limit_s=0.05).falling()
    assert not still.ok
    assert still.words.startswith("still ready after")


async def test_every_look_counts_as_held() -> None:
    subject = a_subject(Api("ready", "ready", "cold"))
    await subject.to_zero()

    holding = await subject.holding()
    assert holding.awake_bytes == 100
    assert holding.gb_s is not None
    assert 0 < holding.gb_s < 1e-6
    assert (await a_subject(Api("ready")).holding()).words == "nobody looked"


async def test_of_a_plain_server_nobody_knows() -> None:
    plain = Plain(a_target(), "a server")

    assert not (await plain.to_zero()).ok
    assert not (await plain.falling()).ok
    assert (await plain.holding()).gb_s is None
    began = time.monotonic()
    reached = await Plain(a_target(), "a server", idle_s=0.05).to_zero()
    assert reached.ok
    assert time.monotonic() - began >= 0.05
