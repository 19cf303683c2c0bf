"""The agent's view of its devices: what there is, what is used, what broke, and whether memory came back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from standby.domain.node import Device, DeviceKind, Link
from standby.runtime.devices import nvml_topology
from standby.runtime.devices.host_cpu import host_devices
from standby.runtime.devices.nvml import DeviceLost, Nvml
from standby.runtime.devices.nvml_events import EventThread
from standby.runtime.devices.nvml_inventory import gpus, hidden_by, inventory, visible_of

_log = logging.getLogger(__name__)

OnCordon = Callable[[str, str], None]

SETTLED_SLACK_BYTES: Final = 64 * 2**20
_FIRST_LOOK_S: Final = 0.05
_LONGEST_LOOK_S: Final = 1.0


class Devices:
    """Owned by the agent's loop. ``on_cordon(device_id, reason)`` is called there, once for each device that breaks."""

    def __init__(
        self,
        nvml: Nvml | None,
        *,
        on_cordon: OnCordon,
        visible: str | None = None,
        host: Callable[[], tuple[Device, ...]] = host_devices,
    ) -> None:
        """``nvml`` is None on a machine without GPUs; ``visible`` is the agent's own CUDA_VISIBLE_DEVICES.

        Call ``start`` before anything else.
        """
        self._nvml = nvml
        self._visible = visible
        self.hidden = ""
        """What is wrong with ``visible``, in words; empty: nothing."""
        self._on_cordon = on_cordon
        self._host = host
        self._links: Mapping[str, tuple[Link, ...]] = {}
        self._seen: tuple[Device, ...] = ()
        self._cordons: dict[str, str] = {}
        self._events: EventThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Look at every device, and wait for faults of the GPUs from now on."""
        self._loop = asyncio.get_running_loop()
        if self._nvml is not None:
            await asyncio.to_thread(self._start_nvml, self._nvml)
        await self.refresh()

    def _start_nvml(self, nvml: Nvml) -> None:
        cards = gpus(nvml)
        self._links = nvml_topology.links(nvml, cards)
        self._events = EventThread(nvml, {card.uuid: card.handle for card in cards}, self._fault)
        if cards and not self._events.start():
            _log.warning("faults of GPUs (Xid, ECC) are not told by this driver")

    async def stop(self) -> None:
        """Stop waiting for faults and close NVML."""
        if self._events is not None:
            await asyncio.to_thread(self._events.stop)
            self._events = None
        if self._nvml is not None:
            await asyncio.to_thread(self._nvml.close)
            self._nvml = None

    # ---- what there is -----------------------------------------------------------------------------------------

    async def refresh(self) -> tuple[Device, ...]:
        """Measure every device again, in a thread: a driver in trouble may take seconds to answer."""
        found = await asyncio.to_thread(self._look)
        self._seen = (*found, *self._missing(found))
        for device in found:
            if device.cordoned:
                self.cordon(device.id, device.cordoned)
        return self.list()

    def list(self) -> tuple[Device, ...]:
        """Return the devices as last measured, with what is cordoned now."""
        return tuple(
            device.model_copy(update={"cordoned": reason}) if (reason := self.cordoned(device.id)) else device
            for device in self._seen
        )

    def find(self, device_id: str) -> Device | None:
        """Return one device as last measured, or None."""
        return next((device for device in self.list() if device.id == device_id), None)

    def memory_used(self, device_id: str) -> int | None:
        """Return the bytes used now, measured by NVML for GPUs; None when it cannot say. For a CPU: as last measured."""
        if self._is_gpu(device_id):
            memory = None
            if self._nvml is not None:
                try:
                    handle = self._nvml.handle(device_id)
                    memory = None if handle is None else self._nvml.memory(handle)
                except DeviceLost:
                    return None
            return None if memory is None else memory.used
        device = self.find(device_id)
        return None if device is None else device.memory_used

    def process_bytes(self, pids: Collection[int]) -> Mapping[str, int | None]:
        """Return GPU or MIG id → bytes that these processes hold there; None: NVML cannot say."""
        return {device.id: self._bytes_on(device.id, pids) for device in self._seen if device.kind is not DeviceKind.CPU}

    # ---- cordons -----------------------------------------------------------------------------------------------

    def cordoned(self, device_id: str) -> str:
        """Return why nothing new may be placed on the device (or on the card that it is a part of); empty: it may."""
        if device_id in self._cordons:
            return self._cordons[device_id]
        parent = next((device.parent for device in self._seen if device.id == device_id), "")
        return self._cordons.get(parent, "")

    def cordon(self, device_id: str, reason: str) -> None:
        """Let nothing new be placed on the device until the agent ends; the first reason stays."""
        if device_id not in self._cordons:
            self._cordons[device_id] = reason
            _log.error("device %s is cordoned: %s", device_id, reason)
            self._on_cordon(device_id, reason)

    def _fault(self, device_id: str, reason: str) -> None:
        """Called in NVML's thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.cordon, device_id, reason)

    # ---- memory that has to come back --------------------------------------------------------------------------

    def baseline(
        self, device_ids: Iterable[str], pids: Collection[int], before: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Return what each device should hold once these processes are gone; call it right before they are ended.

        That is what is used now without their own bytes; where NVML cannot say those, ``before``, the figures from before
        they were started (which counts later neighbours wrongly, so it is the second choice). A device of which
        neither is known is left out.
        """
        found: dict[str, int] = {}
        for device_id in device_ids:
            used = self.memory_used(device_id)
            own = self._bytes_on(device_id, pids) if self._is_gpu(device_id) else None
            if used is not None and own is not None:
                found[device_id] = max(0, used - own)
            elif before is not None and device_id in before:
                found[device_id] = before[device_id]
        return found

    async def settled(
        self, device_ids: Iterable[str], pids: Collection[int], baseline: Mapping[str, int], deadline_s: float
    ) -> str:
        """Wait until the processes' entries and their memory are gone from the GPUs; at the deadline cordon them.

        Returns why it did not settle, or nothing. Devices of the host are not waited for: the kernel gives their memory
        back before a process's end is told.
        """
        waiting = [device_id for device_id in device_ids if self._is_gpu(device_id)]
        clock = asyncio.get_running_loop().time
        deadline, pause = clock() + deadline_s, _FIRST_LOOK_S
        reasons: dict[str, str] = {}
        while waiting:
            reasons = await asyncio.to_thread(self._unsettled, waiting, pids, baseline)
            waiting = list(reasons)
            if not waiting or clock() >= deadline:
                break
            await asyncio.sleep(min(pause, max(0.0, deadline - clock())))
            pause = min(pause * 1.5, _LONGEST_LOOK_S)
        for device_id, reason in reasons.items():
            self.cordon(device_id, f"{reason} {deadline_s:g} s after its engine had ended")
        return "; ".join(f"{device_id}: {reason}" for device_id, reason in reasons.items())

    def _unsettled(self, device_ids: Iterable[str], pids: Collection[int], baseline: Mapping[str, int]) -> dict[str, str]:
        found: dict[str, str] = {}
        for device_id in device_ids:
            if reason := self._why_unsettled(device_id, pids, baseline.get(device_id)):
                found[device_id] = reason
        return found

    def _why_unsettled(self, device_id: str, pids: Collection[int], expected: int | None) -> str:
        entries = self._entries(device_id, pids)
        left = sorted(set(entries or {}) & set(pids))
        if left:
            return f"the driver still lists process {', '.join(map(str, left))}"
        used = self.memory_used(device_id)
        if used is None:
            return "it does not say how much memory is used"
        if expected is not None and used > expected + SETTLED_SLACK_BYTES:
            return f"{(used - expected) // 2**20} MiB more than before are still in use"
        return ""

    # ---- small things ------------------------------------------------------------------------------------------

    def _look(self) -> tuple[Device, ...]:
        listed: tuple[Device, ...] = ()
        if self._nvml is not None:
            listed = inventory(self._nvml, gpus(self._nvml), self._links)
        hidden = hidden_by(listed, self._visible)
        if hidden and hidden != self.hidden:
            _log.warning("%s", hidden)
        self.hidden = hidden
        return (*visible_of(listed, self._visible), *self._host())

    def _missing(self, found: Iterable[Device]) -> tuple[Device, ...]:
        """Return the GPUs that were here and are not listed now; one that has been partitioned is not missed."""
        present = {device.id for device in found} | {device.parent for device in found}
        missing = tuple(device for device in self._seen if device.kind is DeviceKind.GPU and device.id not in present)
        for device in missing:
            self.cordon(device.id, "the driver does not list it any more; nvidia-smi and the kernel's log say more")
        return missing

    def _is_gpu(self, device_id: str) -> bool:
        return not device_id.startswith("cpu-")

    def _entries(self, device_id: str, own: Collection[int]) -> Mapping[int, int | None] | None:
        if self._nvml is None:
            return None
        try:
            handle = self._nvml.handle(device_id)
            return None if handle is None else self._nvml.process_bytes(handle, own)
        except DeviceLost:
            return None

    def _bytes_on(self, device_id: str, pids: Collection[int]) -> int | None:
        entries = self._entries(device_id, pids)
        if entries is None:
            return None
        held = [entries[pid] for pid in entries if pid in pids]
        return None if any(value is None for value in held) else sum(value for value in held if value is not None)
