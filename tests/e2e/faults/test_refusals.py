"""Bad requests and full rooms: each is refused with its own code and its limit, and starts nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.deployment import PARIS, QUESTION, Deployment, error_of, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_BODY = 64 * 1024
ENVIRONMENT = {"STANDBY_MAX_BODY_BYTES": str(MAX_BODY)}
BODY = {"model": "idle", "messages": QUESTION}
LARGE = b'{"model": "idle", "messages": "' + b"x" * MAX_BODY + b'"}'

NOBODY = {"authorization": "Bearer nobody"}

REFUSALS: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("too large", "/endpoints/idle/invocations", {"content": LARGE}, 413, "payload_too_large"),
    ("too large for OpenAI", "/v1/chat/completions", {"content": LARGE}, 413, "payload_too_large"),
    ("no JSON", "/endpoints/idle/invocations", {"content": b'{"messages": ['}, 400, "malformed_json"),
    ("no JSON for OpenAI", "/v1/chat/completions", {"content": b"\xff\xfe"}, 400, "malformed_json"),
    ("no object", "/endpoints/idle/invocations", {"content": b"[1]"}, 400, "invalid_request"),
    ("no form", "/endpoints/idle/invocations", {"json": {"question": "?"}}, 400, "invalid_request"),
    ("no model", "/v1/chat/completions", {"json": {"messages": QUESTION}}, 400, "invalid_request"),
    (
        "unknown key",
        "/endpoints/idle/invocations",
        {"json": BODY, "headers": NOBODY},
        401,
        "invalid_api_key",
    ),
    ("unknown endpoint", "/endpoints/nobody/invocations", {"json": BODY}, 404, "endpoint_not_found"),
    ("unknown model", "/v1/chat/completions", {"json": {**BODY, "model": "nobody"}}, 404, "model_not_found"),
]


@pytest.mark.parametrize(("path", "options", "status", "code"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
async def test_a_bad_request_is_refused_and_starts_nothing(
    there: Deployment, path: str, options: dict[str, Any], status: int, code: str
) -> None:
    await has_endpoint(there, "idle")
    answer = await there.call("POST", path, **options)
    error = error_of(answer, status, code)
    assert error["remedy"]
    if status == 413:
        assert str(MAX_BODY) in error["message"]
    assert await there.instance("idle") is None
    assert there.of_kind("decision", "idle") == []


async def test_a_full_waiting_room_refuses_with_its_limit(there: Deployment) -> None:
    """The two who wait are served; the third is told at once, and when to come back."""
    await there.endpoint("narrow", knobs={"start_delay_s": 1.0}, queue_requests=2)
    waiting = [asyncio.create_task(there.invoke("narrow")) for _ in range(2)]
    await there.until_total("standby_requests_queued", "narrow", 2)
    refused = await there.invoke("narrow")
    assert "the limit is 2" in error_of(refused, 429, "queue_full")["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert [text_of(answer) for answer in await asyncio.gather(*waiting)] == [PARIS] * 2


async def test_a_wait_that_is_too_long_names_its_limit_and_the_load_goes_on(there: Deployment) -> None:
    await there.endpoint("late", knobs={"start_delay_s": 1.2}, max_cold_wait="0.4s")
    refused = await there.invoke("late")
    assert "max_cold_wait (0.4 s)" in error_of(refused, 503, "model_not_ready")["message"]
    assert int(refused.headers["retry-after"]) >= 1
    await there.until_state("late", "ready")
    assert text_of(await there.invoke("late")) == PARIS
    assert there.spawns("late") == 1


async def test_the_drain_limit_ends_requests_with_an_explicit_error(there: Deployment) -> None:
    """What is in flight when the endpoint is deleted may end within the limit; the rest is told why it was cut off."""
    await there.endpoint("leaving", knobs={"token_delay_ms": 100, "tokens": 100}, drain_limit="0.6s")
    await there.warm("leaving")
    short = asyncio.create_task(there.invoke("leaving", max_tokens=3))
    whole = asyncio.create_task(there.invoke("leaving"))
    stream = await there.post("/endpoints/leaving/invocations", {"messages": QUESTION, "stream": True})
    await there.until(lambda: three_run(there), "three run")
    await there.api("DELETE", "/endpoints/leaving")
    assert text_of(await short) == "The capital of"
    cut = await stream.answer()
    assert cut.complete, "an error event, then a proper end"
    assert b'"error"' in cut.body
    assert b"drain limit of 0.6 s" in cut.body
    assert b"[DONE]" not in cut.body
    error_of(await whole, 502, "engine_died")
    await there.until(lambda: is_gone(there, "leaving"), "the endpoint is gone")


async def three_run(there: Deployment) -> bool:
    return (await there.stats("leaving"))["active"] == 3


async def is_gone(there: Deployment, endpoint: str) -> bool:
    return (await there.call("GET", f"/api/v1/endpoints/{endpoint}")).status_code == 404


async def has_endpoint(there: Deployment, name: str) -> None:
    if (await there.call("GET", f"/api/v1/endpoints/{name}")).status_code == 404:
        await there.endpoint(name)
