"""Each alert fires by a real fault, and reaches the webhook of its severity: a real Prometheus scrapes real processes.

The tests share one deployment and one Prometheus and stand in an order: what a later one compares with was measured by an
earlier one. Of the shipped rules only durations are replaced (``support.monitoring``).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from standby.cli import supervisor
from support import promql
from support.autoscaling import queries
from support.dashboards import files
from support.deployment import Deployment, Json
from support.fake_engine_spec import Option
from support.gguf_builder import gguf
from support.monitoring import WITHIN_S, Monitoring, needs_prometheus
from support.waiting import until
from support.watched import Watched

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400), needs_prometheus]

SCRIPTED_GPUS = Path(promql.__file__).with_name("scripted_gpu")
TENANT = "000000000000"
QUICK, SLOW = 8, 3
# No asynchronous invocation, no serverless endpoint, no door's refusal happens here.
WITHOUT_DATA = {
    "standby-endpoint: Invocations in the background",
    "standby-endpoint: CloudWatch's names: concurrency",
    "standby-endpoint: CloudWatch's names: provisioned concurrency",
    "standby-endpoint: Attempts refused before the engine saw them, all endpoints",
}
NAMES = {alert["alert"] for alert in promql.alerts()}


async def test_nothing_fires_at_rest(both: Watched) -> None:
    """All processes are scraped and no rule has an error; what comes then, climbs are compared with later."""
    there, watch = both

    async def all_scraped() -> bool:
        found = await watch.query("sum by (component) (up)")
        return {(labels["component"], value) for labels, value in found} == {("gateway", 1), ("node", 1), ("controller", 1)}

    await until(all_scraped, "all processes are scraped", WITHIN_S)
    await until(lambda: quiet(watch), "nothing fires", WITHIN_S)
    groups = (await watch.client.get(f"{watch.prometheus}/api/v1/rules")).json()["data"]["groups"]
    assert {rule["name"] for group in groups for rule in group["rules"]} >= NAMES
    assert [rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")] == []
    # A counter's growth is known from its second value on.
    await climbs(there, "first", 2, {})
    await until(lambda: watch.query('standby_activation_seconds_count{rung="staged"}'), "the first climb is known", WITHIN_S)
    await climbs(there, "quick", QUICK, {})


async def test_backlog_when_an_engine_does_not_start(both: Watched) -> None:
    there, watch = both
    await there.endpoint("stuck", knobs={"start_delay_s": 600})
    assert watch.notifications("PendingBacklog", "p0", endpoint="stuck") == []
    async with asking(there, "stuck", 2):
        alert = await watch.until_told("PendingBacklog", "p0", tenant=TENANT, endpoint="stuck")
        assert "2 requests of 000000000000/stuck" in alert["annotations"]["description"]
    await there.api("DELETE", "/endpoints/stuck")
    await watch.until_told("PendingBacklog", "p0", "resolved", endpoint="stuck")


async def test_backlog_when_too_few_are_ready(both: Watched) -> None:
    there, watch = both
    await there.endpoint("long", knobs={"token_delay_ms": 400}, slots=1, max_instances=1)
    await there.warm("long")
    async with asking(there, "long", 8):
        await watch.until_told("PendingBacklog", "p1", endpoint="long")
    await there.api("DELETE", "/endpoints/long")


async def test_a_failing_engine_opens_its_breaker_and_spends_the_error_budget(both: Watched) -> None:
    there, watch = both
    await there.endpoint("failing")
    await there.warm("failing")
    assert watch.notifications("BreakerOpen", "p1", endpoint="failing") == []

    async def told(name: str, severity: str) -> bool:
        await asyncio.gather(*(there.invoke("failing", fail_with=500) for _ in range(8)))
        return bool(watch.notifications(name, severity, endpoint="failing"))

    await until(lambda: told("BreakerOpen", "p1"), "the breaker's alert is delivered", WITHIN_S)
    await until(lambda: told("ErrorRatio", "p0"), "the fast burn's alert is delivered", WITHIN_S)
    await until(lambda: watch.firing("ErrorRatio", endpoint="failing", severity="p1"), "the slow burn's alert fires", WITHIN_S)
    await there.api("DELETE", "/endpoints/failing")
    await watch.until_told("BreakerOpen", "p1", "resolved", endpoint="failing")


async def test_a_request_that_kills_its_engine(both: Watched) -> None:
    there, watch = both
    await there.endpoint("victim")
    await there.warm("victim")
    assert (await there.invoke("victim", poison=True)).status_code >= 400
    await watch.until_told("PoisonRequest", "p2", endpoint="victim")
    await there.api("DELETE", "/endpoints/victim")


async def test_engines_that_do_not_start(both: Watched) -> None:
    there, watch = both
    await there.endpoint("broken", knobs={"fail_start": 1})
    assert watch.notifications("EngineFailures", "p1") == []
    async with asking(there, "broken", 1):
        await watch.until_told("EngineFailures", "p1", node="n1", engine="fake")
    await there.api("DELETE", "/endpoints/broken")


async def test_an_engine_that_holds_more_than_it_was_given(both: Watched) -> None:
    """It reserves a fifth of what it takes."""
    there, watch = both
    await until(lambda: there.engines() == [], "earlier engines have ended", WITHIN_S)
    assert watch.notifications("ResidencyHigh", "p1") == []
    await there.endpoint("fat", knobs={"allocate_mib": 590}, memory_mb=128)
    await there.warm("fat")
    alert = await watch.until_told("ResidencyHigh", "p1", node="n1", memory="host")
    assert "%" in alert["annotations"]["summary"]
    await there.api("DELETE", "/endpoints/fat")
    await watch.until_told("ResidencyHigh", "p1", "resolved", memory="host")


async def test_climbs_that_take_longer_than_they_did(both: Watched) -> None:
    """The same model on the same node, from the same rung: as when its disk or its driver has become slow."""
    there, watch = both
    ((_, before),) = await watch.query('max(node_rung_engine_version:standby_activation_seconds:mean1d{rung="staged"})')
    assert await watch.firing("ColdStartRegression") == []
    await climbs(there, "slow", SLOW, {"start_delay_s": round(3 * before + 2, 1)})
    await watch.until_told("ColdStartRegression", "p2", node="n1", rung="staged")


async def test_an_agent_is_killed_and_its_successor_finds_gpus(both: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is down; it comes back and reaps what survived; now it has GPUs, which its engines do not use."""
    there, watch = both
    await there.endpoint("survivor", knobs={"spawn_child": True})
    await there.warm("survivor")
    for name, severity in (("OrphanFound", "p2"), ("TargetDown", "p0"), ("DeviceCordoned", "p1"), ("DeviceMismatch", "p1")):
        assert watch.notifications(name, severity) == []
    node = there.stack.children["node"]
    # Its successor sees one card that is fit, and nearly full, and one that is broken.
    node.environment = {**node.environment, "PYTHONPATH": str(SCRIPTED_GPUS)}
    # It must not be back before anybody has looked.
    monkeypatch.setattr(supervisor, "restart_pause", lambda _failures: 10.0)
    there.kill("node")
    alert = await watch.until_told("TargetDown", "p0", component="node")
    assert alert["labels"]["node"] == "n1"
    await watch.until_told("TargetDown", "p0", "resolved", component="node")
    await watch.until_told("OrphanFound", "p2", node="n1")
    await watch.until_told("DeviceCordoned", "p1", node="n1", device="GPU-worn")
    await watch.until_told("ResidencyHigh", "p1", node="n1", memory="device", device="GPU-fit")
    await there.warm("survivor")
    await watch.until_told("DeviceMismatch", "p1", node="n1")


async def test_every_question_of_dashboards_and_autoscalers_is_answered(both: Watched) -> None:
    """No expression is refused, and under traffic every panel has data, but for what nothing here does."""
    there, watch = both
    panels = {
        f"{path.stem}: {panel['title']}": [promql.in_prometheus(target["expr"]) for target in panel["targets"]]
        for path, content in files()
        for panel in json.loads(content)["panels"]
    }

    async def without_data() -> list[str]:
        await there.invoke("survivor", stream=True)
        return [title for title, exprs in panels.items() if not any([await watch.query(expr) for expr in exprs])]

    async def as_expected() -> bool:
        return set(await without_data()) <= WITHOUT_DATA

    await until(as_expected, "every panel has data", WITHIN_S)
    for query in queries():
        await watch.query(query)


async def test_promtool_finds_nothing_wrong_with_what_is_exposed(both: Watched) -> None:
    """But for CloudWatch's names, which are CloudWatch's."""
    for group in json.loads(both.there.stack.options.state.targets.read_text()):
        text = (await both.watch.client.get(f"http://{group['targets'][0]}/metrics")).text
        assert "\nprocess_start_time_seconds " in text
        ran = await asyncio.to_thread(
            subprocess.run, ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        said = (ran.stdout + ran.stderr).splitlines()
        assert [line for line in said if not (line.startswith("standby_aws_") and "camelCase" in line)] == []
        assert ran.returncode == 0 or group["labels"] == {"component": "gateway"}


async def test_the_bus_is_gone(both: Watched) -> None:
    """Every process says so; that nobody leads any more follows from it, and is not told besides."""
    there, watch = both
    assert watch.notifications("StaleBus", "p0") == []
    assert there.stack.nats is not None
    await there.stack.nats.kill()
    for component in ("gateway", "node", "controller"):
        await watch.until_told("StaleBus", "p0", component=component)
    await until(lambda: watch.firing("NoLeader"), "nobody leads", WITHIN_S)
    await until(lambda: watch.suppressed("NoLeader"), "that is held back", WITHIN_S)
    await there.stack.nats.start()
    for component in ("gateway", "node", "controller"):
        await watch.until_told("StaleBus", "p0", "resolved", component=component)


async def test_every_alert_has_been_seen(both: Watched) -> None:
    """Of each name and severity; one that another one explains is seen in Prometheus alone."""
    found = await both.watch.query("count by (alertname, severity) (max_over_time(ALERTS[10m]))")
    seen = {(labels["alertname"], labels["severity"]) for labels, _ in found}
    assert {(alert["alert"], alert["labels"]["severity"]) for alert in promql.alerts()} - seen == set()


# ---- doings ----------------------------------------------------------------------------------------------------------


async def quiet(watch: Monitoring) -> bool:
    return not [name for name in NAMES if await watch.firing(name)]


async def climbs(there: Deployment, name: str, count: int, knobs: dict[str, Option]) -> None:
    """Let so many endpoints climb to ready, from the same bytes; they are gone afterwards."""
    path = there.artifacts / "climber.gguf"
    if not path.exists():
        path.write_bytes(gguf(seed=4711))
    body: Json = {"name": name, "source_uri": path.as_uri(), "engine": "fake", "engine_options": knobs}
    await there.api("POST", "/models", body)
    names = [f"{name}-{number}" for number in range(count)]
    for endpoint in names:
        await there.endpoint(endpoint, model=name)
    if name == "first":
        await there.warm(names[0])
    await asyncio.gather(*(there.warm(endpoint) for endpoint in names))
    for endpoint in names:
        await there.api("DELETE", f"/endpoints/{endpoint}")


@asynccontextmanager
async def asking(there: Deployment, endpoint: str, count: int) -> AsyncIterator[None]:
    """Keep so many requests open; they are given up at the end."""
    callers = [asyncio.create_task(there.invoke(endpoint)) for _ in range(count)]
    try:
        yield
    finally:
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
