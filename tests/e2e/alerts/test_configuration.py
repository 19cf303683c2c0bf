"""The shipped configuration of Alertmanager, as it stands, in a real one: it loads, and holds back what it should."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from standby.artifacts.local_s3 import free_ports
from support.monitoring import WITHIN_S, needs_prometheus, start
from support.promql import INFRA
from support.waiting import until

pytestmark = needs_prometheus

NODE_DOWN = {
    "alertname": "TargetDown",
    "severity": "p0",
    "component": "node",
    "node": "n1",
    "instance": "a:1",
    "job": "standby",
}

LAST = (
    {"alertname": "PendingBacklog", "severity": "p0", "tenant": "t", "endpoint": "last"},
    {"alertname": "PendingBacklog", "severity": "p1", "tenant": "t", "endpoint": "last"},
)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A running Alertmanager with the shipped file."""
    (port,) = free_ports(1)
    async with AsyncExitStack() as cleanup:
        client = await cleanup.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False))
        command = [
            "prometheus-alertmanager", f"--config.file={INFRA / 'alertmanager' / 'alertmanager.yml'}",
            f"--storage.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
        ]  # fmt: skip
        await start(cleanup, tmp_path, command, "/-/ready", client)
        yield client


@pytest.mark.parametrize(
    ("cause", "effect", "held_back"),
    [
        (NODE_DOWN, {"alertname": "DeviceMismatch", "severity": "p1", "node": "n1"}, True),
        (NODE_DOWN, {"alertname": "ResidencyHigh", "severity": "p1", "node": "n1", "memory": "host"}, True),
        (NODE_DOWN, {"alertname": "DeviceMismatch", "severity": "p1", "node": "n2"}, False),
        (NODE_DOWN, {"alertname": "PendingBacklog", "severity": "p0", "tenant": "t", "endpoint": "e"}, False),
        (NODE_DOWN, {"alertname": "StaleBus", "severity": "p0", "job": "standby", "instance": "a:1"}, True),
        (NODE_DOWN, {"alertname": "StaleBus", "severity": "p0", "job": "standby", "instance": "b:1"}, False),
        (NODE_DOWN, {"alertname": "NoLeader", "severity": "p0"}, False),
        # A node that was never seen has no name: it explains nothing.
        (
            {name: value for name, value in NODE_DOWN.items() if name != "node"},
            {"alertname": "DeviceMismatch", "severity": "p1", "node": "n1"},
            False,
        ),
        ({**NODE_DOWN, "component": "controller", "node": ""}, {"alertname": "NoLeader", "severity": "p0"}, True),
        (
            {"alertname": "StaleBus", "severity": "p0", "component": "controller", "job": "standby", "instance": "c:1"},
            {"alertname": "NoLeader", "severity": "p0"},
            True,
        ),
        (
            {"alertname": "PendingBacklog", "severity": "p0", "tenant": "t", "endpoint": "e"},
            {"alertname": "PendingBacklog", "severity": "p1", "tenant": "t", "endpoint": "e"},
            True,
        ),
        (
            {"alertname": "PendingBacklog", "severity": "p0", "tenant": "t", "endpoint": "e"},
            {"alertname": "PendingBacklog", "severity": "p1", "tenant": "t", "endpoint": "f"},
            False,
        ),
    ],
)
async def test_what_another_alert_explains_is_held_back(
    api: httpx.AsyncClient, cause: dict[str, str], effect: dict[str, str], held_back: bool
) -> None:
    began = datetime.now(UTC).isoformat()
    told = await api.post("/api/v2/alerts", json=[{"labels": labels, "startsAt": began} for labels in (cause, effect, *LAST)])
    assert told.status_code == 200, told.text
    # Causes are taken in one after the other, and a moment after the answer.
    await until(lambda: inhibited(api, LAST[1]), "the last cause is known", WITHIN_S)
    (found,) = await shown(api, effect)
    assert bool(found["status"]["inhibitedBy"]) is held_back
    assert [receiver["name"] for receiver in found["receivers"]] == [effect["severity"]]


async def inhibited(api: httpx.AsyncClient, labels: dict[str, str]) -> bool:
    return any(one["status"]["inhibitedBy"] for one in await shown(api, labels))


async def shown(api: httpx.AsyncClient, labels: dict[str, str]) -> list[dict[str, Any]]:
    """The alert with these labels, once it is known."""
    alerts: list[dict[str, Any]] = (await api.get("/api/v2/alerts")).json()
    return [one for one in alerts if one["labels"] == {name: value for name, value in labels.items() if value}]
