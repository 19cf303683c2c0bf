"""The demand reporter against a bus that does not take a message."""

from __future__ import annotations

import asyncio
import time

from standby.bus.subjects import demand_subject
from standby.domain.endpoint import ScalePolicy, Variant
from standby.gateway.desk import AllRooms, Desk, Route
from standby.gateway.reporter import DemandReporter
from support.builders import TENANT, an_endpoint
from support.control_api import Control
from support.waiting import until


async def test_a_message_that_is_too_large_does_not_end_the_reports(control: Control) -> None:
    """Without these loops no endpoint at zero would be woken again, and nothing would say so."""
    bus = control.context.bus
    reporter = DemandReporter(bus, "g", boot_id="b")
    variant = Variant(model="m", policy=ScalePolicy())
    desk = Desk(Route(an_endpoint(), variant), AllRooms(0), time.monotonic, time.time, reporter.changed)
    heard = asyncio.Event()
    subscription = await bus.subscribe(demand_subject(TENANT, "e"), lambda _subject, _payload: heard.set())
    beats = asyncio.create_task(reporter.run_beats(lambda: [desk] * 20_000))
    reports = asyncio.create_task(reporter.run())
    try:
        with desk.enter():
            await asyncio.wait_for(heard.wait(), 60)
        # Once for each beat: on a slow machine there was more than one by now.
        await until(lambda: reporter.unsent >= 1)
        assert not beats.done()
        assert not reports.done()
    finally:
        for task in (beats, reports):
            task.cancel()
        await asyncio.gather(beats, reports, return_exceptions=True)
        await subscription.unsubscribe()
