"""What standby itself knows of a run's requests: waits, and the activations that they waited for.

A stream that is quiet for long gets its head before anybody knows which instance will answer, so the answers of exactly the
coldest requests say nothing of their rung. The gateway's record of the request and the activation's event do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from standby.bench.session import Client, Session
from standby.bench.values import Run, Sample
from standby.domain.errors import NotFound, StandbyError
from standby.domain.instance import Rung

MOST_LOOK_UPS: Final = 500
_AT_ONCE: Final = 8
_LIMIT_S: Final = 30.0
_REPLAYED: Final = "1000"
# A climb ends when the wait for it does, by two clocks: the node's and the gateway's.
_CLOCKS_S: Final = 2.0
# Nothing climbs in less.
_NO_WAIT_S: Final = 0.02


async def completed(run: Run, session: Session) -> Run:
    """Return the run with what the gateway knows of the requests whose answers did not say it, the slowest first.

    Never in the way: where the gateway does not answer, the run is returned with a note.
    """
    lacking = [number for number, sample in enumerate(run.samples) if _lacks(sample)]
    asked = sorted(lacking, key=lambda number: -run.samples[number].e2e_s)[:MOST_LOOK_UPS]
    if not asked:
        return run
    try:
        async with session.client(timeout_s=_LIMIT_S) as client:
            turn = asyncio.Semaphore(_AT_ONCE)
            records = await asyncio.gather(*(_record(client, run.samples[number], turn) for number in asked))
            endpoints = sorted({str(record["endpoint"]) for record in records if record is not None})
            activations = [event for endpoint in endpoints for event in await _activations(client, endpoint)]
        samples = list(run.samples)
        for number, record in zip(asked, records, strict=True):
            if record is not None:
                samples[number] = with_record(samples[number], record, activations)
    except (StandbyError, KeyError, TypeError, ValueError) as error:
        # The last three: a gateway of another version, or whoever answers in its place. The run itself is whole.
        return with_notes(run, f"the gateway did not say where slow requests waited: {error or type(error).__name__}")
    return run.model_copy(update={"samples": tuple(samples)})


def with_notes(run: Run, *notes: str) -> Run:
    """Return the run with these notes more."""
    return run.model_copy(update={"notes": (*run.notes, *notes)})


def _lacks(sample: Sample) -> bool:
    return sample.ok and bool(sample.request_id) and (sample.waited_s is None or not sample.rung)


async def _record(client: Client, sample: Sample, turn: asyncio.Semaphore) -> dict[str, Any] | None:
    async with turn:
        try:
            record: dict[str, Any] = await client.call("GET", f"/api/v1/requests/{quote(sample.request_id, safe='')}")
        except NotFound:
            return None
    return record


async def _activations(client: Client, endpoint: str) -> list[dict[str, Any]]:
    params = {"endpoint": endpoint, "kind": "activation", "replay": _REPLAYED, "follow": "0"}
    return [event async for event in client.event_stream(params)]


def with_record(sample: Sample, record: Mapping[str, Any], activations: Sequence[Mapping[str, Any]]) -> Sample:
    """Return the sample with the wait of its record, and with the activation that ended its waiting."""
    waited_s = float(record["waited_ms"]) / 1000
    sample = sample._replace(waited_s=waited_s if sample.waited_s is None else sample.waited_s)
    if sample.rung or not record["attempts"]:
        return sample
    if waited_s < _NO_WAIT_S:
        return sample._replace(rung=Rung.READY.label)
    instance, arrived_at = record["attempts"][-1]["instance"], record["arrived_at"]
    climbs = [event for event in activations if event["instance"] == instance and event["ok"]]
    earlier = [event for event in climbs if event["at"] <= arrived_at + waited_s + _CLOCKS_S]
    if not earlier:
        return sample
    last = max(earlier, key=lambda event: float(event["at"]))
    if last["at"] < arrived_at:
        # It was up when the request came: what that waited for was a slot, behind others.
        return sample._replace(rung=Rung.READY.label)
    # Whatever brought the instance up while the request waited is what it was served from, as the gateway's answers say it.
    climb = last["activation"]
    phases = tuple((str(name), float(ms)) for name, ms in climb["phases_ms"].items())
    return sample._replace(rung=Rung(climb["from_rung"]).label, phases_ms=phases)
