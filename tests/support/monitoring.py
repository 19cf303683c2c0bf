"""A real Prometheus and Alertmanager with the shipped rules and routes, and a webhook that keeps what it is told.

``async with monitoring(folder, targets) as watch: await watch.until_told("StaleBus", "p0")``. Of what is shipped only
durations, addresses and paths are replaced: a test cannot wait for half an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from standby.artifacts.local_s3 import free_ports
from standby.host.group import log_tail, spawn, stop_group
from support.promql import INFRA, RULE_FILES
from support.waiting import until

Json = dict[str, Any]
PROGRAMS: Final = ("prometheus", "promtool", "prometheus-alertmanager")
WITHIN_S: Final = 60.0
SHORT: Final[Mapping[str, str]] = {
    "5m": "10s", "15m": "30s", "30m": "10s", "1h": "20s", "6h": "60s", "1d": "2m",
}  # fmt: skip
"""Windows of the rules, and what they are in a test. Whatever an alert waits for before it fires is left out."""

needs_prometheus = pytest.mark.skipif(
    any(shutil.which(program) is None for program in PROGRAMS),
    reason="Prometheus is not installed: apt-get install prometheus prometheus-alertmanager",
)


@dataclass
class Monitoring:
    """Both servers, and what the webhook was told: ``(path, notification)``."""

    prometheus: str
    alertmanager: str
    client: httpx.AsyncClient
    told: list[tuple[str, Json]] = field(default_factory=list)

    async def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Return what an expression is now: labels and value of each series. Fails where Prometheus refuses it."""
        answer = await self.client.post(f"{self.prometheus}/api/v1/query", data={"query": expr})
        assert answer.status_code == 200, (expr, answer.text)
        found = answer.json()["data"]
        results = found["result"] if found["resultType"] == "vector" else [{"metric": {}, "value": found["result"]}]
        return [(one["metric"], float(one["value"][1])) for one in results]

    async def firing(self, name: str, **labels: str) -> list[Json]:
        """Return the alerts of a name that fire now and have these labels."""
        alerts = (await self.client.get(f"{self.prometheus}/api/v1/alerts")).json()["data"]["alerts"]
        return [
            one for one in alerts if one["state"] == "firing" and {"alertname": name, **labels}.items() <= one["labels"].items()
        ]

    def notifications(self, name: str, severity: str, status: str = "firing", **labels: str) -> list[Json]:
        """Return the alerts that the webhook of a severity was told of."""
        wanted = {"alertname": name, "severity": severity, **labels}.items()
        return [
            alert
            for path, body in self.told
            if path == f"/standby/{severity}"
            for alert in body["alerts"]
            if alert["status"] == status and wanted <= alert["labels"].items()
        ]

    async def until_told(self, name: str, severity: str, status: str = "firing", **labels: str) -> Json:
        """Wait until the webhook of that severity, and no other one, was told of an alert; return that."""
        what = f"the webhook is told that {name} {severity} {labels} is {status}"
        try:
            await until(lambda: self.notifications(name, severity, status, **labels), what, WITHIN_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; firing: {await self.firing(name)}") from None
        found = self.notifications(name, severity, status, **labels)[-1]
        for path, body in self.told:
            if any(alert["fingerprint"] == found["fingerprint"] for alert in body["alerts"]):
                assert path == f"/standby/{severity}"
        return found

    async def suppressed(self, name: str) -> bool:
        """Whether Alertmanager holds an alert back because of another one."""
        alerts = (await self.client.get(f"{self.alertmanager}/api/v2/alerts")).json()
        return any(one["labels"]["alertname"] == name and one["status"]["inhibitedBy"] for one in alerts)


@asynccontextmanager
async def monitoring(folder: Path, targets: Path) -> AsyncIterator[Monitoring]:
    """Watch the processes that ``targets`` names until the block ends; everything of it lies in ``folder``."""
    first, second = free_ports(2)
    async with AsyncExitStack() as cleanup:
        client = await cleanup.enter_async_context(httpx.AsyncClient(timeout=WITHIN_S, trust_env=False))
        watch = Monitoring(f"http://127.0.0.1:{first}", f"http://127.0.0.1:{second}", client)
        receiver = await asyncio.start_server(_receiver(watch.told), "127.0.0.1", 0)
        cleanup.push_async_callback(receiver.wait_closed)
        cleanup.callback(receiver.close)
        address = f"127.0.0.1:{receiver.sockets[0].getsockname()[1]}"
        await start(cleanup, folder, _alertmanager(folder, address, second), f"{watch.alertmanager}/-/ready", client)
        await start(cleanup, folder, _prometheus(folder, targets, first, second), f"{watch.prometheus}/-/ready", client)
        yield watch


def shortened(rules: str) -> str:
    """Return rules with other durations and nothing else: windows by ``SHORT``, and no waiting before an alert fires."""
    rules = re.sub(r"(?m)^(\s+for:) \w+$", r"\1 0s", rules)
    return re.sub(r"(\[|offset )(\d+[smhd])\b", lambda found: found[1] + SHORT[found[2]], rules)


def _prometheus(folder: Path, targets: Path, port: int, alertmanager: int) -> list[str]:
    config = yaml.safe_load((INFRA / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"}
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{alertmanager}"]
    config["scrape_configs"][0]["file_sd_configs"][0] |= {"files": [str(targets)], "refresh_interval": "1s"}
    for path in RULE_FILES:
        (folder / path.name).write_text(shortened(path.read_text()))
    config["rule_files"] = [path.name for path in RULE_FILES]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    return [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip


def _alertmanager(folder: Path, receiver: str, port: int) -> list[str]:
    config = yaml.safe_load((INFRA / "alertmanager" / "alertmanager.yml").read_text())
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "1s", "repeat_interval": "1h"}
    (folder / "token").write_text("token")
    for one in config["receivers"]:
        for webhook in one["webhook_configs"]:
            webhook["url"] = f"http://{receiver}{urlsplit(webhook['url']).path}"
            webhook["http_config"] = {"authorization": {"credentials_file": str(folder / "token")}}
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
    return [
        "prometheus-alertmanager", f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}", f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
    ]  # fmt: skip


async def start(cleanup: AsyncExitStack, folder: Path, command: list[str], ready: str, client: httpx.AsyncClient) -> None:
    """Start a server and wait until it answers at ``ready``; ``cleanup`` ends it. Its log lies in ``folder``."""
    log = folder / f"{command[0]}.log"
    process = await spawn(
        [shutil.which(command[0]) or command[0], *command[1:]], environment=os.environ, log=log, folder=folder
    )
    cleanup.push_async_callback(stop_group, process, 10.0)

    async def answers() -> bool:
        assert process.returncode is None, log_tail(log)
        with contextlib.suppress(httpx.TransportError):
            return (await client.get(ready)).status_code == 200
        return False

    await until(answers, f"{command[0]} is ready", WITHIN_S)


def _receiver(told: list[tuple[str, Json]]) -> Any:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                (length,) = re.findall(r"(?i)content-length: (\d+)", head)
                body = await reader.readexactly(int(length))
                assert "Bearer token" in head
                told.append((head.split(" ")[1], json.loads(body)))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
        writer.close()

    return serve
