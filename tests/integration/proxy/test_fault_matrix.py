"""What an engine does to a request, when, by which route it was asked, in which tier: each combination has its outcome."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final

import pytest
from botocore.eventstream import EventStreamBuffer

from standby.domain.traffic import BreakerPolicy, BreakerRule, Tier, TrafficPolicy
from support.failing_engines import dies, resets, stalls
from support.failover_rig import FailoverRig, Replica, answer_with, failover_rig, token_event
from support.raw_http import RawAnswer
from support.upstream import Call
from support.waiting import until

OPENAI = "/v1/completions"
INVOKE = "/endpoints/e/invocations"
INVOKE_STREAM = "/endpoints/e/invocations-response-stream"
PAUSE_S = 0.02


class Moment(Enum):
    """When the engine goes wrong."""

    BEFORE_HEADERS = "before headers"
    AFTER_HEADERS = "after headers"
    MID_STREAM = "mid-stream"


class Outcome(Enum):
    """What the caller gets."""

    WHOLE = "the first engine's answer"
    OTHER = "the other engine's answer"
    ERROR = "an error of ours"
    PASSED = "the engine's own 503"
    BROKEN = "a broken answer that says so"
    NOBODY = "an error that says that no engine accepted it"


W, O, E, P, B, N = (  # noqa: E741 # a table's cells
    Outcome.WHOLE,
    Outcome.OTHER,
    Outcome.ERROR,
    Outcome.PASSED,
    Outcome.BROKEN,
    Outcome.NOBODY,
)
_TIERS: Final = (Tier.CRITICAL, Tier.STANDARD, Tier.BEST_EFFORT)
# In the order of the tiers. An engine that dies with a request alone in flight was killed by it: that is never repeated.
TABLE: Final[dict[str, dict[Moment, tuple[Outcome, Outcome, Outcome]]]] = {
    "dies": {Moment.BEFORE_HEADERS: (E, E, E), Moment.AFTER_HEADERS: (E, E, E), Moment.MID_STREAM: (B, B, B)},
    "stalls": {Moment.BEFORE_HEADERS: (O, E, E), Moment.AFTER_HEADERS: (O, E, E), Moment.MID_STREAM: (B, B, B)},
    "slows": {Moment.BEFORE_HEADERS: (W, W, W), Moment.AFTER_HEADERS: (W, W, W), Moment.MID_STREAM: (W, W, W)},
    "resets": {Moment.BEFORE_HEADERS: (O, E, E), Moment.AFTER_HEADERS: (O, E, E), Moment.MID_STREAM: (B, B, B)},
    "503": {Moment.BEFORE_HEADERS: (O, O, P), Moment.AFTER_HEADERS: (O, O, P), Moment.MID_STREAM: (B, B, B)},
    # Nobody accepts: nothing has begun, and there are no other moments.
    "is dead": {Moment.BEFORE_HEADERS: (O, O, N)},
}
# A whole answer that says 503 says it in its head, whenever its body comes.
WHOLE_503: Final = (O, O, P)


ENDS: Final[dict[str, Callable[[Replica, Call], Awaitable[None]]]] = {"dies": dies, "stalls": stalls, "resets": resets}


def behaviour(fault: str, moment: Moment, *, streams: bool) -> Callable[[Replica, Call], Awaitable[None]]:
    """Return an engine that does this."""

    async def behaves(replica: Replica, call: Call) -> None:
        status = 503 if fault == "503" and (moment is not Moment.MID_STREAM or not streams) else 200
        body = b'{"error": "busy"}' if status == 503 else whole(replica.name)
        if moment is not Moment.BEFORE_HEADERS:
            await begin(call, status, body, streams=streams and status == 200)
        if moment is Moment.MID_STREAM:
            await call.chunk(token_event(replica.name)) if streams and status == 200 else await call.write(body[:8])
        if fault in ENDS:
            await ENDS[fault](replica, call)
            return
        await asyncio.sleep(PAUSE_S)
        if moment is Moment.BEFORE_HEADERS:
            await (call.json(503, body) if status == 503 else answer_with(replica.name, call))
        elif status == 503 or not streams:
            await call.write(body[8:] if moment is Moment.MID_STREAM else body)
        elif fault == "503":
            await call.chunk(b'data: {"error": {"message": "busy", "code": 503}}\n\n')
            await call.end_stream()
        else:
            await call.chunk(token_event(replica.name) + b"data: [DONE]\n\n")
            await call.end_stream()

    return behaves


def whole(text: str) -> bytes:
    return json.dumps({"choices": [{"text": text, "finish_reason": "stop"}]}).encode()


async def begin(call: Call, status: int, body: bytes, *, streams: bool) -> None:
    if streams:
        await call.begin_stream()
    else:
        await call.write(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body)))


def outcome_of(path: str, answer: RawAnswer) -> Outcome:
    """Return what the caller got, after looking that it is said as its API says it."""
    told = answer.body
    if answer.status != 200:
        assert answer.complete
        assert b'"text"' not in told
        return _refusal(path, answer)
    exception = False
    if path == INVOKE_STREAM:
        events = EventStreamBuffer()
        events.add_data(told)
        parts = [event.to_response_dict() for event in events]
        exception = any(":exception-type" in part["headers"] for part in parts)
        told = b"".join(part["body"] for part in parts if ":event-type" in part["headers"])
    names = {name for name in ("i-1", "i-2") if name.encode() in told}
    if path == OPENAI:
        broken = b'data: {"error"' in told
        assert broken != (b"[DONE]" in told), told
    else:
        broken = exception if path == INVOKE_STREAM else not answer.complete
    assert names in ({"i-1"}, {"i-2"}) or (broken and names <= {"i-1"}), told
    if broken:
        return B
    assert answer.complete
    return W if names == {"i-1"} else O


def _refusal(path: str, answer: RawAnswer) -> Outcome:
    if path == OPENAI:
        if answer.status == 503 and answer.body != b'{"error": "busy"}':
            assert json.loads(answer.body)["error"]["code"] == "unavailable"
            assert answer.headers["retry-after"]
            return N
        if answer.status == 503:
            return P
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (502, "engine_died")
        return E
    kind = answer.headers["x-amzn-errortype"].partition(":")[0]
    if answer.status == 503:
        assert kind == "ServiceUnavailable"
        return N
    assert (answer.status, kind) == (424, "ModelError")
    return P if json.loads(answer.body)["OriginalStatusCode"] == 503 else E


async def ask(rig: FailoverRig, path: str, label: str) -> RawAnswer:
    body: dict[str, Any] = {"model": "e", "prompt": label}
    if path != INVOKE:
        body["stream"] = True
    rig.prefer("i-1")
    return await rig.ask(path, json.dumps(body).encode())


@pytest.mark.parametrize("path", [OPENAI, INVOKE, INVOKE_STREAM])
@pytest.mark.parametrize("tier", _TIERS)
async def test_every_cell_has_its_outcome(tier: Tier, path: str) -> None:
    patient = BreakerPolicy(rules=(BreakerRule(requests=1000, failure_rate=1.0),))
    streams = path != INVOKE
    async with failover_rig(dies, dies, traffic=TrafficPolicy(tier=tier, breaker=patient)) as rig:
        first, second = rig.replicas
        second.behaves = lambda replica, call: answer_with(replica.name, call)
        found: dict[str, Outcome] = {}
        expected: dict[str, Outcome] = {}
        for fault, moments in TABLE.items():
            for moment, outcomes in moments.items():
                cell = f"{fault} {moment.value}"
                by_tier = WHOLE_503 if fault == "503" and not streams else outcomes
                expected[cell] = by_tier[_TIERS.index(tier)]
                if fault == "is dead":
                    await rig.dead(first)
                first.behaves = behaviour(fault, moment, streams=streams)
                found[cell] = outcome_of(path, await ask(rig, path, cell))
                await until(rig.settled)
                await asyncio.gather(*first.tasks)  # its socket is the last thing that goes when it has died
                if not first.engine.socket.exists():
                    await rig.revive(first)
        assert found == expected
