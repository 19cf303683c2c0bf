"""How many requests each instance's door lets in, so that all together never let in more than the variant's limit. Pure.

Slots under a limit are moved, never copied: an instance gets more only when the others, as far as anybody can still act on
an older order, have less. So the sum holds at every moment, however late a node hears of an order; while slots are on their
way there are fewer than the limit allows. A node that fell silent is not counted: what it holds would be lost otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from standby.controller.actions import Action, Assign, Retarget, Unassign
from standby.controller.view import Placed
from standby.domain.endpoint import Variant
from standby.domain.instance import Rung


@dataclass(frozen=True, slots=True)
class Member:
    """An instance that shares the limit.

    ``ordered``: what its door was last told; ``holds``: the most that it may have inside or let in before it hears more.
    ``wanted``: it is to answer requests; ``ready``: it does. ``most``: what it takes at once.
    """

    wanted: bool
    ready: bool
    ordered: int
    holds: int
    most: int


def divide(limit: int, members: Sequence[Member]) -> tuple[int, ...]:
    """Return for each member what its door should let in.

    While any is ready, those that climb get nothing: their part would lie idle.
    """
    ready = [at for at, one in enumerate(members) if one.ready]
    sharing = ready or [at for at, one in enumerate(members) if one.wanted]
    wish = [0] * len(members)
    # What is left over stays where it is: by place in the list it would move with every new instance.
    for turn, at in enumerate(sorted(sharing, key=lambda at: -members[at].ordered)):
        wish[at] = min(members[at].most, limit // len(sharing) + (turn < limit % len(sharing)))
    orders = [min(one.ordered, wanted) for one, wanted in zip(members, wish, strict=True)]
    holds = [one.holds for one in members]
    for at, wanted in enumerate(wish):
        room = limit - (sum(holds) - holds[at])
        orders[at] = max(orders[at], min(wanted, room))
        holds[at] = max(holds[at], orders[at])
    return tuple(orders)


def limit_of(parts: Sequence[Variant]) -> int | None:
    """Return how many requests of a variant may be under way at once, given its backends as plain variants, or itself."""
    limit = parts[0].concurrency_limit
    return None if limit is None else min(limit, sum(part.policy.slots * part.policy.max_instances for part in parts))


def share_out(parts: Sequence[tuple[Variant, Sequence[Placed]]], actions: Sequence[Action]) -> list[Action]:
    """Return the ``actions`` of one variant with what each door lets in, and orders for doors that let in another number.

    ``parts``: its backends as plain variants, or itself, each with its instances on living nodes.
    """
    limit = limit_of([part for part, _ in parts])
    live = [placed for _, its in parts for placed in its]
    most = [part.policy.slots for part, its in parts for _ in its]
    moved = {action.key: action for action in actions if isinstance(action, Retarget | Unassign)}
    new = [action for action in actions if isinstance(action, Assign)]
    stay = [(placed, _stays(placed, moved.get(placed.key))) for placed in live]
    members = [
        Member(wanted, wanted and one.ready, one.assignment.door_slots if one.wants_ready else 0, one.may_hold, takes)
        for (one, wanted), takes in zip(stay, most, strict=True)
    ]
    members += [Member(wanted=True, ready=False, ordered=0, holds=0, most=action.slots) for action in new]
    orders = tuple(one.most for one in members) if limit is None else divide(limit, members)
    told = {placed.key: order for (placed, wanted), order in zip(stay, orders, strict=False) if wanted}
    fresh = iter(orders[len(live) :])
    made = [_told(action, told, fresh) for action in actions]
    for placed, wanted in stay:
        have = placed.assignment
        if wanted and placed.key not in moved and have.admits != _admits(told[placed.key], have.slots):
            made.append(_resize(placed, told[placed.key], limit))
    return made


def _stays(placed: Placed, action: Retarget | Unassign | None) -> bool:
    if action is None:
        return placed.wants_ready
    return isinstance(action, Retarget) and action.rung is Rung.READY


def _told(action: Action, told: dict[str, int], fresh: Iterator[int]) -> Action:
    if isinstance(action, Assign):
        return replace(action, admits=_admits(next(fresh), action.slots))
    if isinstance(action, Retarget) and action.key in told:
        return replace(action, admits=_admits(told[action.key], action.slots))
    return action


def _admits(order: int, slots: int) -> int | None:
    return None if order == slots else order


def _resize(placed: Placed, order: int, limit: int | None) -> Retarget:
    have = placed.assignment
    why = "slots" if limit is None else f"the concurrency limit of {limit}"
    return Retarget(
        key=placed.key,
        revision=placed.revision,
        tenant=have.tenant,
        endpoint=have.endpoint,
        before=have.rung,
        rung=have.rung,
        slots=have.slots,
        admits=_admits(order, have.slots),
        demand_at=have.demand_at,
        reason=f"its door lets in {order} requests instead of {have.door_slots}: {why}",
        inputs={"slots": order, "before": have.door_slots},
    )
