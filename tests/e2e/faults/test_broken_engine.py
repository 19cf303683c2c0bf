"""An engine that does not start: said in words, tried again with a growing pause, and nobody else's trouble."""

from __future__ import annotations

import asyncio
import itertools
import time

import httpx
import pytest

from support.deployment import PARIS, Deployment, Json, aws_error_of, text_of
from support.fake_engine_spec import Option

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIRST_ERROR = "error: tensor blk.0.attn_q.weight has the wrong shape"
FAILURES = 4
FAR_S = 5.0
BROKEN: dict[str, Option] = {"fail_start": 1, "start_delay_s": 0.2, "fail_message": FIRST_ERROR}


async def test_a_broken_engine_backs_off_and_starves_nobody(there: Deployment) -> None:
    """Field case B12: polling adds no start, callers are told the reason at once, the neighbour is served meanwhile."""
    await there.endpoint("broken", knobs=BROKEN)
    await there.endpoint("healthy")
    answers: list[httpx.Response] = []
    polling = asyncio.create_task(poll(there, answers))
    await there.became("broken", "starting", 2)
    assert text_of(await there.invoke("healthy")) == PARIS
    await there.until(lambda: enough(answers), "callers are refused at once")
    await there.became("broken", "failed", FAILURES)
    polling.cancel()
    await asyncio.gather(polling, return_exceptions=True)

    for answer in answers:
        error = aws_error_of(answer, 424, "endpoint_failed")
        assert "code 1" in error["Message"]
        assert FIRST_ERROR in error["Message"]
        assert int(answer.headers["x-amz-retry-after"]) >= 1000
    pauses = [after - before for before, after in itertools.pairwise(starts(there))]
    assert len(pauses) >= FAILURES - 1
    assert all(pause >= 2.0**number for number, pause in enumerate(pauses))
    await there.became("healthy", "ready")
    assert there.spawns("healthy") == 1
    await clears_by_retry(there, await shows_its_failure(there))
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


def starts(there: Deployment, since: float = 0.0) -> list[float]:
    """When its engine was started, in seconds since the epoch."""
    changes = there.of_kind("transition", "broken")
    return [change["at"] for change in changes if change["after"] == "starting" and change["at"] >= since]


async def shows_its_failure(there: Deployment) -> Json:
    """Look while there is still some time until the next try; after four failures that is eight seconds."""

    async def told() -> Json | None:
        shown = await there.until_status("broken", "Failed")
        far = shown["failure"]["attempts"] >= FAILURES and shown["failure"]["next_retry_at"] > time.time() + FAR_S
        return shown if far else None

    shown = await there.until(told, "the next try is far away")
    failure: Json = shown["failure"]
    assert "exit" in failure["reason"]
    assert "code 1" in failure["reason"]
    assert failure["first_error"] == FIRST_ERROR
    assert FIRST_ERROR in failure["log_tail"]
    assert failure["next_retry_at"] <= time.time() + 60
    assert shown["state"].startswith("failed: ")
    assert "next try in" in shown["state"]
    await there.became("broken", "starting", failure["attempts"])
    assert len(starts(there)) == failure["attempts"]
    return failure


async def clears_by_retry(there: Deployment, failure: Json) -> None:
    """An explicit retry does not wait for the back-off, and counts anew."""
    asked = time.time()
    shown = await there.api("POST", "/endpoints/broken/retry")
    assert (shown["status"], shown["failure"]) == ("InService", None)
    waiting = asyncio.create_task(there.invoke("broken"))
    await there.happened(lambda: starts(there, asked), "broken starts at once")
    assert starts(there, asked)[0] < failure["next_retry_at"]

    async def failed_anew() -> Json | None:
        shown = await there.until_status("broken", "Failed")
        return shown if shown["failure"]["at"] >= asked else None

    shown = await there.until(failed_anew, "it has failed once more")
    await there.happened(lambda: len(starts(there, asked)) >= shown["failure"]["attempts"], "its starts are told")
    assert shown["failure"]["attempts"] < failure["attempts"]
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
