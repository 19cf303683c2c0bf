"""A burst at an endpoint at zero, on a whole deployment: which rung answered, and where the time went."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from standby.bench.files import Document
from standby.cli.main import app
from support.deployment import Deployment, deployment
from support.waiting import until

pytestmark = pytest.mark.drill

# Longer than a slow machine takes to send a burst.
START_S = 3.0


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Deployment]:
    # A stream's head goes out after a quarter of a second: the answers of cold requests do not say their rung.
    async with deployment(tmp_path, environment={"STANDBY_STREAM_HEARTBEAT_S": "0.25"}) as running:
        yield running


async def bench(there: Deployment, *words: str) -> Document:
    key = there.stack.headers()["authorization"].removeprefix("Bearer ")
    arguments = ["--url", there.url(), "--key", key, "bench", *words, "--json", "-", "--samples"]
    done = await asyncio.to_thread(CliRunner().invoke, app, arguments)
    assert done.exit_code == 0, done.output
    return Document.model_validate_json(done.stdout)


async def billed(there: Deployment) -> list[str]:
    """Return the lines of the gateway's metrics by which somebody pays."""
    text = (await there.call("GET", "/metrics")).text
    names = ("standby_requests_total", "standby_billed_requests", "standby_completion_tokens", "standby_aws_Invocations_total")
    return [
        line
        for line in text.splitlines()
        if line.startswith(names) and 'endpoint="slow"' in line.replace("EndpointName", "endpoint")
    ]


async def at_least_two(there: Deployment) -> bool:
    return sum(await requests(there)) >= 2


async def requests(there: Deployment) -> list[float]:
    """Return how many requests are counted, of each outcome."""
    return [float(line.rpartition(" ")[2]) for line in await billed(there) if line.startswith("standby_requests_total{")]


async def test_a_burst_from_zero_is_split_by_rung_and_attributed_to_phases(there: Deployment) -> None:
    await there.endpoint("slow", knobs={"start_delay_s": START_S}, slots=4)
    cold = await bench(there, "slow", "--burst", "3", "--max-tokens", "4")
    assert (cold.summary.ok, set(cold.summary.by_rung)) == (3, {"cold"})
    for sample in cold.run.samples:
        phases = dict(sample.phases_ms)
        assert phases["loaded"] >= 900.0 * START_S
        assert sample.waited_s is not None
        assert sample.waited_s > 0.9 * START_S
        assert sample.ttft_s is not None
        assert sample.ttft_s >= sample.waited_s
    ready = await bench(there, "slow", "--rate", "20", "--count", "10", "--max-tokens", "4")
    assert (ready.summary.ok, set(ready.summary.by_rung)) == (10, {"ready"})
    assert ready.summary.notes == ()
    assert await billed(there) == []
    counted = await bench(there, "slow", "--burst", "2", "--counted")
    assert counted.summary.ok == 2
    # And nothing of the tests before, however late it would have come.
    await until(lambda: at_least_two(there), "both are counted")
    assert await requests(there) == [2.0]
    await the_tail_of_a_mixed_load_is_the_climb(there)


async def the_tail_of_a_mixed_load_is_the_climb(there: Deployment) -> None:
    await there.endpoint("mixed", knobs={"start_delay_s": START_S}, slots=8)
    trace = there.artifacts / "trace.csv"
    # The last one finds it ready, however slowly it climbed.
    moments = (0.0, *(START_S + 0.5 + at / 10 for at in range(30)), 5 * START_S)
    rows = [f"2024-01-01 00:00:{at:09.6f},20,4" for at in moments]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    document = await bench(there, "mixed", "--trace", str(trace))
    tail: Any = document.summary.tail
    assert document.summary.ok == len(rows)
    assert set(document.summary.by_rung) == {"staged", "ready"}  # the other endpoint has fetched the same bytes
    assert tail.phases[0].phase == "loaded", json.dumps(document.summary.model_dump(mode="json")["tail"])
    assert tail.attributed == tail.requests
