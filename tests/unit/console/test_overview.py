"""The console's overview: what a scope sees, and what it is told of changes."""

from __future__ import annotations

from collections.abc import Sequence

import pydantic_core
import pytest

from standby.console.overview import Overview, diff, overview
from standby.console.rows import Desktop
from standby.console.values import Facts, Moment, News, Percentiles, Row, Scope, Traffic
from standby.domain.endpoint import Endpoint, EndpointStatus, Failure
from standby.domain.instance import Instance, InstanceState
from standby.domain.node import Node, NodeMode
from support.builders import TENANT, an_endpoint, an_instance
from support.cluster import make_node
from support.slices import at_once

OTHER = "999999999999"
ADMIN = Scope(TENANT, admin=True)


class Watcher:
    """One scope's overviews, one after the other."""

    def __init__(self, scope: Scope = ADMIN) -> None:
        self.scope = scope
        self.desktop = Desktop()

    def sees(
        self,
        endpoints: Sequence[Endpoint] = (),
        instances: Sequence[Instance] = (),
        nodes: Sequence[Node] = (),
        *,
        at: float = 1.0,
        traffic: dict[tuple[str, str], Traffic] | None = None,
        news: News = News(),  # noqa: B008 # a frozen value
    ) -> Overview:
        facts = Facts(Moment(at, 0.0, "gateway/g"), tuple(endpoints), tuple(instances), tuple(nodes), traffic or {})
        return overview(facts.moment, self.scope, at_once(self.desktop.lay_out(facts)), news, {"saved_usd": 0.0})


def names(rows: Sequence[Row]) -> list[str]:
    return [row.get("id") or row["name"] for row in rows]


def test_an_endpoint_shows_its_warmest_rung_its_ready_slots_and_all_its_memory() -> None:
    ready = an_instance(id="i1", slots=4, resident_bytes=100)
    asleep = an_instance(id="i2", state=InstanceState.ASLEEP, slots=8, resident_bytes=30)
    traffic = Traffic(in_flight=2, queued=1, requests=9, errors=1, rps=0.5, ttft_ms=Percentiles(1.0, 2.0, 3.0))

    seen = Watcher().sees([an_endpoint()], [asleep, ready], traffic={(TENANT, "e"): traffic}).as_json()

    (row,) = seen["endpoints"]
    assert (row["rung"], row["slots"], row["resident_bytes"], row["instances"]) == ("ready", 4, 130, 2)
    assert row["words"] == "ready, 0 of 4 slots busy (and 1 more)"
    assert (row["in_flight"], row["queued"], row["requests"], row["errors"]) == (2, 1, 9, 1)
    assert row["ttft_ms"] == {"p50": 1.0, "p95": 2.0, "p99": 3.0}
    assert seen["totals"]["by_rung"] == {"cold": 0, "staged": 0, "zygote": 0, "asleep": 1, "ready": 1}
    assert seen["totals"]["resident_bytes"] == 130


def test_a_tenant_sees_its_own_names_only_and_no_node() -> None:
    """Nothing of anybody else is anywhere in what it is sent."""
    mine, foreign = an_endpoint(), an_endpoint(tenant=OTHER, name="secret", served_name="secret")
    instances = [an_instance(), an_instance(id="hidden", tenant=OTHER, endpoint="secret", node="n9")]

    seen = Watcher(Scope(TENANT)).sees([mine, foreign], instances, [make_node("n1"), make_node("n9")])

    assert list(seen.endpoints) == [f"{TENANT}/e"]
    assert list(seen.instances) == ["i1"]
    text = pydantic_core.to_json(seen.as_json()).decode()
    assert not [word for word in (OTHER, "secret", "hidden", "n9") if word in text]
    assert seen.nodes == {}


def test_an_administrator_may_see_all_tenants_and_the_nodes() -> None:
    both = [an_endpoint(), an_endpoint(tenant=OTHER)]

    seen = Watcher(Scope("", admin=True)).sees(both, [], [make_node("n1")])

    assert list(seen.endpoints) == [f"{TENANT}/e", f"{OTHER}/e"]
    assert list(seen.nodes) == ["n1"]
    assert seen.as_json()["tenant"] == ""


@pytest.mark.parametrize("state", InstanceState)
def test_nothing_is_told_while_nothing_changes(state: InstanceState) -> None:
    """Words name no durations, so that a quiet platform sends nothing however much time passes."""
    watcher = Watcher()
    failure = Failure(reason="no such file", at=1.0, next_retry_at=5000.0)
    instance = an_instance(state=state, failure=failure, drain_until=4000.0, progress=0.5)
    records = ([an_endpoint()], [instance], [make_node("n1", mode=NodeMode.DRAINING)])

    before, after = watcher.sees(*records, at=1.0), watcher.sees(*records, at=3600.0)

    assert diff(before, after) == {"at": 3600.0}
    assert after.endpoints[f"{TENANT}/e"] is before.endpoints[f"{TENANT}/e"]


def test_a_record_that_was_written_again_is_no_news_where_it_says_the_same() -> None:
    watcher = Watcher()
    node = make_node("n1")

    before = watcher.sees([], [], [node])
    after = watcher.sees([], [], [node.model_copy(update={"heartbeat": node.heartbeat + 1})])

    assert "nodes" not in diff(before, after)


def test_only_what_changed_is_told_and_whole_rows_of_it() -> None:
    watcher = Watcher()
    quiet, busy = an_endpoint(name="quiet"), an_endpoint(name="busy")
    before = watcher.sees([quiet, busy], traffic={(TENANT, "busy"): Traffic(requests=1)})

    change = diff(before, watcher.sees([quiet, busy], at=2.0, traffic={(TENANT, "busy"): Traffic(requests=2, rps=1.0)}))

    (row,) = change["endpoints"]
    assert (row["name"], row["requests"], row["served_name"]) == ("busy", 2, "e")
    assert change["totals"]["requests"] == 2
    assert set(change) == {"at", "endpoints", "totals"}


def test_what_is_gone_is_named() -> None:
    watcher = Watcher()
    before = watcher.sees([an_endpoint()], [an_instance()], [make_node("n1")])

    change = diff(before, watcher.sees())

    assert change["gone_endpoints"] == [f"{TENANT}/e"]
    assert change["gone_instances"] == ["i1"]
    assert change["gone_nodes"] == ["n1"]


def test_news_is_told_once_newest_first() -> None:
    first, second, third = ({"id": name, "at": at} for at, name in enumerate("abc"))
    watcher = Watcher()

    before = watcher.sees(news=News(decisions=(first,)))
    change = diff(before, watcher.sees(news=News(decisions=(third, second, first))))

    assert names(change["decisions"]) == ["c", "b"]
    assert "events" not in change


def test_an_endpoint_that_was_made_again_under_its_name_is_a_new_row() -> None:
    watcher = Watcher()
    failed = an_endpoint(status=EndpointStatus.FAILED, failure=Failure(reason="no such file", at=1.0, next_retry_at=9.0))

    before = watcher.sees([failed])
    (row,) = diff(before, watcher.sees([an_endpoint(created_at=5.0)]))["endpoints"]

    assert before.endpoints[f"{TENANT}/e"]["words"] == "failed: no such file"
    assert before.endpoints[f"{TENANT}/e"]["next_retry_at"] == 9.0
    assert row["words"] == "cold: nothing runs; the next request starts it"
