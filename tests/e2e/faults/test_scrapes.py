"""What Prometheus would see of a deployment that works, scales to zero and back, and loses its agent."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest

from support.deployment import Deployment
from support.scrapes import Target, scrape_of, targets_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

Once = Callable[[], Awaitable[None]]

GATEWAYS = 2
REQUESTS = 1000
SCRAPES = 200
AT_ONCE = 12
SLOTS = 6
KNOBS = {"tokens": 12, "token_delay_ms": 5}


async def test_a_thousand_requests_and_two_hundred_scrapes(there: Deployment) -> None:
    """Field case B57: every counter only grows at its target, the outcomes add up to the requests, nothing is below zero."""
    targets = targets_of(there.stack.options.state.root)
    assert sorted(target.component for target in targets) == ["controller", "gateway", "gateway", "node"]
    gateways = [target for target in targets if target.component == "gateway"]
    node, controller = (next(one for one in targets if one.component == name) for name in ("node", "controller"))
    await there.endpoint("e", knobs=KNOBS, slots=SLOTS, keep_ready="5s", keep_asleep="0s", keep_staged="0s")
    async with scraped(targets) as once:
        await ask(there, REQUESTS // 2)
        await there.until_state("e", "cold")
        await there.until(lambda: no_slots(gateways, once), "every gateway says that nothing is ready")
        assert node.total("standby_door_requests_total", result="served") == REQUESTS // 2
        assert node.total("standby_activations_total", rung="cold", outcome="ready") == 1
        at_rest(gateways)
        await an_agent_is_killed(there, node, once)
        await ask(there, REQUESTS // 2)
        while sum(target.scrapes for target in targets) < SCRAPES:
            await asyncio.sleep(0)
            await once()
        # A request is counted when its answer has been sent, which may be after its caller has it.
        await there.until(lambda: all_are_counted(gateways, once), "every request is counted")
    outcomes = [target.total("standby_requests_total", endpoint="e") for target in gateways]
    assert outcomes == [REQUESTS // 2, REQUESTS // 2]
    assert sum(target.total("standby_requests_total", endpoint="e", outcome="ok") for target in gateways) == REQUESTS
    at_rest(gateways)
    streams = sum(target.total("standby_time_to_first_token_seconds_count", endpoint="e") for target in gateways)
    assert streams == sum(target.total("standby_time_per_output_token_seconds_count", endpoint="e") for target in gateways)
    assert streams == REQUESTS // 2
    assert {target.lives for target in targets if target is not node} == {1}
    assert node.lives == 2
    assert controller.total("standby_leader") == 1
    assert controller.total("standby_decisions_total", action="assign") == 2
    assert controller.total("standby_plan_seconds_count") > 2


async def test_a_short_request_between_two_scrapes_is_seen(there: Deployment) -> None:
    """Field case B57: a second of demand, of memory that was busy, and of what it was idle before and after."""
    await is_ready(there)
    state = there.stack.options.state.root
    gateway, node = await scrape_of(state, "gateway"), await scrape_of(state, "node")
    async with scraped([gateway, node], every_s=3600) as once:
        await once()
        before = gateway.total("standby_request_duration_seconds_sum", endpoint="short")
        served = gateway.total("standby_requests_total", endpoint="short")
        held, idle = held_and_idle(node)
        assert (await there.invoke("short", max_tokens=50)).status_code == 200
        await there.until(lambda: is_counted(gateway, once, served + 1), "it is counted")
        lasted = gateway.total("standby_request_duration_seconds_sum", endpoint="short") - before
        assert lasted >= 0.8
        more_held, more_idle = held_and_idle(node)
        instance = await there.instance("short")
        assert instance is not None
        resident = instance["resident_bytes"]
        busy = ((more_held - held) - (more_idle - idle)) / resident
        # The door takes its slot back a moment after the last byte has gone, which is when the gateway's time ends.
        assert 0.5 * lasted < busy <= 2 * lasted, "seconds for which what is resident was busy"


async def test_a_node_and_a_controller_tell_what_they_hold_and_do(there: Deployment) -> None:
    await is_ready(there)
    targets = targets_of(there.stack.options.state.root)
    async with scraped(targets, every_s=3600) as once:
        await once()
    node, controller = (next(one for one in targets if one.component == name) for name in ("node", "controller"))
    assert node.total("standby_ladder_instances", rung="ready") >= 1
    assert node.total("standby_memory_capacity_bytes") > node.total("standby_resident_bytes") > 0
    assert node.total("standby_device_memory_total_bytes", kind="cpu") > 0
    assert node.total("standby_device_cordoned") == node.total("standby_off_device_instances") == 0
    phases = node.series("standby_activation_phase_seconds_count")
    assert {dict(labels)["phase"] for labels in phases} >= {"fetched", "forked", "loaded", "probed"}
    for target in targets:
        assert target.total("process_cpu_seconds_total") > 0
        assert target.total("standby_bus_disconnected_seconds") == 0
        assert max(target.series("standby_view_staleness_seconds").values()) < 60
    assert controller.total("standby_requests_total") == node.total("standby_requests_total") == 0


async def test_a_deleted_endpoint_has_no_series_and_junk_makes_none(there: Deployment) -> None:
    """Field case B58, at real processes; ``tests/unit/gateway/test_junk_names.py`` asks fifty thousand times."""
    await is_ready(there)
    targets = targets_of(there.stack.options.state.root)
    (gateway, *_) = (target for target in targets if target.component == "gateway")
    async with scraped(targets, every_s=3600) as once:
        await once()
        served = gateway.total("standby_requests_total", endpoint="short", outcome="ok")
        await junk(there, 1)
        # The last one of it is counted last.
        await there.until(lambda: is_counted(gateway, once, served + 1, outcome="ok"), "junk is counted")
        sizes = [target.size for target in targets]
        await junk(there, 40)
        await there.until(lambda: is_counted(gateway, once, served + 41, outcome="ok"), "more junk is counted")
        assert [target.size for target in targets] == sizes
        await there.api("DELETE", "/endpoints/short")

        async def gone() -> bool:
            fresh = await scrape_of(there.stack.options.state.root, "gateway")
            return not any(("endpoint", "short") in labels for _, labels in fresh.values)

        await there.until(gone, "the gateway has forgotten it")


# ---- what happens to it ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def scraped(targets: Sequence[Target], every_s: float = 0.1) -> AsyncIterator[Once]:
    """Scrape all targets every so often meanwhile; yields what scrapes them once."""
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        turn = asyncio.Lock()

        async def once() -> None:
            async with turn:
                for target in targets:
                    with contextlib.suppress(httpx.TransportError):
                        await target.scrape(client)
                        assert min(target.series("standby_requests_in_flight").values(), default=0) >= 0

        async def regularly() -> None:
            while True:
                await once()
                await asyncio.sleep(every_s)

        scraping = asyncio.create_task(regularly())
        try:
            yield once
        finally:
            scraping.cancel()
            (ended,) = await asyncio.gather(scraping, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended


async def ask(there: Deployment, requests: int) -> None:
    """Ask so many times, half of them for a stream, each gateway as often as the other."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            answer = await there.chat("e", gateway=number % 2, max_tokens=3, stream=number % 4 < 2)
        assert answer.status_code == 200, answer.text

    await asyncio.gather(*(one(number) for number in range(requests)))


async def an_agent_is_killed(there: Deployment, node: Target, once: Once) -> None:
    lives = node.lives
    there.stack.children["node"].signal(signal.SIGKILL)

    async def back() -> bool:
        await once()
        return node.lives > lives

    await there.until(back, "the node's metrics are back, at the same port")


def at_rest(gateways: Sequence[Target]) -> None:
    """Nobody asks: each gauge of the endpoint is still there, and says so."""
    for gateway in gateways:
        for name in ("standby_requests_in_flight", "standby_requests_queued", "standby_queued_bytes"):
            assert list(gateway.series(name, endpoint="e").values()) == [0], name
        assert {dict(labels)["state"] for labels in gateway.series("standby_breakers", endpoint="e")} == {
            "closed",
            "open",
            "half_open",
        }


async def is_ready(there: Deployment) -> None:
    """Let the endpoint ``short`` be ready, its memory measured and everything that it was asked counted."""
    if (await there.call("GET", "/api/v1/endpoints/short")).status_code == 404:
        await there.endpoint("short", knobs={"tokens": 60, "token_delay_ms": 20}, keep_ready="1h")
        await there.warm("short")
        await there.until_total("standby_requests_total", "short", 1)

    async def weighed() -> bool:
        found = await scrape_of(there.stack.options.state.root, "node")
        return found.total("standby_resident_byte_seconds_total", endpoint="short", rung="ready") > 0

    await there.until(weighed, "its memory was measured")


async def is_counted(gateway: Target, once: Once, count: float, **labels: str) -> bool:
    """Whether the gateway has counted so many requests of the endpoint ``short``."""
    await once()
    return gateway.total("standby_requests_total", endpoint="short", **labels) == count


async def all_are_counted(gateways: Sequence[Target], once: Once) -> bool:
    """Whether all requests of the endpoint ``e`` are counted, and none of them is inside a gateway any more."""
    await once()
    counted = sum(gateway.total("standby_requests_total", endpoint="e") for gateway in gateways)
    return counted == REQUESTS and not any(gateway.total("standby_requests_in_flight", endpoint="e") for gateway in gateways)


async def no_slots(gateways: Sequence[Target], once: Once) -> bool:
    """Whether each gateway tells the endpoint's slots, and that they are none."""
    await once()
    return all(list(gateway.series("standby_slots", endpoint="e").values()) == [0] for gateway in gateways)


def held_and_idle(node: Target) -> tuple[float, float]:
    return (
        node.total("standby_resident_byte_seconds_total", endpoint="short"),
        node.total("standby_idle_byte_seconds_total", endpoint="short"),
    )


async def junk(there: Deployment, times: int) -> None:
    """Ask for what nobody has registered, in every place in which a caller can write a name."""
    for number in range(times):
        name = f"junk-{number}-{id(object())}"
        for answer in (
            await there.chat(name, user=name),
            await there.invoke(name),
            await there.call("POST", f"/endpoints/short/{name}", json={}),
            await there.call("POST", f"/v1/{name}", json={}),
            await there.call("POST", "/v1/chat/completions", json={"model": "short"}, headers={"x-standby-tenant": name}),
            await there.call(
                "POST", "/v1/chat/completions", json={"model": "short"}, headers={"authorization": f"Bearer {name}"}
            ),
        ):
            assert 400 <= answer.status_code < 500, answer.text
        assert (await there.chat("short", max_tokens=1, user=name)).status_code == 200
