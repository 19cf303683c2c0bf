"""Which of a plan's climbs ahead of demand are made: they are weighed against each other, node by node. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from standby.controller.actions import Action, Assign, Decision, Retarget, awaited
from standby.controller.economics import GB
from standby.controller.economy import Ahead
from standby.controller.prewarm import Room, Wish, grant
from standby.controller.view import ClusterView, ObservedNode


def granted(view: ClusterView, actions: Sequence[Action]) -> tuple[list[Action], list[Decision]]:
    """Return ``actions`` without the climbs ahead of demand for which there is no room or no budget, and why for each."""
    by_node: dict[str, list[tuple[Retarget, Wish]]] = defaultdict(list)
    for action in actions:
        if isinstance(action, Retarget) and action.wish is not None:
            by_node[action.key.partition(".")[0]].append((action, action.wish))
    if not by_node:
        return list(actions), []
    taken = _taken(actions)
    refused: dict[str, str] = {}
    for name, asked in by_node.items():
        wanted = name in view.economy.wanted or name in taken
        room = _room(view.nodes[name], view.economy.ahead.get(name, Ahead()), view.promised.get(name, 0), view, asked)
        verdicts = grant([wish for _, wish in asked], room, view.economy.budget, wanted=wanted)
        refused |= {verdict.wish.key: verdict.reason for verdict in verdicts if not verdict.granted}
    kept = [one for one in actions if not (isinstance(one, Retarget) and one.wish is not None and one.key in refused)]
    held = [
        Decision("hold", f"it would climb ahead of demand, but {refused[one.key]}", one.tenant, one.endpoint, inputs=one.inputs)
        for asked in by_node.values()
        for one, _ in asked
        if one.key in refused
    ]
    return kept, held


def _taken(actions: Iterable[Action]) -> set[str]:
    """Return the nodes on which this very plan starts something that somebody waits for."""
    climbs = (action for action in actions if awaited(action))
    return {one.node if isinstance(one, Assign) else one.key.partition(".")[0] for one in climbs}


def _room(node: ObservedNode, ahead: Ahead, promised: int, view: ClusterView, asked: Sequence[tuple[Retarget, Wish]]) -> Room:
    """Return the room on a node's devices. The processors' memory is the device where no asker computes on a GPU."""
    held = ahead.held_gb
    gpus = node.fit_gpus if any(_on_gpu(view, node, action) for action, _ in asked) else ()
    free = sum(device.memory_free for device in gpus) / GB if gpus else max(0, node.record.memory.free - promised) / GB
    # The budget is a share of what is free, and what climbed ahead before was taken from it.
    return Room(total_gb=free + held, free_gb=free, ahead_gb=held, climbing=ahead.climbing)


def _on_gpu(view: ClusterView, node: ObservedNode, action: Retarget) -> bool:
    endpoint = view.endpoints.get(f"{action.tenant}.{action.endpoint}")
    placed = () if endpoint is None else endpoint.placed
    return any(one.key == action.key and node.needs_gpu(one.assignment.model.engine) for one in placed)
