"""Nodes whose records say that all is well, and who are not there any more."""

from __future__ import annotations

from standby.console.silence import SILENT_AFTER_S, Silence
from standby.domain.node import Node
from support.cluster import make_node


def a_node(beat: int, boot_id: str = "b") -> Node:
    return make_node("n").model_copy(update={"heartbeat": beat, "boot_id": boot_id})


def after(silence: Silence, *beats: Node, step_s: float = SILENT_AFTER_S) -> frozenset[str]:
    """What is silent after these records, each ``step_s`` after the one before."""
    for at, node in enumerate(beats):
        silence.listen([node], at * step_s, connected=True)
    return silence.nodes


def test_a_node_whose_heart_stands_still_is_silent_and_comes_back() -> None:
    assert after(Silence(), a_node(1)) == frozenset()
    assert after(Silence(), a_node(1), a_node(1)) == {"n"}
    assert after(Silence(), a_node(1), a_node(1), a_node(2)) == frozenset()


def test_a_node_that_was_started_again_is_heard_whatever_its_number() -> None:
    assert after(Silence(), a_node(1), a_node(1, boot_id="c")) == frozenset()


def test_who_hears_nobody_judges_nobody() -> None:
    """Without the bus nodes go on: neither while it is away nor before they had time to be heard again."""
    silence = Silence()
    silence.listen([a_node(1)], 0.0, connected=True)

    silence.listen([a_node(1)], 60.0, connected=False)
    away = silence.nodes
    silence.listen([a_node(1)], 61.0, connected=True)
    back = silence.nodes
    silence.listen([a_node(1)], 61.0 + SILENT_AFTER_S, connected=True)

    assert (away, back, silence.nodes) == (frozenset(), frozenset(), frozenset({"n"}))


def test_a_node_that_is_no_more_is_forgotten() -> None:
    silence = Silence()
    after(silence, a_node(1), a_node(1))

    silence.listen([], 3 * SILENT_AFTER_S, connected=True)

    assert silence.nodes == frozenset()
