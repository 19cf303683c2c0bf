"""Which of a node's devices an instance would get, as far as its record tells: enough room, near one another, in use already.

Pure. The node chooses the devices itself when it starts the engine; this says only how well they could be chosen there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from standby.domain.node import Device

# As ``Link.kind`` names them, the nearest first; two devices without a link on record are the farthest.
_KINDS: Final = ("nvlink", "pcie-switch", "pcie-host", "numa", "system")


class Seat(NamedTuple):
    """How well an instance would sit: the farthest two of its devices by kind of link, and how many lay idle before it."""

    distance: int
    idle: int


def seat(devices: Sequence[Device], count: int, share: int) -> Seat | None:
    """Return the best seat for ``count`` devices with ``share`` bytes free on each; None where they are not there.

    Near devices first: between them goes every layer's exchange for as long as the instance lives. Then those in use already,
    so that whole devices stay idle for what needs them whole.
    """
    roomy = [device for device in devices if device.memory_free >= share]
    if len(roomy) < count:
        return None
    if count == 1:
        return Seat(0, min(_idle(device) for device in roomy))
    return min(_around(first, roomy, count) for first in roomy)


def _around(first: Device, roomy: Sequence[Device], count: int) -> Seat:
    """Return the seat of ``first`` and those nearest to it."""
    others = [device for device in roomy if device is not first]
    near = sorted((_distance(first, other), _idle(other), other.id, other) for other in others)[: count - 1]
    chosen = [first, *(entry[3] for entry in near)]
    farthest = max(_distance(one, other) for at, one in enumerate(chosen) for other in chosen[:at])
    return Seat(farthest, sum(map(_idle, chosen)))


def _idle(device: Device) -> int:
    return int(device.memory_reserved == 0)


def _distance(one: Device, other: Device) -> int:
    kinds = [link.kind for link in one.links if link.peer == other.id]
    kinds += [link.kind for link in other.links if link.peer == one.id]
    return min((_KINDS.index(kind) for kind in kinds if kind in _KINDS), default=len(_KINDS))
