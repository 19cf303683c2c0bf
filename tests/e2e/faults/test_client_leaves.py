"""A caller who leaves ends the work behind it, wherever the request is just then."""

from __future__ import annotations

import pytest

from support.deployment import QUESTION, Deployment, text_of
from support.raw_http import RawClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

# One slot; an answer of a minute, a token each 0.2 s, so that there is time between two of them.
KNOBS = {"token_delay_ms": 200, "tokens": 300}
NAME = "endless"
# Long before the answer ends by itself. How soon it is on a machine with nothing else to do, benchmarks say.
SEEN_WITHIN_S = 30.0
# Nothing else ends the work: no heartbeat finds the connection closed, no run is given up, no limit is near.
ENVIRONMENT = {
    "STANDBY_STREAM_HEARTBEAT_S": "0",
    "STANDBY_RETRY_LINGER_S": "600",
    "STANDBY_INVOCATION_LIMIT_S": "600",
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", f"/endpoints/{NAME}/invocations"], ids=["openai", "invocations"])
@pytest.mark.parametrize("moment", ["queued", "before the first token", "decoding"])
async def test_a_caller_who_leaves_ends_the_work(there: Deployment, path: str, stream: bool, moment: str) -> None:
    """Field case B25, twelve cells: the engine sees the abort, the slot is free; who was queued is simply removed."""
    await is_running(there)
    before = await there.stats(NAME)
    if moment == "queued":
        await leaves_the_queue(there, path, stream)
        aborts = 1  # the one that held the slot
    else:
        client = await ask(there, path, stream, hold=moment == "before the first token")
        await there.until(lambda: is_active(there), "the engine has the request")
        if moment == "decoding":
            await there.until(lambda: has_tokens(there, before["tokens"] + 1), "the engine has made a token")
        client.abort()
        aborts = 1
    await there.until(lambda: has_aborts(there, before["aborts"] + aborts), "the engine sees the abort", SEEN_WITHIN_S)
    after = await there.stats(NAME)
    assert after["active"] == 0
    assert after["served"] == before["served"]
    assert after["completions"] == before["completions"] + 1
    if moment == "before the first token":
        assert after["tokens"] == before["tokens"]
    await there.until_total("standby_requests_in_flight", NAME, 0)
    text_of(await there.invoke(NAME, max_tokens=1))


async def is_running(there: Deployment) -> None:
    if (await there.call("GET", f"/api/v1/endpoints/{NAME}")).status_code == 404:
        await there.endpoint(NAME, knobs=KNOBS, slots=1, keep_ready="forever")
        assert (await there.invoke(NAME, max_tokens=1)).status_code == 200


async def ask(there: Deployment, path: str, stream: bool, *, hold: bool = False) -> RawClient:
    """Ask; one that is to be held gets no token, however long it stays."""
    return await there.post(path, {"model": NAME, "messages": QUESTION, "stream": stream, "hold": hold})


async def leaves_the_queue(there: Deployment, path: str, stream: bool) -> None:
    """One request holds the only slot, another waits behind it and leaves; then the first one leaves."""
    holder = await ask(there, path, stream)
    await there.until(lambda: is_active(there), "the slot is taken")
    waiter = await ask(there, path, stream)
    await there.until_total("standby_requests_queued", NAME, 1)
    waiter.abort()
    await there.until_total("standby_requests_queued", NAME, 0, SEEN_WITHIN_S)
    await there.until_total("standby_requests_in_flight", NAME, 1)
    assert await is_active(there), "the one that has the slot is not touched"
    holder.abort()


async def is_active(there: Deployment) -> bool:
    return (await there.stats(NAME))["active"] == 1


async def has_tokens(there: Deployment, count: int) -> bool:
    return (await there.stats(NAME))["tokens"] >= count


async def has_aborts(there: Deployment, count: int) -> bool:
    return (await there.stats(NAME))["aborts"] == count
