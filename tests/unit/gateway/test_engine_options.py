"""Engine options are checked at registration against what the nodes say that their engines take."""

from __future__ import annotations

import pytest

from standby.domain.engine_choice import check_options
from standby.domain.errors import InvalidInput
from standby.domain.model import EngineKind
from standby.domain.node import MemoryLedger, Node

pytestmark = pytest.mark.decision


def a_node(**options: tuple[str, ...]) -> Node:
    return Node(
        name="n1",
        boot_id="b",
        door="127.0.0.1:1",
        engine_options={EngineKind(kind): names for kind, names in options.items()},
        memory=MemoryLedger(capacity=1),
        started_at=0.0,
    )


def test_what_any_node_knows_is_taken() -> None:
    check_options(EngineKind.LLAMA_CPP, ["threads", "batch"], [a_node(llama_cpp=("threads",)), a_node(llama_cpp=("batch",))])


def test_what_no_node_knows_is_refused_with_what_is_known() -> None:
    with pytest.raises(InvalidInput) as refused:
        check_options(EngineKind.LLAMA_CPP, ["thread", "threads"], [a_node(llama_cpp=("threads", "batch"))])

    assert refused.value.message == "llama_cpp has no engine option 'thread'"
    assert refused.value.remedy == "known are: batch, threads"


@pytest.mark.parametrize("nodes", [[], [a_node()], [a_node(vllm=("x",))]], ids=["no node", "silent", "another engine"])
def test_nothing_is_checked_while_nobody_says(nodes: list[Node]) -> None:
    check_options(EngineKind.LLAMA_CPP, ["whatever"], nodes)
