"""Load over real sockets: what is sent when, and every way in which a target fails."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from standby.bench.load import Progress, run_load
from standby.bench.statistics import summarize
from standby.bench.targets.http import HttpTarget
from standby.bench.targets.requests import Asking, place_of
from standby.bench.values import ErrorClass, Plan, Planned, Run, Workload
from support.bench_server import LoadedServer, loaded_server
from support.bench_values import a_plan
from support.upstream import Call, tcp_upstream
from support.waiting import until

LIMIT_S = 30.0


@pytest.fixture
async def server() -> AsyncIterator[LoadedServer]:
    async with loaded_server() as there:
        yield there


def target_at(url: str, *, timeout_s: float = 2 * LIMIT_S, stream: bool = True) -> HttpTarget:
    place = place_of(url)
    return HttpTarget(
        "the target",
        replace(place, path=""),
        f"{place.path}/chat/completions",
        Asking(model="tiny", stream=stream),
        timeout_s=timeout_s,
    )


def asking(*prompts: str, at: float = 0.0) -> Plan:
    return Plan(Workload(name="by hand"), [Planned(at, prompt, 1, 3) for prompt in prompts])


async def run(target: HttpTarget, plan: Plan, **options: object) -> Run:
    try:
        return await run_load(plan, target, **options)  # type: ignore[arg-type] # as run_load takes them
    finally:
        await target.close()


async def test_requests_go_out_when_they_are_due_whatever_became_of_the_others() -> None:
    """An open loop: ten answers of which none comes before all have been asked for hold nobody up."""

    async def when_all_are_here(call: Call) -> None:
        await until(lambda: len(asked.calls) == 10, within_s=LIMIT_S)
        await call.json(200, b'{"choices": [{"text": "x"}]}')

    plan = Plan(Workload(name="by hand"), [Planned(at / 50, "x", 1, 3) for at in range(10)])
    async with tcp_upstream(when_all_are_here) as (asked, port):
        done = await run(target_at(f"http://127.0.0.1:{port}/v1", timeout_s=2 * LIMIT_S, stream=False), plan)
    assert [sample.ok for sample in done.samples] == [True] * 10
    assert [sample.due_s for sample in done.samples] == [at / 50 for at in range(10)]
    assert all(sample.sent_s >= sample.due_s for sample in done.samples)
    assert len({call.connection for call in asked.calls}) == 10


async def test_an_answer_gives_its_tokens_rung_and_wait(server: LoadedServer) -> None:
    done = await run(target_at(server.url), a_plan([0.0], max_tokens=5))
    (sample,) = done.samples
    assert (sample.status, sample.error, sample.prompt_tokens, sample.completion_tokens) == (200, "", 3, 5)
    assert (sample.rung, sample.waited_s) == ("cold", 0.0125)
    assert sample.phases_ms == (("placed", 1.0), ("loaded", 11.5))
    assert sample.first_byte_s is not None
    assert sample.first_token_s is not None
    assert sample.due_s <= sample.sent_s <= sample.first_byte_s <= sample.first_token_s <= sample.ended_s
    assert len(sample.gaps_s) == 4


async def test_what_is_sent_asks_for_a_stream_with_its_usage_and_is_marked(server: LoadedServer) -> None:
    done = await run(target_at(server.url), a_plan([0.0, 0.0]))
    body, headers = server.bodies()[0], server.asked[0].headers
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert (body["model"], body["max_tokens"]) == ("tiny", 4)
    assert headers["x-standby-shadow"] == "1"
    assert {sample.request_id for sample in done.samples} == {call.headers["x-request-id"] for call in server.asked}
    assert {sample.trace_id for sample in done.samples} == {call.headers["traceparent"].split("-")[1] for call in server.asked}


@pytest.mark.parametrize(
    ("prompt", "error", "status"),
    [
        ("status 429", ErrorClass.THROTTLED, 429),
        ("status 404", ErrorClass.CLIENT, 404),
        ("status 503", ErrorClass.SERVER, 503),
        ("reset", ErrorClass.RESET, 0),
        ("silence", ErrorClass.TIMEOUT, 0),
        ("rubbish", ErrorClass.RUBBISH, 0),
        ("page", ErrorClass.RUBBISH, 200),
        ("error", ErrorClass.STREAM_ERROR, 200),
        ("cut", ErrorClass.BROKEN_STREAM, 200),
        ("unfinished", ErrorClass.BROKEN_STREAM, 200),
        ("nothing", ErrorClass.EMPTY, 200),
    ],
)
async def test_a_failure_has_its_class_and_the_next_request_goes_well(
    server: LoadedServer, prompt: str, error: ErrorClass, status: int
) -> None:
    patience_s = 1.5 if error is ErrorClass.TIMEOUT else LIMIT_S
    plan = Plan(Workload(name="by hand"), [Planned(0.0, prompt, 1, 3), Planned(0.3, "fine", 1, 3)])
    done = await run(target_at(server.url, timeout_s=patience_s), plan)
    failed, fine = done.samples
    assert (failed.error, failed.status) == (error.value, status)
    assert failed.message
    assert fine.ok


async def test_a_whole_answer_has_no_first_token(server: LoadedServer) -> None:
    done = await run(target_at(server.url, stream=False), asking("whole"))
    (sample,) = done.samples
    assert (sample.ok, sample.first_token_s, sample.completion_tokens) == (True, None, 1)
    assert "stream" not in server.bodies()[0]


async def test_a_target_that_is_down_is_a_report_of_failures() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        done = await run(target_at(url), a_plan([0.0, 0.01, 0.02]))
    summary = summarize(done)
    assert (summary.ok, summary.errors) == (0, {"connect": 3})


async def test_a_name_that_nobody_has_is_a_failure_to_connect() -> None:
    done = await run(target_at("http://no-such-host.invalid/v1"), a_plan([0.0]))
    assert done.samples[0].error == ErrorClass.CONNECT.value


async def test_a_target_that_dies_in_the_middle_fails_what_was_under_way_and_what_comes_after() -> None:
    async with loaded_server() as server:
        seen: list[Progress] = []
        requests = [Planned(0.0, "fine", 1, 3), Planned(0.05, "silence", 1, 3), Planned(3.0, "fine", 1, 3)]
        load = asyncio.create_task(run(target_at(server.url), Plan(Workload(name="w"), requests), on_progress=seen.append))
        await until(lambda: len(server.asked) == 2 and seen[-1].ok == 1)
    done = await load
    assert [sample.error for sample in done.samples][0::2] == ["", ErrorClass.CONNECT.value]
    assert done.samples[1].error == ErrorClass.RESET.value


async def test_a_kept_connection_that_the_server_closed_costs_no_request() -> None:
    """llama.cpp's server announces keep-alive and closes all the same."""

    async def answer(call: Call) -> None:
        await call.json(200, b'{"choices": [{"text": "x"}]}')
        call.close()

    async with tcp_upstream(answer) as (server, port):
        done = await run(target_at(f"http://127.0.0.1:{port}/v1"), a_plan([at / 100 for at in range(20)]))
    assert [sample.error for sample in done.samples] == [""] * 20
    assert server.connections == 20


async def test_what_is_more_than_may_be_in_flight_is_counted_and_not_sent(server: LoadedServer) -> None:
    plan = Plan(Workload(name="by hand"), [Planned(at / 100, "wait 2", 1, 3) for at in range(6)])
    done = await run(target_at(server.url), plan, max_in_flight=4)
    assert (len(done.samples), done.not_sent, done.planned) == (4, 2, 6)
    assert any("2 requests were due but not sent" in note for note in done.notes)


async def test_stopping_sends_no_more_and_waits_for_what_is_under_way(server: LoadedServer) -> None:
    stop = asyncio.Event()
    plan = Plan(Workload(name="by hand"), [Planned(0.0, "wait 0.2", 1, 3), Planned(60.0, "fine", 1, 3)])
    load = asyncio.create_task(run(target_at(server.url), plan, stop=stop, grace_s=LIMIT_S))
    await until(lambda: len(server.asked) == 1)
    stop.set()
    done = await load
    assert (done.interrupted, [sample.ok for sample in done.samples]) == (True, [True])
    assert any("1 requests of the plan were not sent" in note for note in done.notes)


async def test_cutting_off_leaves_unanswered_requests_out(server: LoadedServer) -> None:
    stop, cut = asyncio.Event(), asyncio.Event()
    plan = asking("silence", "fine")
    seen: list[Progress] = []
    load = asyncio.create_task(run(target_at(server.url), plan, stop=stop, cut=cut, grace_s=60.0, on_progress=seen.append))
    await until(lambda: len(server.asked) == 2 and seen[-1].ok == 1)
    stop.set()
    cut.set()
    done = await load
    assert [sample.ok for sample in done.samples] == [True]
    assert any("1 requests were still unanswered" in note for note in done.notes)


async def test_progress_ends_with_the_whole(server: LoadedServer) -> None:
    seen: list[Progress] = []
    await run(target_at(server.url), asking("fine", "status 500", "fine"), on_progress=seen.append)
    assert seen[-1][:6] == (3, 3, 2, 1, 0, 0)


async def test_an_empty_plan_is_an_empty_run(server: LoadedServer) -> None:
    done = await run(target_at(server.url), a_plan([]))
    assert (done.samples, summarize(done).requests) == ((), 0)


async def test_https_is_spoken_with_a_certificate_that_is_trusted(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    of_server, of_client = tls

    async def answer(call: Call) -> None:
        await call.json(200, json.dumps({"choices": [{"text": "Paris"}]}).encode())

    async with tcp_upstream(answer, of_server) as (_, port):
        distrusting = await run(target_at(f"https://localhost:{port}/v1"), a_plan([0.0]))
        trusting = target_at(f"https://localhost:{port}/v1")
        trusting._pool._tls = of_client
        trusted = await run(trusting, a_plan([0.0, 0.05]))
    assert (distrusting.samples[0].error, "certificate" in distrusting.samples[0].message) == ("connect", True)
    assert [sample.error for sample in trusted.samples] == ["", ""]


async def test_a_thousand_at_once_are_all_answered(server: LoadedServer) -> None:
    began = time.perf_counter()
    done = await run(target_at(server.url, timeout_s=60.0), a_plan([0.0] * 1000))
    assert summarize(done).ok == 1000
    assert done.generator_cpu_s <= time.perf_counter() - began + 0.1
