"""How the cards of a node reach one another: by NVLink, directly or over switches, else by the way their buses meet."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from standby.domain.node import Link
from standby.runtime.devices.nvml import DeviceLost, Nvml
from standby.runtime.devices.nvml_inventory import Gpu, bus_address

# The constants of nvmlGpuTopologyLevel_t: where the way between two cards turns round.
_MEETING: Final = MappingProxyType(
    {0: "pcie-switch", 10: "pcie-switch", 20: "pcie-switch", 30: "pcie-host", 40: "numa", 50: "system"}
)

_ORDER: Final = MappingProxyType(
    {kind: number for number, kind in enumerate(("nvlink", "pcie-switch", "pcie-host", "numa", "system"))}
)


@dataclass
class _Lanes:
    """Active NVLinks of one card: to each other card, and to switches, through which it reaches all that have such."""

    direct: Counter[str] = field(default_factory=Counter)
    switched: int = 0


def links(nvml: Nvml, cards: tuple[Gpu, ...]) -> Mapping[str, tuple[Link, ...]]:
    """Return UUID → its links to the other cards, the nearest first. It does not change while the machine runs."""
    lanes = {card.uuid: _lanes(nvml, card) for card in cards}
    return {
        card.uuid: tuple(
            sorted((_link(nvml, card, peer, lanes) for peer in cards if peer is not card), key=lambda link: _ORDER[link.kind])
        )
        for card in cards
    }


def _link(nvml: Nvml, card: Gpu, peer: Gpu, lanes: Mapping[str, _Lanes]) -> Link:
    count = lanes[card.uuid].direct[peer.bus] or min(lanes[card.uuid].switched, lanes[peer.uuid].switched)
    if count:
        return Link(peer=peer.uuid, kind="nvlink", lanes=count)
    level = None
    with contextlib.suppress(DeviceLost):
        level = nvml.ask("nvmlDeviceGetTopologyCommonAncestor", card.handle, peer.handle)
    return Link(peer=peer.uuid, kind=_MEETING.get(-1 if level is None else int(level), "system"))


def _lanes(nvml: Nvml, card: Gpu) -> _Lanes:
    found = _Lanes()
    with contextlib.suppress(DeviceLost):
        for number in range(nvml.module.NVML_NVLINK_MAX_LINKS):
            if nvml.ask("nvmlDeviceGetNvLinkState", card.handle, number):
                _count(nvml, found, card.handle, number)
    return found


def _count(nvml: Nvml, found: _Lanes, handle: Any, number: int) -> None:
    if nvml.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number) == nvml.module.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        found.switched += 1
    else:
        found.direct[bus_address(nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, number))] += 1
