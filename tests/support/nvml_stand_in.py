"""A stand-in for the module ``pynvml``: NOT a GPU and not NVIDIA's library, only its names over a scripted machine.

It has functions, constants and exceptions of the real binding alone, which a test checks against the real one. What a card
cannot say raises NVMLError_NotSupported, as the library does.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

GIB = 2**30
NOBODY = 2**32 - 1


class NVMLError(Exception):
    """Base of the binding's errors."""


class NVMLError_NotSupported(NVMLError):  # noqa: N801 - the binding's name
    pass


class NVMLError_NotFound(NVMLError):  # noqa: N801 - the binding's name
    pass


class NVMLError_InvalidArgument(NVMLError):  # noqa: N801 - the binding's name
    pass


class NVMLError_Timeout(NVMLError):  # noqa: N801 - the binding's name
    pass


class NVMLError_GpuIsLost(NVMLError):  # noqa: N801 - the binding's name
    pass


class NVMLError_ResetRequired(NVMLError):  # noqa: N801 - the binding's name
    pass


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801 - the binding's name
    pass


class NVMLError_DriverNotLoaded(NVMLError):  # noqa: N801 - the binding's name
    pass


class NVMLError_FunctionNotFound(NVMLError):  # noqa: N801 - the binding's name
    pass


@dataclass
class Part:
    """A MIG instance: ``gpu_instance`` and ``compute_instance`` are its numbers in events."""

    uuid: str
    total: int
    used: int = 0
    gpu_instance: int = 0
    compute_instance: int = 0
    processes: dict[int, int | None] = field(default_factory=dict)
    name: str = "Stand-in MIG 1g.5gb"


@dataclass
class Card:
    """One scripted GPU. ``unsupported`` are functions that it does not support, ``parts`` its MIG slots (None: a hole)."""

    uuid: str
    bus: int
    total: int = 80 * GIB
    reserved: int = GIB
    used: int = 0
    name: str = "Stand-in H0"
    utilisation: int = 0
    numa: int = 0
    cores: tuple[int, ...] = ()
    lanes: tuple[int | str, ...] = ()
    parts: tuple[Part | None, ...] | None = None
    processes: dict[int, int | None] = field(default_factory=dict)
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    recovery: int = 0
    lost: bool = False
    unsupported: frozenset[str] = frozenset()


class NvmlStandIn(ModuleType):
    """The module object. ``post`` sends an event; ``refuse_init`` is raised by nvmlInit; counts say what was opened."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_NotFound = NVMLError_NotFound
    NVMLError_InvalidArgument = NVMLError_InvalidArgument
    NVMLError_Timeout = NVMLError_Timeout
    NVMLError_GpuIsLost = NVMLError_GpuIsLost
    NVMLError_ResetRequired = NVMLError_ResetRequired
    NVMLError_LibraryNotFound = NVMLError_LibraryNotFound
    NVMLError_DriverNotLoaded = NVMLError_DriverNotLoaded
    NVMLError_FunctionNotFound = NVMLError_FunctionNotFound
    NVML_NVLINK_MAX_LINKS = 36
    NVML_NVLINK_DEVICE_TYPE_GPU = 0x00
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 0x02
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    nvmlMemory_v2 = 0x02000028  # noqa: N815 - the binding's name
    nvmlEventTypeDoubleBitEccError = 0x2  # noqa: N815 - the binding's name
    nvmlEventTypeXidCriticalError = 0x8  # noqa: N815 - the binding's name
    nvmlEventTypeGpuRecoveryAction = 0x8000  # noqa: N815 - the binding's name

    def __init__(self, *cards: Card, refuse_init: Exception | None = None, ancestor: int = 50) -> None:
        super().__init__("nvml_stand_in")
        self.cards = list(cards)
        self.refuse_init = refuse_init
        self.ancestor = ancestor
        self.opened = 0
        self.event_sets = 0
        self.threads: set[str] = set()
        self._events: queue.Queue[Any] = queue.Queue()

    # ---- what tests do -----------------------------------------------------------------------------------------

    def post(
        self, card: Card, kind: int, data: int = 0, *, gpu_instance: int = 2**32 - 1, compute_instance: int = 2**32 - 1
    ) -> None:
        """Send an event to whoever waits."""
        self._events.put(
            SimpleNamespace(
                device=card, eventType=kind, eventData=data, gpuInstanceId=gpu_instance, computeInstanceId=compute_instance
            )
        )

    def lose(self, card: Card) -> None:
        """Let a card fall off the bus: whoever waits for events is told that some card is lost."""
        card.lost = True
        self._events.put(NVMLError_GpuIsLost("GPU is lost"))

    def _check(self, device: Card | Part, function: str) -> None:
        card = self._card_of(device)
        if card.lost:
            raise NVMLError_GpuIsLost("GPU is lost")
        if function in card.unsupported or "all" in card.unsupported:
            raise NVMLError_NotSupported("Not Supported")

    def _card_of(self, device: Card | Part) -> Card:
        if isinstance(device, Card):
            return device
        return next(card for card in self.cards if any(part is device for part in card.parts or ()))

    # ---- the binding's names -----------------------------------------------------------------------------------

    def nvmlInit(self) -> None:  # noqa: N802 - the binding's name, as all below
        if self.refuse_init is not None:
            raise self.refuse_init
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        self._check(self.cards[index], "nvmlDeviceGetHandleByIndex")
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card | Part:  # noqa: N802
        for card in self.cards:
            devices: list[Card | Part] = [card, *(part for part in card.parts or () if part)]
            for device in devices:
                if device.uuid == uuid:
                    self._check(card, "nvmlDeviceGetHandleByUUID")
                    return device
        raise NVMLError_NotFound("Not Found")

    def nvmlDeviceGetUUID(self, handle: Card | Part) -> str:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Card | Part) -> str:  # noqa: N802
        return handle.name

    def nvmlDeviceGetPciInfo(self, handle: Card) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(domain=0, bus=handle.bus, device=0, busId=f"00000000:{handle.bus:02X}:00.0".encode())

    def nvmlDeviceGetMemoryInfo(self, handle: Card | Part, version: int | None = None) -> SimpleNamespace:  # noqa: N802
        self._check(handle, "nvmlDeviceGetMemoryInfo")
        if version is None:
            return SimpleNamespace(total=handle.total, used=handle.used, free=handle.total - handle.used)
        self._check(handle, "nvmlDeviceGetMemoryInfo_v2")
        reserved = handle.reserved if isinstance(handle, Card) else 0
        return SimpleNamespace(
            total=handle.total, reserved=reserved, used=handle.used, free=handle.total - handle.used - reserved
        )

    def nvmlDeviceGetUtilizationRates(self, handle: Card | Part) -> SimpleNamespace:  # noqa: N802
        self._check(handle, "nvmlDeviceGetUtilizationRates")
        if isinstance(handle, Part) or handle.parts is not None:
            raise NVMLError_NotSupported("Not Supported")
        return SimpleNamespace(gpu=handle.utilisation, memory=0)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Card | Part) -> list[SimpleNamespace]:  # noqa: N802
        self._check(handle, "nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in handle.processes.items()]

    def nvmlDeviceGetCudaComputeCapability(self, handle: Card) -> tuple[int, int]:  # noqa: N802
        self._check(handle, "nvmlDeviceGetCudaComputeCapability")
        return (9, 0)

    def nvmlDeviceGetNumaNodeId(self, handle: Card) -> int:  # noqa: N802
        self._check(handle, "nvmlDeviceGetNumaNodeId")
        return handle.numa

    def nvmlDeviceGetCpuAffinity(self, handle: Card, cpuSetSize: int) -> list[int]:  # noqa: N802, N803 - the binding's names
        self._check(handle, "nvmlDeviceGetCpuAffinity")
        words = [0] * cpuSetSize
        for core in handle.cores:
            words[core // 64] |= 1 << core % 64
        return words

    def nvmlDeviceGetRemappedRows(self, device: Card) -> tuple[int, int, int, int]:  # noqa: N802
        self._check(device, "nvmlDeviceGetRemappedRows")
        return device.rows

    def nvmlDeviceGetTopologyCommonAncestor(self, device1: Card, device2: Card) -> int:  # noqa: N802
        self._check(device1, "nvmlDeviceGetTopologyCommonAncestor")
        return self.ancestor

    def nvmlDeviceGetNvLinkState(self, device: Card, link: int) -> int:  # noqa: N802
        self._check(device, "nvmlDeviceGetNvLinkState")
        if link >= len(device.lanes):
            raise NVMLError_InvalidArgument("Invalid Argument")
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Card, link: int) -> int:  # noqa: N802
        return self.NVML_NVLINK_DEVICE_TYPE_SWITCH if handle.lanes[link] == "switch" else self.NVML_NVLINK_DEVICE_TYPE_GPU

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: Card, link: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(domain=0, bus=device.lanes[link], device=0)

    def nvmlDeviceGetMigMode(self, device: Card) -> list[int]:  # noqa: N802
        self._check(device, "nvmlDeviceGetMigMode")
        return [int(device.parts is not None)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Card) -> int:  # noqa: N802
        return len(device.parts or ())

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Card, index: int) -> Part:  # noqa: N802
        part = (device.parts or ())[index]
        if part is None:
            raise NVMLError_NotFound("Not Found")
        return part

    def nvmlDeviceGetGpuInstanceId(self, device: Part) -> int:  # noqa: N802
        return device.gpu_instance

    def nvmlDeviceGetComputeInstanceId(self, device: Part) -> int:  # noqa: N802
        return device.compute_instance

    def nvmlDeviceGetFieldValues(self, handle: Card, fieldIds: list[int]) -> list[SimpleNamespace]:  # noqa: N802, N803
        self._check(handle, "nvmlDeviceGetFieldValues")
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=handle.recovery)) for _ in fieldIds]

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        self.event_sets += 1
        return object()

    def nvmlEventSetFree(self, eventSet: object) -> None:  # noqa: N802, N803
        self.event_sets -= 1

    def nvmlDeviceGetSupportedEventTypes(self, handle: Card) -> int:  # noqa: N802
        self._check(handle, "nvmlDeviceGetSupportedEventTypes")
        return 0xFFFF

    def nvmlDeviceRegisterEvents(self, handle: Card, eventTypes: int, eventSet: object) -> None:  # noqa: N802, N803
        self._check(handle, "nvmlDeviceRegisterEvents")

    def nvmlEventSetWait_v2(self, eventSet: object, timeoutms: int) -> Any:  # noqa: N802, N803
        self.threads.add(threading.current_thread().name)
        try:
            event = self._events.get(timeout=min(timeoutms / 1000, 0.05))  # tests need not wait so long
        except queue.Empty:
            raise NVMLError_Timeout("Timeout") from None
        if isinstance(event, NVMLError):
            raise event
        return event


def two_cards(**second: Any) -> NvmlStandIn:
    """Two cards joined by four NVLinks."""
    return NvmlStandIn(
        Card("GPU-aaaa", bus=0x3B, numa=0, cores=(0, 1, 64), lanes=(0x5E,) * 4, utilisation=30),
        Card("GPU-bbbb", bus=0x5E, numa=1, cores=(2, 3), lanes=(0x3B,) * 4, **second),
    )


def partitioned() -> NvmlStandIn:
    """One card cut into two instances, with holes before and between."""
    parts = (
        None,
        Part("MIG-1111", total=5 * GIB, used=GIB, gpu_instance=7, compute_instance=0),
        None,
        Part("MIG-2222", total=10 * GIB, gpu_instance=9, compute_instance=0),
    )
    return NvmlStandIn(Card("GPU-cccc", bus=0x3B, parts=parts))
