"""Tells when a GPU breaks: one thread waits for NVML's events, since NVML has no other way to be told.

Xid numbers (NVIDIA's "GPU deployment and management", Xid errors) of faults that a program makes itself, such as a wild
address, say nothing of the card; every other one does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from standby.runtime.devices.nvml import DeviceLost, Nvml
from standby.runtime.devices.nvml_inventory import mig_instances

_log = logging.getLogger(__name__)

OnFault = Callable[[str, str], None]

WAIT_MS: Final = 500
_JOIN_S: Final = 5.0
_NO_INSTANCE: Final = 0xFFFFFFFF
# Graphics engine exception, page fault, stopped channel, preemptive cleanup, video decoder, context switch timeout.
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
_RECOVERY: Final = MappingProxyType(
    {
        1: "the driver asks for a reset of the GPU",
        2: "the driver asks for a reboot of the node",
        3: "the driver asks to drain its links to other GPUs",
        4: "the driver asks to drain the GPU and reset it",
        5: "the driver asks to recover its IMEX domain",
        6: "the driver asks for a reset of the bus",
        7: "the driver asks for a reboot of the system",
    }
)


class EventThread:
    """Waits for faults of these GPUs; ``on_fault(device_id, reason)`` is called in its thread.

    ``cards`` is UUID → handle. A card that reports no events (older or smaller ones) is not watched, which is logged.
    """

    def __init__(self, nvml: Nvml, cards: Mapping[str, Any], on_fault: OnFault) -> None:
        self._nvml = nvml
        self._cards = dict(cards)
        self._on_fault = on_fault
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> bool:
        """Begin to wait; False where no card tells events."""
        events = self._register()
        if events is None:
            return False
        self._thread = threading.Thread(target=self._run, args=(events,), name="nvml-events", daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """End the thread; takes half a second at most. NVML may be closed afterwards."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    @property
    def watched(self) -> tuple[str, ...]:
        """The cards whose faults are told."""
        return tuple(self._cards)

    def _register(self) -> Any:
        events = self._nvml.ask("nvmlEventSetCreate")
        if events is None:
            return None
        module = self._nvml.module
        wanted = (
            module.nvmlEventTypeXidCriticalError
            | module.nvmlEventTypeDoubleBitEccError
            | getattr(module, "nvmlEventTypeGpuRecoveryAction", 0)
        )
        for uuid, handle in tuple(self._cards.items()):
            if not self._register_one(events, handle, wanted):
                del self._cards[uuid]
                _log.info("faults of GPU %s are not told by its driver", uuid)
        if self._cards:
            return events
        self._nvml.ask("nvmlEventSetFree", events)
        return None

    def _register_one(self, events: Any, handle: Any, wanted: int) -> bool:
        module = self._nvml.module
        try:
            supported = self._nvml.ask("nvmlDeviceGetSupportedEventTypes", handle)
            if not supported or not supported & wanted:
                return False
            module.nvmlDeviceRegisterEvents(handle, supported & wanted, events)
        except (DeviceLost, module.NVMLError):
            return False
        return True

    def _run(self, events: Any) -> None:
        module = self._nvml.module
        while not self._stop.is_set():
            try:
                event = module.nvmlEventSetWait_v2(events, WAIT_MS)
            except module.NVMLError_Timeout:
                continue
            except module.NVMLError as error:
                events = self._after_loss(events, error)
                if events is None:
                    return
                continue
            self._tell(event)
        self._nvml.ask("nvmlEventSetFree", events)

    def _after_loss(self, events: Any, error: Exception) -> Any:
        """Name the card that is gone and wait for the others; None when none is left or nobody knows what happened."""
        self._nvml.ask("nvmlEventSetFree", events)
        gone = [uuid for uuid, handle in self._cards.items() if self._is_lost(handle)]
        for uuid in gone:
            del self._cards[uuid]
            self._on_fault(uuid, "the GPU has fallen off the bus; reboot the node")
        if not gone:
            _log.error("faults of GPUs are not told any more: %s", error)
            return None
        return self._register()

    def _is_lost(self, handle: Any) -> bool:
        try:
            self._nvml.memory(handle)
        except DeviceLost:
            return True
        return False

    def _tell(self, event: Any) -> None:
        reason = self._reason(event)
        device = self._device_of(event)
        if reason and device:
            self._on_fault(device, reason)

    def _reason(self, event: Any) -> str:
        module = self._nvml.module
        if event.eventType == module.nvmlEventTypeDoubleBitEccError:
            return "its memory had an error that could not be corrected (double-bit ECC)"
        if event.eventType == module.nvmlEventTypeXidCriticalError:
            number = int(event.eventData)
            if number not in APPLICATION_XIDS:
                return f"the driver reports Xid {number}; the kernel's log and NVIDIA's list of Xid errors say more"
            _log.warning("a program on a GPU made a fault that is its own (Xid %d)", number)
            return ""
        return self._recovery(event.device)

    def _recovery(self, handle: Any) -> str:
        """Ask what is to be done, as the event tells only that it has changed."""
        field = getattr(self._nvml.module, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        try:
            told = None if field is None else self._nvml.ask("nvmlDeviceGetFieldValues", handle, [field])
        except DeviceLost:
            return "the GPU has fallen off the bus; reboot the node"
        if told is None or told[0].nvmlReturn:
            return "the driver asks for a recovery of the GPU; nvidia-smi -q says which"
        return _RECOVERY.get(int(told[0].value.uiVal), "")

    def _device_of(self, event: Any) -> str:
        """Return the MIG instance that the event names, else the card."""
        try:
            card = self._nvml.ask("nvmlDeviceGetUUID", event.device)
            if event.gpuInstanceId == _NO_INSTANCE:
                return card or ""
            for handle, uuid in mig_instances(self._nvml, event.device):
                if self._is_instance(handle, event):
                    return uuid
        except DeviceLost:
            return next((uuid for uuid, handle in self._cards.items() if handle is event.device), "")
        return card or ""

    def _is_instance(self, handle: Any, event: Any) -> bool:
        if self._nvml.ask("nvmlDeviceGetGpuInstanceId", handle) != event.gpuInstanceId:
            return False
        return event.computeInstanceId in (_NO_INSTANCE, self._nvml.ask("nvmlDeviceGetComputeInstanceId", handle))
