"""What the gateway knows of requests whose answers did not say it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from standby.bench.command import looked_up, room_for
from standby.bench.lookups import MOST_LOOK_UPS, completed, with_record
from standby.domain.errors import NotFound, StandbyError, Unavailable
from support.bench_values import a_run, a_sample


def a_record(waited_ms: float, *, instance: str | None = "i-1", at: float = 1000.0) -> dict[str, Any]:
    attempts = [] if instance is None else [{"instance": instance}]
    return {"endpoint": "smol", "arrived_at": at, "waited_ms": waited_ms, "attempts": attempts}


def an_activation(at: float, *, instance: str = "i-1", rung: int = 0, ok: bool = True) -> dict[str, Any]:
    climb = {"id": "a1", "from_rung": rung, "phases_ms": {"loaded": 2500.0, "probed": 300.0}}
    return {"kind": "activation", "instance": instance, "at": at, "ok": ok, "activation": climb}


@dataclass
class Gateway:
    """A session and its client, for whom each request has a record, or an error."""

    records: Mapping[str, dict[str, Any] | StandbyError]
    activations: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def client(self, *, timeout_s: float) -> AsyncIterator[Gateway]:
        assert timeout_s > 0
        yield self

    async def call(self, _method: str, path: str) -> Any:
        name = path.rpartition("/")[2]
        self.asked.append(name)
        found = self.records.get(name, NotFound("no gateway remembers it"))
        if isinstance(found, StandbyError):
            raise found
        return found

    async def event_stream(self, params: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        assert params["endpoint"] == "smol"
        for event in self.activations:
            yield event


def test_a_wait_and_the_climb_that_ended_it_complete_a_sample() -> None:
    events = [an_activation(900.0), an_activation(1002.8, instance="i-2"), an_activation(1002.9), an_activation(1009.0)]
    sample = with_record(a_sample(), a_record(2900.0), events)
    assert (sample.waited_s, sample.rung, dict(sample.phases_ms)) == (2.9, "cold", {"loaded": 2500.0, "probed": 300.0})


def test_what_the_answer_said_stands() -> None:
    said = a_sample(rung="asleep", waited_s=0.2)
    assert with_record(said, a_record(2900.0), [an_activation(1002.9)]) == said


@pytest.mark.parametrize(
    ("record", "events", "rung"),
    [
        (a_record(2.0), [an_activation(600.0)], "ready"),
        (a_record(2900.0), [an_activation(1002.9, ok=False)], ""),
        (a_record(2900.0), [], ""),
        (a_record(9000.0), [an_activation(1002.0)], "cold"),
        (a_record(9000.0), [an_activation(600.0, rung=3), an_activation(900.0)], "ready"),
        (a_record(9000.0), [an_activation(1002.0, instance="i-2")], ""),
        (a_record(2900.0), [an_activation(1009.0)], ""),
        (a_record(2900.0, instance=None), [an_activation(1002.9)], ""),
    ],
)
def test_nothing_is_guessed(record: dict[str, Any], events: list[dict[str, Any]], rung: str) -> None:
    """Behind a climb there may be a wait for a slot, too; without any climb of the instance the rung stays unknown."""
    assert with_record(a_sample(), record, events).rung == rung


async def test_only_what_lacks_something_is_looked_up_the_slowest_first() -> None:
    known = a_sample(rung="ready", waited_s=0.0, request_id="known")
    lacking = [a_sample(float(at), e2e_s=1.0 + at, request_id=f"r{at}") for at in range(3)]
    failed = a_sample(error="5xx", request_id="failed")
    gateway = Gateway({"r2": a_record(2900.0), "r1": a_record(1.0)}, [an_activation(1002.5)])
    run = await completed(a_run([known, *lacking, failed]), gateway)  # type: ignore[arg-type] # what lookups use of a session
    assert gateway.asked == ["r2", "r1", "r0"]
    assert [sample.rung for sample in run.samples] == ["ready", "", "ready", "cold", ""]


async def test_very_many_requests_are_not_all_looked_up() -> None:
    gateway = Gateway({})
    await completed(a_run([a_sample(request_id=f"r{at}") for at in range(MOST_LOOK_UPS + 50)]), gateway)  # type: ignore[arg-type]
    assert len(gateway.asked) == MOST_LOOK_UPS


async def test_a_gateway_that_does_not_answer_costs_no_report() -> None:
    run = a_run([a_sample(request_id="r")])
    found = await completed(run, Gateway({"r": Unavailable("the gateway is gone")}))  # type: ignore[arg-type]
    assert found.samples == run.samples
    assert "the gateway is gone" in found.notes[0]


@pytest.mark.parametrize("record", [{}, {"waited_ms": "x", "endpoint": "smol"}, {"waited_ms": 3.0, "endpoint": "smol"}])
async def test_a_gateway_that_answers_rubbish_costs_no_report(record: dict[str, Any]) -> None:
    run = a_run([a_sample(request_id="r")])
    found = await completed(run, Gateway({"r": record}))  # type: ignore[arg-type]
    assert (found.samples, len(found.notes)) == (run.samples, 1)


async def test_ctrl_c_while_the_gateway_is_asked_loses_no_run() -> None:
    class Silent(Gateway):
        async def call(self, _method: str, _path: str) -> Any:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

    run = a_run([a_sample(request_id="r")])
    found = await looked_up(run, Silent({}))  # type: ignore[arg-type]
    assert found.samples == run.samples
    assert "stopped while the gateway was asked" in found.notes[0]


def test_open_files_bound_what_may_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target must not be blamed for this machine's limit."""
    limits = {"soft": 1024, "hard": 4096}
    monkeypatch.setattr("resource.getrlimit", lambda _which: (limits["soft"], limits["hard"]))
    monkeypatch.setattr("resource.setrlimit", lambda _which, to: limits.update(soft=to[0]))
    assert room_for(100) == (100, ())
    assert (room_for(3000), limits["soft"]) == ((3000, ()), 3128)
    room, notes = room_for(5000)
    assert (room, limits["soft"]) == (4096 - 128, 4096)
    assert "4096 open files" in notes[0]
