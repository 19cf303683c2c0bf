"""The metrics of a process on a port of its own: fresh, there while the loop hangs, and gone with the process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from standby.domain.errors import ConfigurationError
from standby.telemetry import exposition
from standby.telemetry.exposition import exposed


def a_registry() -> tuple[CollectorRegistry, Gauge]:
    registry = CollectorRegistry()
    return registry, Gauge("asked", "How often", registry=registry)


async def scrape(port: str, path: str = "/metrics") -> str:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return (await client.get(f"http://127.0.0.1:{port}{path}")).text


async def test_figures_are_brought_up_to_date_before_each_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "REFRESH_LIMIT_S", 30.0)
    registry, gauge = a_registry()
    file = tmp_path / "port"
    async with exposed(registry, 0, gauge.inc, variable="STANDBY_METRICS_PORT", port_file=str(file)):
        port = file.read_text()
        assert "asked 1.0" in await scrape(port)
        assert "asked 2.0" in await scrape(port, "/metrics?name[]=asked")
    with pytest.raises(httpx.ConnectError):
        await scrape(port)


async def test_a_loop_that_hangs_does_not_hang_the_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was known is told."""
    monkeypatch.setattr(exposition, "REFRESH_LIMIT_S", 0.01)
    registry, gauge = a_registry()
    gauge.set(7)
    file = tmp_path / "port"
    async with exposed(registry, 0, gauge.inc, variable="STANDBY_METRICS_PORT", port_file=str(file)):
        url = f"http://127.0.0.1:{file.read_text()}/metrics"
        # Nothing runs in the loop while this very thread waits for the answer.
        with ThreadPoolExecutor(1) as other:
            text = other.submit(lambda: httpx.get(url, trust_env=False, timeout=60).text).result(timeout=60)
    assert "asked 7.0" in text


async def test_a_port_that_is_taken_is_named() -> None:
    taken = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    registry, gauge = a_registry()
    with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}: Address already in use") as failed:
        async with exposed(registry, port, gauge.inc, variable="STANDBY_METRICS_PORT"):
            pass
    assert "STANDBY_METRICS_PORT" in (failed.value.remedy or "")
    taken.close()
    await taken.wait_closed()


async def test_without_a_port_nothing_is_served() -> None:
    registry, gauge = a_registry()
    async with exposed(registry, None, gauge.inc, variable="STANDBY_METRICS_PORT"):
        pass
    assert registry.get_sample_value("asked") == 0
