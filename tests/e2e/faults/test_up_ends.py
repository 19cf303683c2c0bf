"""Ctrl-C for ``standby up`` while a stream runs: once lets it end, twice cuts it off; nothing is left either way."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from support.deployment import QUESTION
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, short_dir
from support.gguf_builder import gguf
from support.user import DEADLINE_S, Up, up
from support.waiting import until

SETTINGS = {"STANDBY_FAKE_ENGINE": str(FAKE_ENGINE_PROGRAM), "STANDBY_SHUTDOWN_GRACE_S": "600", "STANDBY_STOP_GRACE_S": "1"}


@pytest.fixture
async def running() -> AsyncIterator[Up]:
    with short_dir() as folder:
        async with up(folder / "state", SETTINGS, "--gateways", "2") as found:
            path = folder / "m.gguf"
            path.write_bytes(gguf(seed=1))
            model = {"name": "m", "source_uri": path.as_uri(), "engine": "fake", "engine_options": {"token_delay_ms": 60}}
            await found.call("POST", "/models", model)
            await found.call("POST", "/endpoints", {"name": "e", "model": "m"})
            yield found


async def stream(running: Up, told: asyncio.Event, **body: object) -> list[str]:
    """Ask, set ``told`` after the first event, and return every line with something in it."""
    asked = {"messages": QUESTION, "stream": True, **body}
    lines = []
    async with running.api.stream("POST", "/endpoints/e/invocations", json=asked) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line:
                lines.append(line)
                told.set()
    return lines


async def ends(running: Up) -> None:
    """Wait until it has ended well, with everything that ran below it."""
    async with asyncio.timeout(60):
        assert await running.process.wait() == 0, running.log.read_text()
    assert running.leftovers() == []
    assert not (running.state / "prometheus-targets.json").exists(), "nothing is left to scrape"


async def test_once_lets_the_stream_end(running: Up) -> None:
    """The order is gateways, controller, node, and then the nats-server."""
    begun = asyncio.Event()
    asking = asyncio.create_task(stream(running, begun, ignore_eos=True, max_tokens=40))
    await begun.wait()
    running.remember()
    running.process.send_signal(signal.SIGINT)
    lines = await asking
    assert (len(lines), lines[-1]) == (42, "data: [DONE]")
    await ends(running)
    said = running.log.read_text()
    places = [said.index(f"{name}: ended with exit code 0") for name in ("gateway-2", "controller", "node")]
    assert places == sorted(places), said


async def test_twice_cuts_it_off(running: Up) -> None:
    """Within seconds although the grace is ten minutes, and its caller is told."""
    begun = asyncio.Event()
    asking = asyncio.create_task(stream(running, begun, ignore_eos=True))
    await begun.wait()
    running.remember()
    running.process.send_signal(signal.SIGINT)
    await until(
        lambda: "draining: 1 open requests" in (running.state / "logs" / "gateway.log").read_text(), "it drains", DEADLINE_S
    )
    assert not asking.done()
    running.process.send_signal(signal.SIGINT)
    lines = await asking
    assert '"error"' in lines[-1]
    assert "data: [DONE]" not in lines
    await ends(running)
