"""One trace of a request, from its caller to its engine, whatever way it ends; and a collector that is in nobody's way.

Field case B58.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from standby.domain.traffic import Tier, TrafficPolicy
from standby.telemetry import metrics
from support.door_rig import TOKEN
from support.failover_rig import FailoverRig, Replica, answers, failover_rig, token_event
from support.otlp_receiver import Behaviour, Received, Receiver, otlp_receiver
from support.raw_http import RawAnswer
from support.traced import KEPT, LEFT_OUT, NODE, PARENT, TRACE, traced
from support.upstream import Call
from support.waiting import until

CHAT = "/v1/chat/completions"
INVOKE = "/endpoints/e/invocations"
ROUTES = [CHAT, INVOKE, "/endpoints/e/openai/v1/chat/completions", "/endpoints/e/invocations-response-stream"]
MARKER = "xyzzy-the-secret-of-the-prompt"


async def ask(rig: FailoverRig, path: str = CHAT, headers: dict[str, str] | None = None, **body: Any) -> RawAnswer:
    client = await rig.gateway.connect()
    asked = {"model": "e", "messages": [{"role": "user", "content": "?"}], **body}
    answer = await client.request("POST", path, rig.gateway.headers(**(headers or {})), json.dumps(asked).encode())
    # Whatever is told of it has been told.
    await until(rig.settled)
    return answer


def four(receiver: Receiver) -> tuple[Received, Received, Received, Received]:
    """The spans of a request that had one attempt: its own, queue, attempt, door."""
    found = receiver.of(TRACE)
    (top,) = (span for span in found if span.name.startswith("POST "))
    queue, attempt, door = (receiver.of(TRACE, name) for name in ("queue", "attempt", "door"))
    assert [len(queue), len(attempt), len(door), len(found)] == [1, 1, 1, 4], found
    return top, queue[0], attempt[0], door[0]


async def dies(replica: Replica, call: Call) -> None:
    """Be killed before the first byte."""
    replica.die()


async def resets(_replica: Replica, call: Call) -> None:
    """Break the connection before the first byte, and live on."""
    call.reset()


async def breaks(replica: Replica, call: Call) -> None:
    """Be killed in the middle of an answer."""
    await call.begin_stream()
    await call.chunk(token_event("half"))
    replica.die()


async def goes_on(_replica: Replica, call: Call) -> None:
    """Send tokens until the caller leaves."""
    await call.begin_stream()
    await call.chunk(token_event("first"))
    await call.gone.wait()


async def repeats_the_prompt(_replica: Replica, call: Call) -> None:
    """Refuse with an error that quotes what was asked, as engines do."""
    await call.json(500, json.dumps({"error": {"message": f"cannot do {call.body.decode()}"}}).encode())


@pytest.mark.parametrize("path", [CHAT, INVOKE])
@pytest.mark.parametrize("given", [KEPT, "junk", LEFT_OUT])
async def test_without_a_collector_the_callers_context_passes_as_it_came(path: str, given: str) -> None:
    async with failover_rig(answers) as rig:
        answer = await ask(rig, path, {"traceparent": given, "tracestate": "a=1"})
        assert answer.status == 200
        assert "x-standby-trace-id" not in answer.headers
        (call,) = rig.replicas[0].engine.calls
        assert (call.headers["traceparent"], call.headers["tracestate"]) == (given, "a=1")


@pytest.mark.parametrize("path", ROUTES)
async def test_one_trace_from_the_caller_to_the_engine(path: str) -> None:
    with otlp_receiver() as receiver:
        async with failover_rig(answers) as rig, traced(rig, receiver):
            answer = await ask(rig, path, {"traceparent": KEPT, "tracestate": "a=1", "x-request-id": "mine"}, stream=True)
            assert answer.complete
            assert answer.headers["x-standby-trace-id"] == TRACE
            (call,) = rig.replicas[0].engine.calls
        top, queue, attempt, door = four(receiver)
        assert [span.parent for span in (top, queue, attempt, door)] == [PARENT, top.id, top.id, attempt.id]
        assert call.headers["traceparent"] == f"00-{TRACE}-{door.id}-01"
        assert call.headers["tracestate"] == "a=1"
        assert [span.kind for span in (top, queue, attempt, door)] == ["server", "internal", "client", "server"]
        assert top.holds(queue)
        assert top.holds(attempt)
        assert attempt.holds(door, slack_ns=2_000_000)
        assert top.began_ns <= top.events["first token"] <= top.ended_ns
        assert top.attributes["http.response.status_code"] == 200
        assert top.attributes["http.route"] == path.replace("/e/", "/{endpoint}/")
        assert (top.attributes["standby.endpoint"], attempt.attributes["standby.instance"]) == ("e", "i-1")
        assert door.attributes["standby.node"] == NODE
        assert not any(span.failed for span in receiver.of(TRACE))
        assert receiver.headers[0]["x-collector"] == "yes"


async def test_what_nobody_keeps_is_told_to_nobody() -> None:
    """Without a caller's context the engine gets none; with one that keeps nothing it gets the same trace, not kept."""
    with otlp_receiver() as receiver:
        async with failover_rig(answers) as rig, traced(rig, receiver):
            plain = await ask(rig)
            theirs = await ask(rig, headers={"traceparent": LEFT_OUT})
            broken = await ask(rig, headers={"traceparent": KEPT.upper(), "tracestate": "a=1"})
            first, second, third = rig.replicas[0].engine.calls
            assert "traceparent" not in first.headers
            assert second.headers["traceparent"].startswith(f"00-{TRACE}-")
            assert second.headers["traceparent"].endswith("-00")
            assert [answer.headers.get("x-standby-trace-id") for answer in (plain, theirs, broken)] == [None, TRACE, None]
            assert not {"traceparent", "tracestate"} & set(third.headers)
        assert receiver.spans == []


async def test_a_caller_who_names_two_traces_is_not_believed_behind_the_gateway_either() -> None:
    """The door reads one of the last two lines: it would keep every such request, whatever ratio and limit say."""
    with otlp_receiver() as receiver:
        async with failover_rig(answers) as rig, traced(rig, receiver, callers=False):
            answer = await ask(rig, headers={"traceparent": KEPT, "Traceparent": KEPT.replace("4b", "5b", 1)})
            assert answer.status == 200
            (call,) = rig.replicas[0].engine.calls
            assert "traceparent" not in call.headers
        assert receiver.spans == []


async def test_callers_cannot_have_traces_kept_where_they_may_not() -> None:
    with otlp_receiver() as receiver:
        async with failover_rig(answers) as rig, traced(rig, receiver, callers=False):
            await ask(rig, headers={"traceparent": KEPT})
            (call,) = rig.replicas[0].engine.calls
            assert call.headers["traceparent"].endswith("-00")
        assert receiver.spans == []


async def test_the_ratio_keeps_new_traces_too() -> None:
    with otlp_receiver() as receiver:
        async with failover_rig(answers) as rig, traced(rig, receiver, ratio=1.0):
            answer = await ask(rig)
            (call,) = rig.replicas[0].engine.calls
        trace = answer.headers["x-standby-trace-id"]
        assert call.headers["traceparent"].split("-")[1] == trace
        assert {span.name for span in receiver.of(trace)} == {f"POST {CHAT}", "queue", "attempt", "door"}
        (top,) = receiver.of(trace, f"POST {CHAT}")
        assert top.parent == ""
        assert top.attributes["gen_ai.usage.output_tokens"] == 2
        assert top.attributes["gen_ai.operation.name"] == "chat"


async def test_a_caller_who_leaves_ends_every_span() -> None:
    with otlp_receiver() as receiver:
        async with failover_rig(goes_on) as rig, traced(rig, receiver):
            client = await rig.gateway.connect()
            body = json.dumps({"model": "e", "messages": [], "stream": True}).encode()
            client.send("POST", CHAT, rig.gateway.headers(traceparent=KEPT), body)
            assert b"200 OK" in await client.reader.readuntil(b"first")
            client.abort()
            await until(rig.settled)
        top, _, attempt, door = four(receiver)
        assert (top.attributes["error.type"], top.failed) == ("client_gone", True)
        assert attempt.attributes["standby.outcome"] == "caller"
        assert door.attributes["standby.outcome"] == "gateway_gone"
        assert "first token" in top.events
        assert "http.response.status_code" not in top.attributes
        assert top.ended_ns >= attempt.ended_ns - 2_000_000


async def test_an_engine_that_dies_in_the_middle() -> None:
    with otlp_receiver() as receiver:
        async with failover_rig(breaks) as rig, traced(rig, receiver):
            await ask(rig, headers={"traceparent": KEPT}, stream=True)
        top, _, attempt, door = four(receiver)
        assert (top.attributes["error.type"], top.failed) == ("broken_stream", True)
        assert (attempt.attributes["error.type"], door.attributes["error.type"]) == ("engine", "died")


async def test_each_attempt_is_told_with_the_door_that_it_had() -> None:
    with otlp_receiver() as receiver:
        async with failover_rig(resets, answers, traffic=TrafficPolicy(tier=Tier.CRITICAL)) as rig, traced(rig, receiver):
            answer = await ask(rig, headers={"traceparent": KEPT})
            assert answer.status == 200
            second = rig.replicas[1].engine.calls[0].headers["traceparent"]
        attempts, doors = receiver.of(TRACE, "attempt"), receiver.of(TRACE, "door")
        assert [span.attributes["standby.instance"] for span in attempts] == ["i-1", "i-2"]
        assert [span.attributes["standby.outcome"] for span in attempts] == ["engine", "ok"]
        assert [span.attributes["standby.attempt"] for span in attempts] == [1, 2]
        assert [span.parent for span in doors] == [span.id for span in attempts]
        assert second == f"00-{TRACE}-{doors[1].id}-01"
        assert attempts[0].ended_ns <= attempts[1].began_ns + 1_000_000
        (top,) = receiver.of(TRACE, f"POST {CHAT}")
        assert not top.failed


async def test_an_error_is_kept_though_nobody_knew_it_would_be_one() -> None:
    """Then only the gateway's spans can be: the door and the engine had been told that nothing is kept."""
    with otlp_receiver() as receiver:
        async with failover_rig(dies) as rig, traced(rig, receiver):
            answer = await ask(rig)
            assert answer.status == 502
        assert [span.name for span in sorted(receiver.spans, key=lambda span: span.parent)] == [
            f"POST {CHAT}",
            "queue",
            "attempt",
        ]
        (top,) = (span for span in receiver.spans if not span.parent)
        assert (top.attributes["error.type"], top.attributes["http.response.status_code"]) == ("engine_died", 502)


async def test_nothing_that_a_caller_wrote_leaves_with_a_span() -> None:
    """Not of the prompt, the key, the user or a header; nor of an engine's error, which may quote them."""
    with otlp_receiver() as receiver:
        async with failover_rig(repeats_the_prompt) as rig, traced(rig, receiver):
            told = {"traceparent": KEPT, "x-request-id": MARKER, "user-agent": MARKER, "x-mine": MARKER, "accept": MARKER}
            for path in ROUTES:
                await ask(
                    rig, path, told, messages=[{"role": "user", "content": MARKER}], user=MARKER, metadata={MARKER: MARKER}
                )
        exported = b"".join(receiver.raw)
        assert len(receiver.of(TRACE, "attempt")) == len(ROUTES)
        for secret in (MARKER, rig.gateway.secret, TOKEN):
            assert secret.encode() not in exported


@pytest.mark.parametrize("behaviour", [Behaviour.HANGS, Behaviour.REFUSES, Behaviour.RUBBISH, None])
async def test_a_collector_that_does_not_do_its_work_is_nobodys_concern(behaviour: Behaviour | None) -> None:
    """It is down (None), hangs, refuses, or answers rubbish: every request is answered meanwhile, and the end does not wait."""
    dropped = {why: metrics.SPANS_DROPPED.labels(why) for why in ("queue", "export", "shutdown")}
    before = sum(counter._value.get() for counter in dropped.values())
    with otlp_receiver(behaviour or Behaviour.TAKES) as receiver:
        if behaviour is None:
            receiver.url = "http://127.0.0.1:9"  # discard: nobody listens there
        async with failover_rig(answers) as rig:
            async with traced(rig, receiver, ratio=1.0, limit=10, limit_s=1.0) as ends:
                for _ in range(3):
                    assert (await ask(rig, stream=True)).complete
                # The collector has the first ones in its hands: nobody has let it go when the others are answered.
                await until(lambda: receiver.asked or behaviour is None)
                for _ in range(20):
                    assert (await ask(rig, stream=True)).complete
                assert not receiver.released.is_set()
                await ends.close(0.2)
            assert rig.settled()
    await until(lambda: sum(counter._value.get() for counter in dropped.values()) > before)
    assert receiver.spans == []
