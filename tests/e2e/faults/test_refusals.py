"""Bad requests and full rooms: each is refused with its own code and its limit, and starts nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.deployment import PARIS, QUESTION, Deployment, aws_error_of, error_of, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_BODY = 64 * 1024
ENVIRONMENT = {"STANDBY_MAX_BODY_BYTES": str(MAX_BODY)}
BODY = {"model": "idle", "messages": QUESTION}
LARGE = b'{"model": "idle", "messages": "' + b"x" * MAX_BODY + b'"}'

NOBODY = {"authorization": "Bearer nobody"}

AT = "/endpoints/idle/invocations"
# On an endpoint's own routes the envelope is AWS's; what a body holds is between the caller and the container.
REFUSALS: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("too large", AT, {"content": LARGE}, 400, "payload_too_large"),
    ("unknown key", AT, {"json": BODY, "headers": NOBODY}, 403, "invalid_api_key"),
    ("unknown endpoint", "/endpoints/nobody/invocations", {"json": BODY}, 400, "endpoint_not_found"),
    ("too large for OpenAI", "/v1/chat/completions", {"content": LARGE}, 413, "payload_too_large"),
    ("no JSON for OpenAI", "/v1/chat/completions", {"content": b"\xff\xfe"}, 400, "malformed_json"),
    ("no model", "/v1/chat/completions", {"json": {"messages": QUESTION}}, 400, "invalid_request"),
    ("unknown model", "/v1/chat/completions", {"json": {**BODY, "model": "nobody"}}, 404, "model_not_found"),
]


@pytest.mark.parametrize(("path", "options", "status", "code"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
async def test_a_bad_request_is_refused_and_starts_nothing(
    there: Deployment, path: str, options: dict[str, Any], status: int, code: str
) -> None:
    await has_endpoint(there, "idle")
    answer = await there.call("POST", path, **options)
    if path.startswith("/v1"):
        error = error_of(answer, status, code)
        message, remedy = error["message"], error["remedy"]
    else:
        error = aws_error_of(answer, status, code)
        message, remedy = error["Message"], error["Remedy"]
    assert remedy
    if code == "payload_too_large":
        assert str(MAX_BODY) in message
    await there.all_is_told()
    assert await there.instance("idle") is None
    assert there.of_kind("decision", "idle") == []


@pytest.mark.parametrize(
    "options",
    [{"content": b'{"messages": ['}, {"content": b"[1]"}, {"json": {"question": "?"}}],
    ids=["no JSON", "no object", "no form"],
)
async def test_a_body_that_no_container_could_read_starts_nothing(there: Deployment, options: dict[str, Any]) -> None:
    await has_endpoint(there, "idle")
    answer = await there.call("POST", AT, **options)
    assert (answer.status_code, answer.json()["OriginalStatusCode"]) == (424, 400)
    await there.all_is_told()
    assert await there.instance("idle") is None
    assert there.of_kind("decision", "idle") == []


async def test_a_full_waiting_room_refuses_with_its_limit(there: Deployment) -> None:
    """The two who wait are served; the third is told at once, and when to come back."""
    await there.endpoint("narrow", knobs={"start_delay_s": 5.0}, queue_requests=2)
    waiting = [asyncio.create_task(there.invoke("narrow")) for _ in range(2)]
    await there.until_total("standby_requests_queued", "narrow", 2)
    refused = await there.invoke("narrow")
    assert "the limit is 2" in aws_error_of(refused, 400, "queue_full")["Message"]
    assert int(refused.headers["x-amz-retry-after"]) >= 1000
    assert [text_of(answer) for answer in await asyncio.gather(*waiting)] == [PARIS] * 2


async def test_a_wait_that_is_too_long_names_its_limit_and_the_load_goes_on(there: Deployment) -> None:
    await there.endpoint("late", knobs={"start_delay_s": 3.0}, max_cold_wait="0.4s")
    refused = await there.invoke("late")
    assert "max_cold_wait (0.4 s)" in aws_error_of(refused, 429, "model_not_ready")["Message"]
    assert int(refused.headers["x-amz-retry-after"]) >= 1000
    await there.until_state("late", "ready")
    assert text_of(await there.invoke("late")) == PARIS
    await there.became("late", "ready")
    assert there.spawns("late") == 1


async def test_the_drain_limit_ends_requests_with_an_explicit_error(there: Deployment) -> None:
    """What is in flight when the endpoint is deleted may end within the limit; the rest is told why it was cut off."""
    await there.endpoint("leaving", knobs={"token_delay_ms": 100, "tokens": 10_000}, drain_limit="8s")
    await there.warm("leaving")
    short = asyncio.create_task(there.invoke("leaving", max_tokens=20))
    whole = asyncio.create_task(there.invoke("leaving"))
    stream = await there.post("/endpoints/leaving/invocations", {"messages": QUESTION, "stream": True})
    await there.until(lambda: three_run(there), "three run")
    await there.api("DELETE", "/endpoints/leaving")
    assert len(text_of(await short).split()) == 20
    cut = await stream.answer()
    assert cut.complete, "an error event, then a proper end"
    assert b'"error"' in cut.body
    assert b"drain limit of 8 s" in cut.body
    assert b"[DONE]" not in cut.body
    aws_error_of(await whole, 424, "engine_died")
    await there.until(lambda: is_gone(there, "leaving"), "the endpoint is gone")


async def three_run(there: Deployment) -> bool:
    return await there.active("leaving") == 3


async def is_gone(there: Deployment, endpoint: str) -> bool:
    return (await there.call("GET", f"/api/v1/endpoints/{endpoint}")).status_code == 404


async def has_endpoint(there: Deployment, name: str) -> None:
    if (await there.call("GET", f"/api/v1/endpoints/{name}")).status_code == 404:
        await there.endpoint(name)
