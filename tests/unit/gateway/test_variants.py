"""Turns by weight, sticky sessions, and desks that follow an update: pure parts, and desks whose clock is moved by hand."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.domain.aws import component_endpoint
from standby.domain.endpoint import EndpointStatus, Failure, ScalePolicy, Variant, VariantCapacity
from standby.domain.errors import EndpointNotFound, VariantNotFound
from standby.domain.instance import InstanceState
from standby.domain.serving import variants_now, version_of
from standby.gateway import desk as desk_module
from standby.gateway import sessions
from standby.gateway.desk import AllRooms, Desk, Grant, Route
from standby.gateway.hall import Hall
from standby.gateway.spread import take_turn
from standby.sagemaker.shapes.services import operation
from support.builders import a_config, a_model, an_endpoint, an_instance
from support.turns import turn
from support.waiting import until

WEIGHTS = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 7.0]), min_size=1, max_size=6)


@pytest.mark.decision
@given(weights=WEIGHTS, turns=st.integers(1, 200))
@settings(max_examples=200, deadline=None)
def test_shares_follow_the_weights_at_every_moment(weights: list[float], turns: int) -> None:
    credit = (0.0,) * len(weights)
    had = Counter[int]()
    total = sum(weights) or len(weights)
    for number in range(1, turns + 1):
        one, credit = take_turn(weights, credit)
        had[one] += 1
        for at, weight in enumerate(weights if any(weights) else [1.0] * len(weights)):
            assert abs(had[at] - number * weight / total) < len(weights)
            assert weight or not had[at]


@pytest.mark.decision
def test_sessions_say_their_instance_until_they_expire() -> None:
    made = sessions.new_id("00112233aabbccdd", "my-endpoint-0a1b2c3d4e5f", 1767225600.5)
    assert sessions.read(made, 1767225599.0) == ("my-endpoint-0a1b2c3d4e5f", 1767225600.0)
    assert sessions.read(made, 1767225600.0) is None
    assert sessions.told(made) == f"{made}; Expires=2026-01-01T00:00:00Z"
    for other in (sessions.NEW_SESSION, "", "mine", f"{made}-", "x" * 256, "00112233aabbccdd-zz-i1"):
        assert sessions.read(other, 0.0) is None


@pytest.mark.decision
def test_changes_of_a_running_variant_leave_its_version_as_it_is() -> None:
    written = a_config(variants=(Variant(model="m", concurrency_limit=4, memory_mb=1024),)).variants[0]
    config = a_config(variants=(written,))
    (now,) = variants_now(
        config,
        {written.name: VariantCapacity(concurrency_limit=9, min_ready=1, weight=0.5), "other": VariantCapacity(weight=3)},
    )
    assert (now.limit, now.policy.slots, now.policy.min_ready, now.weight) == (9, 9, 1, 0.5)
    assert variants_now(config, {}) == (written,)
    same = version_of(a_model(), written)
    assert same == version_of(a_model(), written.model_copy(update={"concurrency_limit": 9, "weight": 0.5, "name": "x"}))
    assert same != version_of(a_model(), written.model_copy(update={"memory_mb": 2048}))
    assert same != version_of(a_model(engine_options={"context": 512}), written)


@dataclass
class Rig:
    """A hall whose clock is moved by hand; instances are told to every desk of their variant."""

    now: float = 100.0
    urgent: int = 0
    rooms: AllRooms = field(default_factory=lambda: AllRooms(limit=10_000))

    def __post_init__(self) -> None:
        self.hall = Hall(self._open)

    def _open(self, route: Route) -> Desk:
        return Desk(route, self.rooms, lambda: self.now, lambda: self.now, self._told)

    def _told(self, _desk: Desk, urgent: bool) -> None:
        self.urgent += urgent

    def routes(self, *variants: Variant, version: str = "", **endpoint: object) -> None:
        self.hall.routes_changed([Route(an_endpoint(**endpoint), variant, version) for variant in variants])

    def ask(self, desk: Desk, session: str | None = None) -> asyncio.Task[Grant]:
        return asyncio.create_task(
            desk.acquire(arrived=self.now, arrived_at=self.now, body_bytes=10, again=False, session=session)
        )


async def test_requests_go_round_by_weight_and_to_the_named_variant() -> None:
    rig = Rig()
    rig.routes(Variant(name="a", model="m", weight=3), Variant(name="b", model="m"), Variant(name="c", model="m", weight=0))
    chosen = Counter(rig.hall.desk(None).route.variant.name for _ in range(40))
    assert chosen == {"a": 30, "b": 10}
    assert rig.hall.desk("c").route.variant.name == "c"
    with pytest.raises(VariantNotFound, match="no variant 'd'"):
        rig.hall.desk("d")


async def test_who_waits_for_a_variant_that_an_update_takes_away_is_served_by_its_successor() -> None:
    rig = Rig()
    rig.routes(Variant(name="old", model="m"))
    old = rig.hall.desk(None)
    with old.enter():
        waiting = [rig.ask(old), rig.ask(old)]
        await turn()
        rig.routes(Variant(name="new", model="m2"))
        new = rig.hall.desk(None)
        assert (old.queued, old.queued_bytes, new.queued, new.queued_bytes, rig.rooms.body_bytes) == (0, 0, 2, 20, 20)
        assert new.demands("g", "b", 1)[0].queued == 2
        new.instance_changed(an_instance(variant="new", slots=1), seen=rig.now)
        await turn()
        first = waiting[0].result()
        assert (first.variant, new.outstanding, new.demands("g", "b", 2)[0].in_flight) == ("new", {"i1": 1}, 1)
        old.refused(first, "draining")
        old.release(first)
        again = asyncio.create_task(old.acquire(arrived=rig.now, arrived_at=rig.now, body_bytes=10, again=True))
        await turn()
        new.instance_changed(an_instance(variant="new", slots=2, epoch=2), seen=rig.now)
        await turn()
        for task in (again, waiting[1]):
            old.release(task.result())
    assert (new.queued, new.granted, new.outstanding, rig.rooms.body_bytes) == (0, 0, {}, 0)
    new.instance_changed(an_instance(variant="new"), seen=rig.now, removed=True)
    rig.hall.removed()
    assert old.closed
    with pytest.raises(EndpointNotFound):
        await rig.ask(old)


async def test_a_waiter_that_was_handed_on_may_still_leave() -> None:
    rig = Rig()
    rig.routes(Variant(name="old", model="m"))
    waiting = rig.ask(rig.hall.desk(None))
    await turn()
    rig.routes(Variant(name="new", model="m2"))
    waiting.cancel()
    await turn()
    assert (rig.hall.desk(None).queued, rig.rooms.body_bytes) == (0, 0)


async def test_instances_of_an_update_get_requests_when_it_takes_over_and_not_before() -> None:
    rig = Rig()
    rig.routes(Variant(name="a", model="m"), version="v1")
    desk = rig.hall.desk(None)
    desk.instance_changed(an_instance(id="old", variant="a", version="v1"), seen=0)
    desk.instance_changed(an_instance(id="new", variant="a", version="v2"), seen=0)
    assert {(await rig.ask(desk)).instance for _ in range(4)} == {"old"}
    rig.routes(Variant(name="a", model="m"), version="v2")
    assert {(await rig.ask(desk)).instance for _ in range(4)} == {"new"}
    desk.instance_changed(an_instance(id="new", variant="a", version="v2", state=InstanceState.FAILED), seen=0)
    desk.instance_changed(an_instance(id="older", variant="a"), seen=0)
    assert (await rig.ask(desk)).instance == "older", "a node that does not say its version serves whatever is asked"


async def test_a_variant_that_fails_again_and_again_does_not_refuse_the_requests_of_another() -> None:
    rig = Rig()
    failure = Failure(reason="exit code 1", attempts=3, next_retry_at=500.0, variant="b")
    rig.routes(Variant(name="a", model="m"), Variant(name="b", model="m"), status=EndpointStatus.FAILED, failure=failure)
    tasks = {name: rig.ask(rig.hall.desk(name)) for name in "ab"}
    await turn()
    assert not tasks["a"].done()
    assert isinstance(tasks["b"].exception(), Exception)
    tasks["a"].cancel()
    await turn()


async def test_spillover_begins_beyond_the_provisioned_concurrency() -> None:
    rig = Rig()
    rig.routes(Variant(model="m", provisioned=2))
    desk = rig.hall.desk(None)
    desk.instance_changed(an_instance(), seen=0)
    assert [(await rig.ask(desk)).spillover for _ in range(3)] == [False, False, True]


async def test_a_session_keeps_to_its_instance_and_ends_with_it() -> None:
    rig = Rig()
    rig.routes(Variant(model="m"))
    desk = rig.hall.desk(None)
    for name in ("i1", "i2"):
        desk.instance_changed(an_instance(id=name, slots=8), seen=0)
    begun = await rig.ask(desk, sessions.NEW_SESSION)
    assert begun.new_session is not None
    mine = begun.new_session.partition(";")[0]
    again = [await rig.ask(desk, mine) for _ in range(5)]
    assert {(grant.instance, grant.new_session, grant.closed_session) for grant in again} == {(begun.instance, None, None)}
    desk.instance_changed(an_instance(id=begun.instance), seen=0, removed=True)
    moved = await rig.ask(desk, mine)
    assert moved.instance != begun.instance
    assert moved.closed_session == mine
    assert moved.new_session is not None
    rig.now += sessions.LIFETIME_S
    assert (await rig.ask(desk, moved.new_session.partition(";")[0])).closed_session is not None


async def test_who_waits_for_the_instance_of_a_session_keeps_nobody_else_waiting() -> None:
    rig = Rig()
    rig.routes(Variant(model="m"))
    desk = rig.hall.desk(None)
    desk.instance_changed(an_instance(id="i1", slots=1), seen=0)
    begun = await rig.ask(desk, sessions.NEW_SESSION)
    assert begun.new_session is not None
    sticky = rig.ask(desk, begun.new_session.partition(";")[0])
    await turn()
    desk.instance_changed(an_instance(id="i2", slots=1), seen=0)
    await turn()
    assert not sticky.done()
    other = await rig.ask(desk)
    assert other.instance == "i2"
    third = rig.ask(desk)
    await turn()
    desk.release(other)
    await turn()
    assert third.result().instance == "i2"
    desk.release(begun)
    await turn()
    assert sticky.result().instance == "i1"
    for task in (sticky, third):
        desk.release(task.result())
    assert (desk.queued, desk.outstanding, rig.rooms.body_bytes) == (0, {}, 0)


async def test_under_a_limit_a_full_instance_of_a_session_is_waited_for_while_another_has_slots() -> None:
    """The limit is not what keeps it full: two requests are under way, four are allowed."""
    rig = Rig()
    rig.routes(Variant(model="m", concurrency_limit=4, policy=ScalePolicy(slots=2, max_instances=2)))
    desk = rig.hall.desk(None)
    for name in ("i1", "i2"):
        desk.instance_changed(an_instance(id=name, slots=2), seen=0)
    begun = await rig.ask(desk, sessions.NEW_SESSION)
    assert begun.new_session is not None
    mine = begun.new_session.partition(";")[0]
    second = await rig.ask(desk, mine)
    third = rig.ask(desk, mine)
    await turn()
    assert not third.done()
    other = await rig.ask(desk)
    assert other.instance != begun.instance
    assert not third.done()
    desk.release(second)
    await turn()
    assert third.result().instance == begun.instance
    for grant in (begun, other, third.result()):
        desk.release(grant)
    assert (desk.queued, desk.outstanding) == (0, {})


async def test_a_long_pause_of_one_instance_delays_nobody_who_waits_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "CONNECT_PAUSE_S", 4.0)
    rig = Rig()
    rig.routes(Variant(model="m"))
    desk = rig.hall.desk(None)
    for name in ("i1", "i2"):
        desk.instance_changed(an_instance(id=name, slots=1), seen=0)
    begun = [await rig.ask(desk, sessions.NEW_SESSION) for _ in range(2)]
    mine = [str(grant.new_session).partition(";")[0] for grant in begun]
    desk.refused(begun[0], "full")
    desk.unreachable(begun[1])
    for grant in begun:
        desk.release(grant)
    waiting = [rig.ask(desk, session) for session in mine]
    await turn()
    rig.now += 0.5
    await until(waiting[0].done, "the short pause is over", within_s=2.5)
    desk.release(waiting[0].result())
    rig.now += 4
    await until(waiting[1].done, "the long pause is over")
    desk.release(waiting[1].result())


async def test_a_session_with_an_inference_component_has_an_id_that_sagemaker_takes() -> None:
    """Instances of components have names of ours, which are no names of SageMaker's."""
    rig = Rig()
    name = component_endpoint("part")
    rig.routes(Variant(model="m"), name=name)
    desk = rig.hall.desk(None)
    desk.instance_changed(an_instance(id=f"{name}-0a1b2c3d4e5f", endpoint=name, slots=8), seen=0)
    begun = await rig.ask(desk, sessions.NEW_SESSION)
    assert begun.new_session is not None
    mine = begun.new_session.partition(";")[0]
    assert len(mine) <= 256
    rule = operation("sagemaker-runtime", "InvokeEndpoint").input_shape.members["SessionId"].metadata["pattern"]
    assert re.fullmatch(rule, mine)
    again = await rig.ask(desk, mine)
    assert (again.instance, again.new_session) == (begun.instance, None)
    for grant in (begun, again):
        desk.release(grant)
    assert desk.outstanding == {}
