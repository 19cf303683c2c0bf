"""Nodes that are cordoned, drained or leaving: nothing new there, and what serves there is served elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from standby.domain.endpoint import EndpointStatus
from standby.domain.instance import Rung
from standby.domain.names import key
from standby.domain.node import NodeMode
from support.cluster import TENANT, Cluster


def become(cluster: Cluster, node: str, mode: NodeMode) -> None:
    seen = cluster.nodes[node]
    cluster.nodes[node] = replace(seen, record=seen.record.model_copy(update={"mode": mode, "mode_reason": "by ops"}))
    cluster.beat()


def placed(cluster: Cluster) -> list[tuple[str, Rung]]:
    return sorted((slot.assignment.node, slot.assignment.rung) for slot in cluster.slots.values())


def a_cluster(*nodes: str) -> Cluster:
    cluster = Cluster()
    for name in nodes:
        cluster.add_node(name)
    cluster.add_endpoint("e", keep_ready="600s", keep_asleep="600s")
    return cluster


@pytest.mark.parametrize("mode", [mode for mode in NodeMode if mode is not NodeMode.OPEN])
def test_nothing_new_comes_to_a_node_that_is_not_open(mode: NodeMode) -> None:
    cluster = a_cluster("n1", "n2")
    become(cluster, "n1", mode)
    cluster.ask(queued=1)
    cluster.run_until(cluster.now + 10)
    assert placed(cluster) == [("n2", Rung.READY)]


def test_what_a_cordoned_node_has_stays() -> None:
    cluster = a_cluster("n1")
    cluster.ask(queued=1)
    cluster.run_until(cluster.now + 5)
    cluster.ask(in_flight=1)
    become(cluster, "n1", NodeMode.CORDONED)
    cluster.run_until(cluster.now + 5)
    assert placed(cluster) == [("n1", Rung.READY)]


@pytest.mark.parametrize("mode", [NodeMode.DRAINING, NodeMode.LEAVING])
def test_what_serves_there_is_served_elsewhere(mode: NodeMode) -> None:
    """A draining instance is no capacity to come: its successor is not waited for in vain."""
    cluster = a_cluster("n1")
    cluster.ask(queued=1)
    cluster.run_until(cluster.now + 5)
    cluster.add_node("n2")
    cluster.ask(in_flight=1, queued=1)
    become(cluster, "n1", mode)
    cluster.run_until(cluster.now + 5)
    assert placed(cluster) == [("n2", Rung.READY)]


def test_the_rests_of_a_node_that_leaves_are_kept_for_its_return() -> None:
    cluster = a_cluster("n1")
    cluster.ask(queued=1)
    cluster.run_until(cluster.now + 5)
    (slot,) = cluster.slots.values()
    slot.assignment = slot.assignment.model_copy(update={"rung": Rung.ASLEEP})
    become(cluster, "n1", NodeMode.LEAVING)
    cluster.ask()
    cluster.run_until(cluster.now + 5)
    assert placed(cluster) == [("n1", Rung.ASLEEP)]
    become(cluster, "n1", NodeMode.DRAINED)
    cluster.run_until(cluster.now + 5)
    assert placed(cluster) == []


def test_whoever_waits_for_the_only_node_is_told_only_what_is_final() -> None:
    """A node that leaves may come back in a moment; one that was drained will not by itself."""
    cluster = a_cluster("n1")
    become(cluster, "n1", NodeMode.LEAVING)
    cluster.ask(queued=1)
    cluster.run_until(cluster.now + 5)
    assert cluster.endpoints[key(TENANT, "e")][0].status is EndpointStatus.IN_SERVICE
    become(cluster, "n1", NodeMode.DRAINED)
    cluster.run_until(cluster.now + 5)
    failed = cluster.endpoints[key(TENANT, "e")][0]
    assert failed.status is EndpointStatus.FAILED
    assert failed.failure is not None
    assert failed.failure.reason == "no node takes anything new: n1 is drained (by ops)"
    become(cluster, "n1", NodeMode.OPEN)
    cluster.run_until(cluster.now + 5)
    assert placed(cluster) == [("n1", Rung.READY)]
