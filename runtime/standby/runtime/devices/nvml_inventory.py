"""Which GPUs and MIG instances there are, and what each is like."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from standby.domain.node import Device, DeviceKind, Link
from standby.runtime.devices.nvml import DeviceLost, Nvml

_WORD_BITS: Final = 64
_PCI: Final = Path("/sys/bus/pci/devices")
_HIGHEST_CORE: Final = 4096


@dataclass(frozen=True, slots=True)
class Gpu:
    """A whole card: NVML's handle, its UUID, its place on the bus as the kernel writes it (``0000:3b:00.0``)."""

    handle: Any
    uuid: str
    bus: str


@dataclass(frozen=True, slots=True)
class _Common:
    """What the MIG instances of a card have in common with it."""

    numa_node: int | None
    cores: tuple[int, ...]
    capability: str
    driver: str
    cordoned: str


def gpus(nvml: Nvml) -> tuple[Gpu, ...]:
    """Return every card that answers, in the order of the bus."""
    found = []
    for index in range(nvml.ask("nvmlDeviceGetCount") or 0):
        with contextlib.suppress(DeviceLost):
            handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
            uuid = None if handle is None else nvml.ask("nvmlDeviceGetUUID", handle)
            if uuid is not None:
                found.append(Gpu(handle, uuid, bus_address(nvml.ask("nvmlDeviceGetPciInfo", handle))))
    return tuple(sorted(found, key=lambda gpu: gpu.bus))


def inventory(nvml: Nvml, cards: tuple[Gpu, ...], links: Mapping[str, tuple[Link, ...]]) -> tuple[Device, ...]:
    """Return the devices: each MIG instance of a card that is partitioned, else the card. A lost card is left out."""
    devices: list[Device] = []
    for card in cards:
        with contextlib.suppress(DeviceLost):
            devices.extend(_devices_of(nvml, card, links.get(card.uuid, ())))
    return tuple(devices)


def bus_address(pci: Any) -> str:
    """Return a PCI address as in ``/sys/bus/pci/devices``; empty when NVML told none."""
    return "" if pci is None else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


_HIDE_ALL: Final = frozenset({"", "-1", "NoDevFiles", "void", "none"})


def visible_of(devices: Sequence[Device], setting: str | None) -> tuple[Device, ...]:
    """Return the devices that CUDA_VISIBLE_DEVICES leaves: UUIDs, beginnings of them, or numbers in the order of the bus.

    None: all. CUDA ends the list at the first entry that names nothing, and so does this.
    """
    if setting is None:
        return tuple(devices)
    chosen: list[Device] = []
    for entry in _entries(setting):
        named = _named(devices, entry)
        if len(named) != 1:
            break
        chosen.extend(device for device in named if device not in chosen)
    return tuple(chosen)


def hidden_by(devices: Sequence[Device], setting: str | None) -> str:
    """Return which entry of CUDA_VISIBLE_DEVICES names no device, or several, in words; empty where each names one.

    The entry stays as it was written: a UUID of a MIG instance is no number, and nobody here takes it for one.
    """
    if setting is None or setting.strip() in _HIDE_ALL:
        return ""
    for entry in _entries(setting):
        named = _named(devices, entry)
        if len(named) != 1:
            there = ", ".join(device.id for device in named or devices) or "none"
            which = "several devices" if named else "no device of this node"
            told = f"names {which} by {entry!r} (there are: {there}); it and what follows are hidden"
            return f"CUDA_VISIBLE_DEVICES={setting!r} {told}"
    return ""


def _entries(setting: str) -> list[str]:
    return [part.strip() for part in setting.split(",")]


def _named(devices: Sequence[Device], entry: str) -> Sequence[Device]:
    if entry.isdigit():
        return devices[int(entry) : int(entry) + 1]
    return [device for device in devices if entry and device.id.startswith(entry)]


def _devices_of(nvml: Nvml, card: Gpu, links: tuple[Link, ...]) -> Iterator[Device]:
    common = _common(nvml, card)
    mode = nvml.ask("nvmlDeviceGetMigMode", card.handle)
    if mode is not None and mode[0]:
        for handle, uuid in mig_instances(nvml, card.handle):
            yield _device(nvml, handle, uuid, common, kind=DeviceKind.MIG, parent=card.uuid)
    else:
        yield _device(nvml, card.handle, card.uuid, common, kind=DeviceKind.GPU, links=links)


def mig_instances(nvml: Nvml, card: Any) -> Iterator[tuple[Any, str]]:
    """Yield (handle, UUID) of each instance of the card with this handle; their numbers have holes once some were destroyed."""
    for index in range(nvml.ask("nvmlDeviceGetMaxMigDeviceCount", card) or 0):
        handle = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", card, index)
        uuid = None if handle is None else nvml.ask("nvmlDeviceGetUUID", handle)
        if uuid is not None:
            yield handle, uuid


def _device(
    nvml: Nvml,
    handle: Any,
    uuid: str,
    common: _Common,
    *,
    kind: DeviceKind,
    parent: str = "",
    links: tuple[Link, ...] = (),
) -> Device:
    memory = nvml.memory(handle)
    # The rates are those of a whole card; an instance of one has none.
    rates = None if kind is DeviceKind.MIG else nvml.ask("nvmlDeviceGetUtilizationRates", handle)
    return Device(
        id=uuid,
        kind=kind,
        name=nvml.ask("nvmlDeviceGetName", handle) or "",
        parent=parent,
        memory_total=0 if memory is None else memory.total,
        memory_used=0 if memory is None else memory.used,
        utilisation=None if rates is None else min(1.0, rates.gpu / 100),
        numa_node=common.numa_node,
        compute_capability=common.capability,
        driver=common.driver,
        cores=common.cores,
        links=links,
        cordoned=common.cordoned,
    )


def _common(nvml: Nvml, card: Gpu) -> _Common:
    capability = nvml.ask("nvmlDeviceGetCudaComputeCapability", card.handle)
    return _Common(
        numa_node=_numa_node(nvml, card),
        cores=_cores(nvml, card),
        capability="" if capability is None else "{}.{}".format(*capability),
        driver=nvml.ask("nvmlSystemGetDriverVersion") or "",
        cordoned=_worn_out(nvml, card),
    )


def _worn_out(nvml: Nvml, card: Gpu) -> str:
    """Return why the card's memory is unfit: it broke and has no spare rows left. Pending rows alone do not make it so."""
    rows = nvml.ask("nvmlDeviceGetRemappedRows", card.handle)
    if rows is None or not rows[3]:
        return ""
    return f"its memory could not be repaired ({rows[1]} rows with uncorrectable errors); replace the GPU"


def _numa_node(nvml: Nvml, card: Gpu) -> int | None:
    told = nvml.ask("nvmlDeviceGetNumaNodeId", card.handle)
    if told is None:  # most x86 drivers do not say; the kernel does
        with contextlib.suppress(OSError, ValueError):
            told = int((_PCI / card.bus / "numa_node").read_text())
    return None if told is None or told < 0 else int(told)


def _cores(nvml: Nvml, card: Gpu) -> tuple[int, ...]:
    words = nvml.ask("nvmlDeviceGetCpuAffinity", card.handle, _HIGHEST_CORE // _WORD_BITS)
    if words is None:
        return ()
    return tuple(
        number * _WORD_BITS + bit for number, word in enumerate(words) for bit in range(_WORD_BITS) if int(word) >> bit & 1
    )
