"""What a deleted endpoint leaves in the metrics: nothing."""

from __future__ import annotations

from prometheus_client import generate_latest

from standby.domain.ask import Ask
from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.instance import Rung
from standby.gateway.accounts import Accounts
from standby.gateway.desk import AllRooms, Desk, Grant, Route
from standby.gateway.metering import Meter
from standby.gateway.results import Result, ResultKind
from standby.sagemaker.runtime.contract import Message
from standby.telemetry import metrics
from support.builders import an_endpoint, an_instance


async def _nowhere(_message: Message) -> None:
    """Nobody reads it."""


def a_meter(prompt_tokens: int) -> Meter:
    """That of a caller who left before the first token."""
    meter = Meter(_nowhere, Ask(prompt_bytes=4 * prompt_tokens, stream=True))
    meter.asked = True
    return meter


def test_a_deleted_endpoint_has_no_series_and_its_last_requests_make_none() -> None:
    accounts = Accounts()
    route = Route(an_endpoint(name="short-lived"), Variant(model="m", policy=ScalePolicy()))
    desk = Desk(route, AllRooms(0), lambda: 0.0, lambda: 0.0, lambda _desk, _urgent: None)
    account = accounts.of(desk)
    account.ended("ok")
    account.metered(a_meter(5))
    grant = Grant("i1", ("127.0.0.1", 1), 1, Rung.READY, None, desk, "AllTraffic")
    account.first_byte(0.1, Rung.READY)
    account.served(grant, 0.1, 0.2)
    accounts.refresh([desk])
    assert generate_latest(metrics.REGISTRY).count(b'endpoint="short-lived"') > 30
    desk.endpoint_removed()
    accounts.close(desk)
    for late in (account, accounts.of(desk)):
        late.ended("client_gone")
        late.metered(a_meter(5))
        late.first_byte(0.1, Rung.COLD)
    account.served(grant, 0.1, 0.2)
    accounts.refresh([])
    assert b'endpoint="short-lived"' not in generate_latest(metrics.REGISTRY)


def test_what_was_used_is_settled_once() -> None:
    """However often somebody scrapes; estimates and partial answers under their own labels."""
    accounts = Accounts()
    route = Route(an_endpoint(name="metered"), Variant(model="m", policy=ScalePolicy()))
    desk = Desk(route, AllRooms(0), lambda: 0.0, lambda: 0.0, lambda _desk, _urgent: None)
    account = accounts.of(desk)
    for tokens in (5, 7):
        account.metered(a_meter(tokens))
    account.metered(Meter(_nowhere))
    for _ in range(2):
        accounts.refresh([desk])
    tenant = desk.route.endpoint.tenant
    place = {"tenant": tenant, "endpoint": "metered"}
    sample = metrics.REGISTRY.get_sample_value
    assert sample("standby_prompt_tokens_total", {**place, "estimated": "1"}) == 12
    assert sample("standby_completion_tokens_total", {**place, "estimated": "1"}) == 0
    assert sample("standby_billed_requests_total", {**place, "ending": "partial"}) == 2
    assert sample("standby_billed_requests_total", {**place, "ending": "whole"}) is None
    accounts.close(desk)


def test_an_endpoint_at_zero_has_series_and_a_deleted_one_has_none() -> None:
    """Also one that nobody has asked this gateway for: what is not told cannot be told from a gateway that is away."""
    accounts, here, gone = Accounts(), ("t", "at-zero"), ("t", "deleted")
    told = metrics.GATEWAY.get_sample_value
    accounts.refresh([], {here: 0, gone: 3})
    names = ("standby_requests_in_flight", "standby_requests_queued", "standby_queued_bytes", "standby_slots")
    assert [told(name, labels(here)) for name in names] == [0, 0, 0, 0]
    assert told("standby_slots", labels(gone)) == 3
    accounts.refresh([], {here: 0})
    assert [told(name, labels(gone)) for name in names] == [None] * 4
    accounts.refresh([], {})
    assert told("standby_slots", labels(here)) is None


def test_breakers_are_counted_by_phase_and_when_they_open() -> None:
    accounts = Accounts()
    route = Route(an_endpoint(name="broken"), Variant(model="m", policy=ScalePolicy()))
    desk = Desk(route, AllRooms(0), lambda: 0.0, lambda: 0.0, lambda _desk, _urgent: None)
    where = (desk.route.endpoint.tenant, "broken")
    for name in ("a", "b"):
        desk.instance_changed(an_instance(id=name, endpoint="broken"), seen=0)
    account = accounts.of(desk)
    told = metrics.GATEWAY.get_sample_value

    def breakers() -> list[float | None]:
        accounts.refresh([desk])
        return [told("standby_breakers", {**labels(where), "state": state}) for state in ("closed", "open", "half_open")]

    assert breakers() == [2, 0, 0]
    assert told("standby_breakers_opened_total", labels(where)) == 0
    fail_until_open(desk, "a")
    assert breakers() == [1, 1, 0]
    assert told("standby_breakers_opened_total", labels(where)) == 1
    desk.endpoint_removed()
    accounts.close(desk)
    fail_until_open(desk, "b")
    assert account.closed
    assert told("standby_breakers_opened_total", labels(where)) is None, "its last requests make no series"


def test_convictions_are_counted_for_endpoints_that_are_there() -> None:
    accounts = Accounts()
    route = Route(an_endpoint(name="poisoned"), Variant(model="m", policy=ScalePolicy()))
    desk = Desk(route, AllRooms(0), lambda: 0.0, lambda: 0.0, lambda _desk, _urgent: None)
    where = (desk.route.endpoint.tenant, "poisoned")
    told = metrics.GATEWAY.get_sample_value
    accounts.convicted(*where)
    assert told("standby_poison_convictions_total", labels(where)) is None
    accounts.of(desk)
    accounts.convicted(*where)
    assert told("standby_poison_convictions_total", labels(where)) == 1
    accounts.close(desk)
    assert told("standby_poison_convictions_total", labels(where)) is None


def labels(where: tuple[str, str]) -> dict[str, str]:
    return {"tenant": where[0], "endpoint": where[1]}


def fail_until_open(desk: Desk, instance: str) -> None:
    """Let an engine fail until its breaker opens."""
    instances = desk._instances
    for _ in range(20):
        instances.took(instance)
        instances.gave_back(instance, 1, Result(ResultKind.ENGINE, 0.1), now=0.0)
