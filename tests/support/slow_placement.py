"""Placement the slow way, as an oracle: every node is a candidate for every climb, and all of them are looked at each time.

Written from the rules alone; it shares no code with ``standby.controller.placement`` but the guesses of seconds and memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from standby.controller.placement import gpu_need, memory_need, seconds_to_ready
from standby.controller.view import ObservedNode, Placed
from standby.domain.endpoint import Variant
from standby.domain.instance import Rung
from standby.domain.model import Model
from standby.domain.serving import gpus_of


class Option(NamedTuple):
    """One climb that could be: ``wake`` is the resting instance's key, empty for a new one."""

    node: str
    wake: str
    rung: Rung
    price: float
    doubtful: bool
    order: tuple[object, ...]


def best(
    variant: Variant,
    model: Model,
    nodes: Iterable[ObservedNode],
    siblings: Iterable[Placed],
    promised: Mapping[str, int],
    now: float,
) -> Option | None:
    """Return the climb that should be chosen; None where none can be. Tenants are left aside."""
    placed = list(siblings)
    able = [n for n in nodes if now - n.seen_at < 15 and n.record.mode == "open" and model.engine in n.record.engines]
    options = []
    for node in able:
        name = node.record.name
        free = max(0, node.record.memory.free - promised.get(name, 0))
        need = memory_need(variant.memory_mb, model, node)
        resting = [p for p in placed if p.assignment.node == name and not p.wants_ready and not p.failed]
        neighbours = sum(p.wants_ready for p in placed if p.assignment.node == name)
        gpus = _gpus(node, model)
        for one in resting:
            rests = one.assignment.rung if one.instance is None else one.instance.record.rung
            held = 0 if one.instance is None else one.instance.record.resident_bytes
            if gpus is not None and rests < Rung.ASLEEP and not node.fit_gpus:
                continue
            roomy = need - held <= free and (rests >= Rung.ASLEEP or gpus is None or gpus[0])
            seat = (0, 0) if rests >= Rung.ASLEEP or gpus is None or not gpus[0] else gpus[1]
            options.append(_option(node, one.key, rests, model, neighbours, seat, free, roomy=roomy))
        if not resting and not any(p.failed for p in placed if p.assignment.node == name):
            staged = any(artifact.digest == model.manifest.digest for artifact in node.record.artifacts)
            if need <= free and (gpus is None or gpus[0]):
                seat = (0, 0) if gpus is None else gpus[1]
                rung = Rung.STAGED if staged else Rung.COLD
                options.append(_option(node, "", rung, model, neighbours, seat, free, roomy=True))
    if any(not option.doubtful for option in options):
        options = [option for option in options if not option.doubtful]
    if not options:
        return None
    least = min(option.price for option in options)
    return min((option for option in options if option.price <= 1.2 * least), key=lambda option: option.order)


def _option(
    node: ObservedNode, wake: str, rests: Rung, model: Model, neighbours: int, seat: tuple[int, int], free: int, *, roomy: bool
) -> Option:
    zygote = node.record.zygotes.get(model.engine)
    forked = rests is Rung.STAGED and zygote is not None and zygote.state == "ready"
    rung = Rung.ZYGOTE if forked else rests
    price = seconds_to_ready(node, model.manifest.digest, rung, model.manifest.total_bytes)
    if not roomy:
        price = (price + 3.0) * (1.5 if rung is Rung.ASLEEP else 2.0)
    name = node.record.name
    order = (neighbours, round(price, 3), not wake, *seat, -free, name, wake)
    return Option(name, wake, rung, price, not node.confirmed, order)


def _gpus(node: ObservedNode, model: Model) -> tuple[bool, tuple[int, int]] | None:
    """Return whether one GPU has room, and whether an idle one would have to be used; None: it needs none."""
    if not node.needs_gpu(model.engine):
        return None
    count = gpus_of(model.engine_options)
    assert count == 1, "the oracle knows no links"
    need = math.ceil(gpu_need(model, node))
    roomy = [device for device in node.fit_gpus if device.memory_free >= need]
    used = [device for device in roomy if device.memory_reserved]
    return bool(roomy), (0, int(not used))
