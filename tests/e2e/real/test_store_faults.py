"""The store fails while an endpoint climbs from cold: what is said, what is retried, what callers get."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from support.flaky_proxy import Fault, flaky_proxy
from support.gguf_builder import gguf
from support.real_model import real_model_path
from support.s3_server import S3Server
from support.user import DEADLINE_S, PARIS, Up, up
from support.waiting import until

pytestmark = [pytest.mark.drill, pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module")]


async def failure_of(running: Up, endpoint: str) -> Any:
    """Return the failure that the endpoint or its instance tells, once there is one."""
    found: list[Any] = []

    async def failed() -> bool:
        shown = await running.show(endpoint)
        found[:] = [item["failure"] for item in (shown, *shown["instances"]) if item["failure"]]
        return bool(found)

    await until(failed, f"{endpoint} has failed", within_s=DEADLINE_S)
    return found[0]


async def test_a_download_that_is_cut_is_retried_by_itself(s3: S3Server, folder: Path) -> None:
    """At 60 % of the bytes every connection breaks; the waiting request is answered once the store is well again."""
    total = real_model_path().stat().st_size
    async with (
        flaky_proxy(s3.url) as proxy,
        up(folder / "state", {**s3.env(), "AWS_ENDPOINT_URL_S3": proxy.url}) as running,
    ):
        await running.serve("smol", "s3://models/smollm2/", keep_ready="10m")
        proxy.break_after(int(total * 0.6), Fault.RESET_ALWAYS)
        asking = asyncio.create_task(running.ask("smol"))
        failure = await failure_of(running, "smol")
        half_written = (await running.call("GET", "/nodes"))["nodes"][0]["cache_bytes"]
        proxy.heal()
        answer = await asking

        async def is_well() -> bool:
            """The answer comes from the engine, the news of it from the node by way of the controller."""
            shown = await running.show("smol")
            return (shown["status"], shown["failure"]) == ("InService", None)

        await until(is_well, "its failure is forgotten", DEADLINE_S)

    said = re.search(r"incomplete download, (\d+) of (\d+) bytes", failure["reason"])
    assert said is not None, failure
    assert 0 < int(said[1]) <= total * 0.6
    assert int(said[2]) == total
    assert failure["code"] == "incomplete_download"
    assert failure["next_retry_at"] is not None
    assert half_written == 0
    assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, PARIS)


async def test_an_object_that_changed_is_not_served(s3: S3Server, running: Up) -> None:
    """What was registered is pinned: other bytes under the same key are refused, and the way out is said."""
    await s3.upload("models", "moving/model.gguf", gguf(rows=8, seed=1))
    await running.serve("moving", "s3://models/moving/")
    await s3.upload("models", "moving/model.gguf", gguf(rows=8, seed=2))

    asking = asyncio.create_task(running.ask("moving"))
    failure = await failure_of(running, "moving")
    waited = await running.shell.standby("endpoints", "wait", "moving", "--timeout", "50s", code=8)
    answer = await asking

    assert failure["code"] == "artifact_changed"
    assert "register" in failure["reason"]
    assert "register" in waited.err
    assert answer.status_code == 424
    assert "register" in answer.json()["Message"]
