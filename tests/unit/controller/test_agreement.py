"""The live controller and the simulator decide the same on the same arrivals."""

from __future__ import annotations

import random

import pytest

from standby.controller.economics import PriceVector, preset
from standby.controller.simulator.policies import ladder_of
from standby.controller.weighing import weighing
from standby.domain.endpoint import ScalePolicy
from support import played

pytestmark = pytest.mark.decision

# A look of the live controller comes a millisecond after the end of a step, a fall takes a node a tenth of a second, and the
# simulator's fall takes none; a climb takes both as long as was measured. A request that comes just between the two looks is
# answered at once by one of them and after a wake by the other.
TOLERANCE_S = 0.2 + played.WAKE_S


def arrivals(kind: str) -> list[float]:
    """Return arrivals in seconds, at least 15 s apart so that none meets another's start."""
    draw = random.Random(kind)
    now, times = 5.0, []
    while now < 5_000.0:
        times.append(now)
        now += {
            "regular": 900.0,
            "jittered": draw.uniform(500.0, 560.0),
            "bursts": draw.choice((16.0, 20.0, 30.0, 2500.0)),
            "heavy tail": min(15.0 + draw.paretovariate(0.8) * 10.0, 4000.0),
        }[kind]
    return times


@pytest.mark.parametrize("name", ["frugal", "balanced", "snappy"])
@pytest.mark.parametrize("kind", ["regular", "jittered", "bursts", "heavy tail"])
def test_same_arrivals_same_rungs_at_the_same_times(kind: str, name: str) -> None:
    prices, times = preset(name), arrivals(kind)
    cluster = played.live_cluster(prices)
    for at in times:
        played.ask_once(cluster, at)
    until = times[-1] + 3000.0
    cluster.run_until(played.START + until)
    live, simulated = played.live_moves(cluster), played.simulated_moves(times, until, prices)
    assert [rung for _, rung in live] == [rung for _, rung in simulated]
    assert [at for at, _ in live] == pytest.approx([at for at, _ in simulated], abs=TOLERANCE_S)
    assert live, "something must have been decided"


def test_ladders_are_the_same() -> None:
    """What the node's measurements make of it is what the cost model says."""
    cluster = played.live_cluster(PriceVector())
    weighed = weighing(cluster.economy, cluster.nodes["n1"], cluster.models["m-e"], ScalePolicy(), None)
    simulated = ladder_of(played.MODEL, played.SIZE_GB)
    assert [(one.rung, one.wait_s) for one in weighed.ladder] == [(one.rung, one.wait_s) for one in simulated]
    assert [one.hold for one in weighed.ladder] == pytest.approx([one.hold for one in simulated])
