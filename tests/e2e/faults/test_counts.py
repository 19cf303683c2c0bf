"""Whatever way requests end, every count returns to zero, every slot is free again, and the endpoint goes to sleep."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from support.deployment import QUESTION, Deployment, aws_error_of, error_of, text_of
from support.raw_http import RawAnswer

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAYS = 2
SLOTS = 4
# An answer has eight tokens, one each 0.25 s, so that all of four are seen at work; the ninth is the engine's death.
KNOBS = {"token_delay_ms": 250, "tokens": 12, "die_after_tokens": 8}
LONG = 8
DEADLY = 12
PATH = "/endpoints/counted/invocations"


def body(**fields: object) -> dict[str, object]:
    return {"messages": QUESTION, "max_tokens": LONG, **fields}


async def test_every_ending_gives_back_what_it_held(there: Deployment) -> None:
    """Field case B20: after 77 requests that ended in nine ways nothing is counted, and the endpoint scales to zero."""
    await there.endpoint("counted", knobs=KNOBS, slots=SLOTS, keep_ready="5s", keep_asleep="0s", keep_staged="0s")
    await there.warm("counted")
    endings: list[tuple[int, Callable[[Deployment, int], Awaitable[None]]]] = [
        (12, leaves_before_headers),
        (12, leaves_in_the_middle),
        (8, leaves_while_sending),
        (12, fails_in_the_engine),
        (8, is_no_json),
        (8, names_no_model),
        (4, has_no_key),
    ]
    for count, ending in endings:
        await asyncio.gather(*(ending(there, number) for number in range(count)))
    await all_is_given_back(there)
    await the_engine_dies(there)
    await all_is_given_back(there)
    await a_gateway_dies(there)
    await all_is_given_back(there)
    await admits_exactly_four(there)
    await there.until_state("counted", "cold")
    assert there.engines() == []


async def leaves_before_headers(there: Deployment, number: int) -> None:
    client = await there.post(PATH, body(), gateway=number % 2)
    await asyncio.sleep(0.01 * (number % 5))
    client.abort()


async def leaves_in_the_middle(there: Deployment, number: int) -> None:
    client = await there.post(PATH, body(stream=True), gateway=number % 2)
    assert await client.reader.readuntil(b"data: ")
    client.abort()


async def leaves_while_sending(there: Deployment, number: int) -> None:
    client = await there.connect(number % 2)
    client.send("POST", PATH, {**there.stack.headers(), "content-length": "1000"}, b'{"messages": [', framed=False)
    await client.writer.drain()
    client.abort()


async def fails_in_the_engine(there: Deployment, number: int) -> None:
    answer = await there.invoke("counted", gateway=number % 2, fail_with=500)
    assert (answer.status_code, answer.json()["OriginalStatusCode"]) == (424, 500)
    assert "fake_engine" in answer.json()["OriginalMessage"]


async def is_no_json(there: Deployment, number: int) -> None:
    answer = await there.call("POST", PATH, gateway=number % 2, content=b'{"messages": [')
    assert (answer.status_code, answer.json()["OriginalStatusCode"]) == (424, 400)


async def names_no_model(there: Deployment, number: int) -> None:
    error_of(await there.chat("countless", gateway=number % 2), 404, "model_not_found")


async def has_no_key(there: Deployment, number: int) -> None:
    answer = await there.call("POST", PATH, gateway=number % 2, json=body(), headers={"authorization": "Bearer nobody"})
    aws_error_of(answer, 403, "invalid_api_key")


async def the_engine_dies(there: Deployment) -> None:
    """Four are in flight, four wait: the first are told, the others are answered by the engine's successor."""
    doomed = [asyncio.create_task(there.invoke("counted", gateway=n % 2, max_tokens=DEADLY)) for n in range(SLOTS)]
    await there.until(lambda: active(there, SLOTS), "four are in flight")
    waiting = [asyncio.create_task(there.invoke("counted", gateway=n % 2, max_tokens=1)) for n in range(SLOTS)]
    for answer in await asyncio.gather(*doomed):
        aws_error_of(answer, 424, "engine_died")
    for answer in await asyncio.gather(*waiting):
        text_of(answer)


async def a_gateway_dies(there: Deployment) -> None:
    clients = [await there.post(PATH, body(stream=True), gateway=1) for _ in range(SLOTS)]
    await there.until(lambda: active(there, SLOTS), "four are in flight")
    ended = [asyncio.create_task(client.answer()) for client in clients]
    await there.kill_gateway(1)
    answers: list[RawAnswer] = await asyncio.gather(*ended)
    assert not any(answer.complete for answer in answers)


async def all_is_given_back(there: Deployment) -> None:
    for name in ("standby_requests_in_flight", "standby_requests_queued", "standby_queued_bytes"):
        await there.until_total(name, "counted", 0)
    await there.until(lambda: active(there, 0), "the engine works on nothing")
    await there.until(lambda: told_in_flight(there, 0), "the API tells no request")


async def active(there: Deployment, count: int) -> bool:
    """On a slow machine it may be at zero already: then nothing is at work."""
    return await there.active("counted") == count


async def told_in_flight(there: Deployment, count: int) -> bool:
    instance = await there.instance("counted")
    return (0 if instance is None else instance["in_flight"]) == count


async def admits_exactly_four(there: Deployment) -> None:
    """The next four run at once, and a fifth waits for one of them."""
    tasks = [asyncio.create_task(there.invoke("counted", gateway=n % 2, max_tokens=LONG)) for n in range(SLOTS + 1)]
    await there.until(lambda: active(there, SLOTS), "four run at once")
    answers = await asyncio.gather(*tasks)
    assert Counter(answer.status_code for answer in answers) == {200: SLOTS + 1}
    assert (await there.stats("counted"))["peak"] == SLOTS
