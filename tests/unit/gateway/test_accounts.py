"""What a deleted endpoint leaves in the metrics: nothing."""

from __future__ import annotations

from prometheus_client import generate_latest

from standby.domain.ask import Ask
from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.instance import Rung
from standby.gateway.accounts import Accounts
from standby.gateway.desk import AllRooms, Desk, Grant, Route
from standby.gateway.metering import Meter
from standby.sagemaker.runtime.contract import Message
from standby.telemetry import metrics
from support.builders import an_endpoint


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
