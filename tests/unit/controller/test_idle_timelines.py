"""What endpoints without times of their own do over minutes and hours, on several kinds of nodes: rest, and do not flap."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from standby.controller.actions import Assign, Retarget
from standby.controller.demand import DemandBook
from standby.controller.economics import GB, HIGHEST_PRICE, PriceVector
from standby.controller.economy import Economy
from standby.controller.prewarm import Budget
from standby.domain.endpoint import NO_MEMORY, Failure
from standby.domain.instance import InstanceState, Rung
from standby.domain.model import EngineKind
from standby.domain.names import key
from standby.domain.prices import Footprint, ModelPrices, NodePrices, Price, Transition
from support.cluster import GIB, HATCHED, TENANT, Cluster, Slot, cached, make_model
from support.played import START, live_cluster
from support.played import ask_once as ask_ten_gb_once

pytestmark = pytest.mark.decision
EXEC_S = 0.3
NAME = key(TENANT, "e")


class Calm(Cluster):
    """A cluster whose gateway beats every five seconds: hours pass sooner."""

    def _tick(self) -> None:
        before = self._beat_at
        super()._tick()
        if self._beat_at != before:
            self._beat_at = self.now + 5.0


@dataclass(frozen=True)
class Kind:
    """An engine on a node: GB that one instance holds, and seconds that its climbs take."""

    size_gb: float
    awake_gb: float
    asleep_gb: float
    wake_s: float
    start_s: float
    fork_s: float | None = None
    measured: bool = True

    def cluster(self, **policy: Any) -> Cluster:
        """Return a node of 16 GiB with the weights on its disk, and an endpoint that was never asked."""
        model = make_model("m-e", size=int(self.size_gb * GB))
        steps = {Transition.WAKE: self.wake_s, Transition.START: self.start_s, Transition.SLEEP: 0.05}
        loads = {Rung.ASLEEP: self.wake_s, Rung.STAGED: self.start_s}
        if self.fork_s is not None:
            steps[Transition.FORK] = loads[Rung.ZYGOTE] = self.fork_s
        known = ModelPrices(
            engine=EngineKind.FAKE,
            digest=model.manifest.digest,
            transitions={name: Price(seconds=s, p95=s, samples=9, last=s, at=0.0) for name, s in steps.items()},
            footprint=Footprint(awake=int(self.awake_gb * GB), asleep=int(self.asleep_gb * GB)),
        )
        found = {"n1": NodePrices(node="n1", models={"m": known}, updated_at=0.0)} if self.measured else {}
        cluster = Calm(economy=Economy(measured=found, budget=Budget(share=0.1)), loads=loads, load_s=self.start_s)
        cluster.add_node(capacity=16 * GIB, artifacts=(cached(model),), zygotes=HATCHED if self.fork_s is not None else {})
        cluster.add_endpoint("e", model=model, **policy)
        cluster.decide()
        return cluster


SMALL_LLAMA = Kind(0.1, 0.15, 0.16, 0.1, 1.5)
LARGE_LLAMA = Kind(4.0, 4.2, 4.3, 0.1, 1.5)
SLEEPER = Kind(4.0, 4.2, 0.3, 0.1, 1.5)
UNMEASURED = Kind(4.0, 4.2, 0.3, 0.1, 1.5, measured=False)
ZYGOTE = Kind(1.0, 3.0, 2.9, 0.5, 12.0, fork_s=0.8)
KINDS = (SMALL_LLAMA, LARGE_LLAMA, SLEEPER, UNMEASURED, ZYGOTE)
NAMES = ("small-llama", "large-llama", "sleeper", "unmeasured", "zygote")


def ask_once(cluster: Cluster, at: float) -> float:
    """Let one request come at ``at`` and be answered; return the seconds that it waited."""
    cluster.run_until(START + at)
    cluster.ask(queued=1)
    cluster.decide()
    begun = cluster.now
    while cluster.state_of() != ["ready"]:
        cluster.run_until(min(slot.done_at for slot in cluster.slots.values()))
    waited = cluster.now - begun
    cluster.ask(in_flight=1)
    cluster.run_until(cluster.now + EXEC_S)
    cluster.ask()
    cluster.decide()
    return waited


def moves(cluster: Cluster, since: int = 0) -> list[Retarget]:
    return [a for _, a in cluster.trace[since:] if isinstance(a, Retarget) and a.rung is not a.before]


@pytest.mark.parametrize("every_s", [3.0, 60.0, 3600.0])
@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_rests_when_the_requests_end_and_moves_no_more(kind: Kind, every_s: float) -> None:
    """However it was asked: a few moves for each request, a few when they end, then none for as long as nobody asks."""
    cluster, times = kind.cluster(), 3 if every_s > 1000 else 12
    for number in range(times):
        ask_once(cluster, 5.0 + number * every_s)
    assert sum(isinstance(action, Assign) for _, action in cluster.trace) == 1
    assert len(moves(cluster)) <= 4 * times

    ended = len(cluster.trace)
    cluster.run_until(cluster.now + max(1500.0, 2 * every_s))
    assert len(moves(cluster, ended)) <= 6
    assert cluster.state_of() in (["staged"], ["zygote"])
    rested = len(cluster.trace)
    cluster.run_until(cluster.now + 1000.0)
    assert not moves(cluster, rested)


@pytest.mark.parametrize("kind", [SMALL_LLAMA, LARGE_LLAMA], ids=["small", "large"])
def test_sleep_that_frees_nothing_is_no_rung(kind: Kind) -> None:
    """On processors an engine may hold as much asleep as awake: it is ended, or stays."""
    cluster = kind.cluster()
    for number in range(5):
        ask_once(cluster, 5.0 + number * 60.0)
    cluster.run_until(cluster.now + 3000.0)
    assert moves(cluster)
    assert all(move.rung is not Rung.ASLEEP for move in moves(cluster))


def test_climb_that_can_never_be_afforded_is_not_counted_on() -> None:
    """4.2 GB are more than a tenth of the node: asked each minute, it is held where the next request wakes it soon."""
    cluster = SLEEPER.cluster()
    waits = [ask_once(cluster, 5.0 + number * 60.0) for number in range(25)]
    assert waits[-5:] == pytest.approx([SLEEPER.wake_s] * 5, abs=0.01)
    assert not any(move.wish for move in moves(cluster))


# ---- climbs ahead of demand that would begin again and again -----------------------------------------------------


def regular() -> Cluster:
    """Return a cluster whose endpoint was asked every 15 minutes, so that it climbs ahead of the next request."""
    cluster = live_cluster(PriceVector())
    for number in range(8):
        ask_ten_gb_once(cluster, 5.0 + number * 900.0)
    assert any(move.wish for move in moves(cluster))
    return cluster


def test_who_was_not_heard_to_be_asked_does_not_climb_unasked() -> None:
    """A new controller knows the habits from the table, and no gateway tells it of a request: the gaps count from none."""
    cluster = regular()
    cluster.run_until(cluster.now + 400.0)
    gaps = cluster.book.demand(NAME).gaps
    assert gaps is not None
    cluster.book = DemandBook(lambda: cluster.now)
    cluster.book.restore(NAME, {"": gaps})
    cluster.traffic.clear()
    cluster.beat()
    before = len(cluster.trace)
    cluster.run_until(cluster.now + 3600.0)
    assert cluster.state_of() == ["staged"]
    assert not moves(cluster, before)


class Full(Cluster):
    """Its node has no memory for what climbs ahead, and tells so until the instance is ready, as nodes do."""

    def _finish(self, name: str, slot: Slot) -> None:
        ahead = slot.assignment.rung is Rung.READY and slot.assignment.ahead is not None
        failure = None if slot.seen is None else slot.seen.record.failure
        if ahead or (failure is not None and slot.assignment.rung is Rung.STAGED):
            slot.done_at = math.inf
            self.report(name, InstanceState.STAGED, failure=Failure(reason="no memory", code=NO_MEMORY))
            return
        super()._finish(name, slot)


def test_climb_without_memory_is_not_repeated_until_it_was_ready_once() -> None:
    cluster = regular()
    cluster.__class__ = Full
    before = len(cluster.trace)
    cluster.run_until(cluster.now + 3600.0)
    assert sum(move.wish is not None for move in moves(cluster, before)) == 1
    assert cluster.state_of() == ["staged"]

    before = len(cluster.trace)
    ask_ten_gb_once(cluster, cluster.now - START + 5.0)
    cluster.run_until(cluster.now + 3600.0)
    assert sum(move.wish is not None for move in moves(cluster, before)) == 1


# ---- what must not stop the controller or fill its memory ----------------------------------------------------------


@pytest.mark.parametrize("price", [0.0, HIGHEST_PRICE / 2, HIGHEST_PRICE])
def test_every_price_of_a_wait_that_may_be_written_can_be_weighed(price: float) -> None:
    cluster = SMALL_LLAMA.cluster(wait_price=price)
    ask_once(cluster, 5.0)
    cluster.run_until(cluster.now + 1000.0)
    assert cluster.state_of() == ["staged" if price == 0 else "ready"]


def test_policies_that_each_plan_makes_anew_are_not_remembered_each() -> None:
    cluster = SLEEPER.cluster()
    cluster.resize("e", "AllTraffic", max_instances=3)
    ask_once(cluster, 5.0)
    cluster.run_until(cluster.now + 60.0)
    remembered, plans = len(cluster.economy.ladders), cluster.plans
    cluster.run_until(cluster.now + 600.0)
    assert cluster.plans > plans + 100
    assert len(cluster.economy.ladders) == remembered
