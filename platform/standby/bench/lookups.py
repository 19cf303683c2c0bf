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
_REPLAYED: Final = "1000"
# The node's clock and the gateway's are two clocks, and the event is written after the instance is ready.
_CLOCKS_S: Final = 5.0


async def completed(run: Run, session: Session, endpoint: str | None) -> Run:
    """Return the run with what the gateway knows of the requests whose answers did not say it, the slowest first.

    Never in the way: where the gateway does not answer, the run is returned with a note.
    """
    asked = sorted(
        (number for number, sample in enumerate(run.samples) if _lacks(sample)), key=lambda at: -run.samples[at].e2e_s
    )
    if not asked:
        return run
    try:
        async with session.client(timeout_s=30.0) as client:
            activations = [] if endpoint is None else await _activations(client, endpoint)
            turn = asyncio.Semaphore(_AT_ONCE)
            found = await asyncio.gather(*(_record(client, run.samples[at], turn) for at in asked[:MOST_LOOK_UPS]))
    except StandbyError as error:
        return run.model_copy(update={"notes": (*run.notes, f"the gateway did not say where slow requests waited: {error}")})
    samples = list(run.samples)
    for at, record in zip(asked, found, strict=False):
        if record is not None:
            samples[at] = _completed(samples[at], record, activations)
    return run.model_copy(update={"samples": tuple(samples)})


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


def _completed(sample: Sample, record: Mapping[str, Any], activations: Sequence[Mapping[str, Any]]) -> Sample:
    """Return the sample with the wait of its record, and with the activation that ended while it waited."""
    waited_s = float(record["waited_ms"]) / 1000
    sample = sample._replace(waited_s=waited_s if sample.waited_s is None else sample.waited_s)
    if sample.rung or not record["attempts"]:
        return sample
    instance = record["attempts"][-1]["instance"]
    from_s = record["arrived_at"] - _CLOCKS_S
    until_s = record["arrived_at"] + waited_s + _CLOCKS_S
    for event in activations:
        if event["instance"] == instance and event["ok"] and from_s <= event["at"] <= until_s and waited_s > 0.0:
            climb = event["activation"]
            phases = tuple((str(name), float(ms)) for name, ms in climb["phases_ms"].items())
            return sample._replace(rung=Rung(climb["from_rung"]).label, phases_ms=phases)
    return sample._replace(rung=Rung.READY.label) if waited_s < 1.0 else sample
