"""A collector that takes every request and answers none: the deployment serves and ends as if there were none (B58)."""

from __future__ import annotations

from pathlib import Path

from support.deployment import DEADLINE_S, PARIS, deployment, text_of
from support.otlp_receiver import Behaviour, otlp_receiver
from support.waiting import until

REQUESTS = 30


async def test_requests_and_the_end_of_all_processes_do_not_wait_for_it(tmp_path: Path) -> None:
    with otlp_receiver(Behaviour.HANGS) as collector:
        environment = {"STANDBY_OTLP_ENDPOINT": collector.url, "STANDBY_TRACE_RATIO": "1"}
        async with deployment(tmp_path, environment=environment) as there:
            await there.endpoint("e")
            assert text_of(await there.chat("e")) == PARIS
            # Gateway and node each have a batch in the collector's hands now, and neither gets an answer.
            await until(lambda: collector.asked >= 2, "both have asked", DEADLINE_S)
            for _ in range(REQUESTS):
                assert text_of(await there.chat("e")) == PARIS
            await there.until_total("standby_requests_total", "e", REQUESTS + 1)
            assert not collector.released.is_set()
        # The deployment has ended, with every process of it, before the collector answered anything.
        assert not collector.released.is_set()
    logs = [log.read_text() for log in tmp_path.glob("logs-*/*.log")]
    assert logs
    assert not any("left without having put everything away" in log for log in logs)
