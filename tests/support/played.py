"""One endpoint's arrivals, played to the live controller's decisions in a cluster in memory, and to the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from standby.controller.actions import Retarget
from standby.controller.demotion import Limits, Step
from standby.controller.economics import GB, PriceVector
from standby.controller.economy import Economy
from standby.controller.prewarm import Budget
from standby.controller.simulator.cost_model import CostModel, RungPrice
from standby.controller.simulator.engine import replay
from standby.controller.simulator.policies import Priced
from standby.controller.simulator.trace import Trace
from standby.domain.instance import Rung
from standby.domain.model import EngineKind
from standby.domain.prices import Footprint, ModelPrices, NodePrices, Price, Transition
from support.cluster import GIB, Cluster, cached, make_model

SIZE_GB = 10.0
EXEC_S = 2.0
WAKE_S, START_S, SLEEP_S = 0.8, 10.0, 0.1
RESIDUE_GB = 1.5
LIMITS = Limits(floor_s=SLEEP_S + WAKE_S, max_wait_s=50.0)
# Rungs held on processors: their memory is the device, and the weights lie on the disk whatever the rung.
MODEL = CostModel(
    rungs={
        Rung.READY: RungPrice(device=1.0, disk=1.0),
        Rung.ASLEEP: RungPrice(wait_s=WAKE_S, device_gb=RESIDUE_GB, disk=1.0),
        Rung.STAGED: RungPrice(wait_s=START_S, disk=1.0),
        Rung.COLD: RungPrice(wait_s=200.0),
    },
    exec_s=EXEC_S,
    smallest_gb=SIZE_GB,
    largest_gb=SIZE_GB,
    warm_up_s=0.001,
)
START = 1000.0

# Seconds since the start, and the rung that an instance without work is sent to.
Moves = list[tuple[float, Rung]]


def measured() -> NodePrices:
    """Return what a node has measured that holds just what MODEL says."""

    def price(seconds: float) -> Price:
        return Price(seconds=seconds, p95=seconds, samples=9, last=seconds, at=0.0)

    steps = {Transition.WAKE: WAKE_S, Transition.START: START_S, Transition.SLEEP: SLEEP_S, Transition.FETCH: 190.0}
    known = ModelPrices(
        engine=EngineKind.FAKE,
        digest=make_model("m-e", size=int(SIZE_GB * GB)).manifest.digest,
        transitions={step: price(seconds) for step, seconds in steps.items()},
        footprint=Footprint(awake=int(SIZE_GB * GB), asleep=int(RESIDUE_GB * GB)),
    )
    return NodePrices(node="n1", models={"m": known}, updated_at=0.0)


def live_cluster(prices: PriceVector, share: float = 1.0, **policy: Any) -> Cluster:
    """Return a cluster of one node and one endpoint that is weighed by ``prices``."""
    economy = Economy(prices=prices, budget=Budget(share=share), measured={"n1": measured()})
    cluster = Cluster(economy=economy, loads={Rung.ASLEEP: WAKE_S, Rung.STAGED: START_S}, load_s=START_S)
    model = make_model("m-e", size=int(SIZE_GB * GB))
    cluster.add_node(capacity=256 * GIB, artifacts=(cached(model),))
    cluster.add_endpoint("e", model=model, slots=16, **policy)
    cluster.decide()
    return cluster


def ask_once(cluster: Cluster, at: float) -> float:
    """Let one request come at ``at`` and be answered; return when it ends."""
    cluster.run_until(START + at)
    cluster.ask(queued=1)
    cluster.decide()
    while cluster.state_of() != ["ready"]:
        cluster.run_until(min(slot.done_at for slot in cluster.slots.values()))
    cluster.ask(in_flight=1)
    cluster.run_until(cluster.now + EXEC_S)
    cluster.ask()
    cluster.decide()
    return cluster.now - START


def live_moves(cluster: Cluster) -> Moves:
    """Return the moves that nobody asked for.

    Whatever rung a climb ahead of demand is for, it leads over ready: the fall from there to it belongs to the climb.
    """
    moves: Moves = []
    climbs_to: Rung | None = None
    for at, action in cluster.trace:
        if not isinstance(action, Retarget) or action.rung is action.before:
            climbs_to = None  # somebody has asked meanwhile
            continue
        if action.wish is not None:
            climbs_to = action.wish.step.rung
            moves.append((at - START, climbs_to))
        elif action.rung < action.before and action.rung is not climbs_to:
            moves.append((at - START, action.rung))
            climbs_to = None
        else:
            climbs_to = None
    return moves


@dataclass
class _Noted(Priced):
    """The live controller's decisions in the simulator, with each move written down."""

    moves: Moves = field(default_factory=list)
    at: Rung = Rung.STAGED

    def __init__(self, prices: PriceVector) -> None:
        super().__init__("noted", [SIZE_GB], MODEL, prices, LIMITS)
        self.moves = []
        self.at = Rung.STAGED

    def idle(self, function: int, now: float, idle_s: float) -> Step:
        step = super().idle(function, now, idle_s)
        if idle_s == 0:
            self.at = Rung.READY
        if step.rung is not self.at:
            self.moves.append((now, step.rung))
            self.at = step.rung
        return step


def simulated_moves(arrivals: Sequence[float], until: float, prices: PriceVector) -> Moves:
    """Return the moves that the simulator makes for the same arrivals."""
    policy = _Noted(prices)
    trace = Trace(functions=("e",), duration_s=until, stamps=np.array(arrivals))
    replay(trace, policy, MODEL, seed=0, prestaged=True)
    return policy.moves
