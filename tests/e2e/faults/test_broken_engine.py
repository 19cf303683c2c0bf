"""An engine that does not start: said in words, tried again with a growing pause, and nobody else's trouble."""

from __future__ import annotations

import asyncio
import itertools
import time

import httpx
import pytest

from support.deployment import PARIS, Deployment, aws_error_of, text_of
from support.fake_engine_spec import Option

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIRST_ERROR = "error: tensor blk.0.attn_q.weight has the wrong shape"
BROKEN: dict[str, Option] = {"fail_start": 1, "start_delay_s": 0.2, "fail_message": FIRST_ERROR}


async def test_a_broken_engine_backs_off_and_starves_nobody(there: Deployment) -> None:
    """Field case B12: polling adds no start, callers are told the reason at once, the neighbour is served meanwhile."""
    await there.endpoint("broken", knobs=BROKEN)
    await there.endpoint("healthy")
    answers: list[httpx.Response] = []
    polling = asyncio.create_task(poll(there, answers))
    await there.happened(lambda: there.spawns("broken") == 2, "broken starts again")
    assert text_of(await there.invoke("healthy")) == PARIS
    await there.until(lambda: enough(answers), "callers are refused at once")
    polling.cancel()
    await asyncio.gather(polling, return_exceptions=True)

    for answer in answers:
        error = aws_error_of(answer, 424, "endpoint_failed")
        assert "code 1" in error["Message"]
        assert FIRST_ERROR in error["Message"]
        assert int(answer.headers["x-amz-retry-after"]) >= 1000
    began = [change["at"] for change in there.of_kind("transition", "broken") if change["after"] == "starting"]
    pauses = [after - before for before, after in itertools.pairwise(began)]
    assert pauses[0] >= 1.0
    assert pauses[1] >= 2.0
    assert there.spawns("healthy") == 1
    await shows_its_failure(there)
    await clears_by_retry(there)
    await there.api("DELETE", "/endpoints/broken")
    await there.until(lambda: is_gone(there, "broken"), "broken is gone")
    assert len(there.engines()) == 1, "only the healthy endpoint's engine runs"


async def poll(there: Deployment, answers: list[httpx.Response]) -> None:
    while True:
        answers.append(await there.invoke("broken"))
        await asyncio.sleep(0.05)


async def enough(answers: list[httpx.Response]) -> bool:
    return len(answers) >= 10


async def is_gone(there: Deployment, endpoint: str) -> bool:
    return (await there.call("GET", f"/api/v1/endpoints/{endpoint}")).status_code == 404


async def shows_its_failure(there: Deployment) -> None:
    shown = await there.until_status("broken", "Failed")
    failure = shown["failure"]
    assert "exit" in failure["reason"]
    assert "code 1" in failure["reason"]
    assert failure["first_error"] == FIRST_ERROR
    assert FIRST_ERROR in failure["log_tail"]
    assert failure["attempts"] == there.spawns("broken") == 3
    assert time.time() < failure["next_retry_at"] <= time.time() + 60
    assert shown["state"].startswith("failed: ")
    assert "next try in" in shown["state"]


async def clears_by_retry(there: Deployment) -> None:
    """An explicit retry does not wait for the back-off, and counts anew."""
    asked = time.time()
    shown = await there.api("POST", "/endpoints/broken/retry")
    assert (shown["status"], shown["failure"]) == ("InService", None)
    started = there.spawns("broken")
    waiting = asyncio.create_task(there.invoke("broken"))
    await there.happened(lambda: there.spawns("broken") > started, "broken starts at once", within_s=3.0)
    shown = await there.until_status("broken", "Failed")
    assert shown["failure"]["attempts"] == 1
    assert shown["failure"]["at"] >= asked
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize(
    ("name", "fail_start", "words"),
    [("code", 3, "exit code 3"), ("killed", -9, "SIGKILL"), ("crashed", -11, "SIGSEGV")],
)
async def test_a_failed_start_says_how_the_process_ended(there: Deployment, name: str, fail_start: int, words: str) -> None:
    await there.endpoint(name, knobs={"fail_start": fail_start, "fail_message": FIRST_ERROR})
    waiting = asyncio.create_task(there.invoke(name))
    failure = (await there.until_status(name, "Failed"))["failure"]
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert words in failure["reason"]
    assert failure["first_error"] == FIRST_ERROR
    assert failure["next_retry_at"] > failure["at"]
