"""Our load generator beside a public one, on a server whose times are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from standby.bench.statistics import nearest_rank
from support.delay_server import delays
from support.peer_load import answered, bench, delay_server, end_to_end, locust

ROUND, MEDIAN_S, SIGMA, RATE = 30, 0.3, 0.5, 30

pytestmark = pytest.mark.drill


def test_both_count_every_request_and_tell_the_servers_times(tmp_path: Path) -> None:
    """Counts are exact; times lie between what the server takes and a wide margin, since machines that test are busy."""
    truth = nearest_rank(sorted(delays(ROUND, MEDIAN_S, SIGMA)), 50)
    with delay_server(ROUND, MEDIAN_S, SIGMA) as url:
        ours = end_to_end(
            bench(url, "--arrivals", "constant", "-r", str(RATE), "-n", str(2 * ROUND), "--no-stream", samples=True)
        )
        assert (len(ours), answered(url)) == (2 * ROUND, 2 * ROUND)
        theirs, failures, requests = locust(url, tmp_path, users=RATE, rate_each=1.0, seconds=8.0)
        assert failures == []
        assert len(theirs) == requests == answered(url) - len(ours) >= ROUND
    for measured in (ours, theirs):
        assert truth * 0.9 <= nearest_rank(sorted(measured), 50) <= truth * 3 + 1.0
