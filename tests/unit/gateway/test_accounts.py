"""What a deleted endpoint leaves in the metrics: nothing."""

from __future__ import annotations

from prometheus_client import generate_latest

from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.instance import Rung
from standby.gateway.accounts import Accounts
from standby.gateway.desk import AllRooms, Desk, Route
from standby.telemetry import metrics
from support.builders import an_endpoint


def test_a_deleted_endpoint_has_no_series_and_its_last_requests_make_none() -> None:
    accounts = Accounts()
    route = Route(an_endpoint(name="short-lived"), Variant(model="m", policy=ScalePolicy()))
    desk = Desk(route, AllRooms(0), lambda: 0.0, lambda: 0.0, lambda _desk, _urgent: None)
    account = accounts.of(desk)
    account.ended("ok")
    for note in (account.waited, account.first_byte, account.lasted):
        note(0.1, Rung.READY)
    accounts.refresh([desk])
    assert generate_latest(metrics.REGISTRY).count(b'endpoint="short-lived"') > 30
    desk.endpoint_removed()
    accounts.close(desk)
    for late in (account, accounts.of(desk)):
        late.ended("client_gone")
        late.lasted(1.0, Rung.COLD)
    assert b'endpoint="short-lived"' not in generate_latest(metrics.REGISTRY)
