"""Where on its node an engine computes: its GPUs, its processors, its cgroup. Nothing of it is shared against the policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from standby.domain.errors import EngineError
from standby.domain.node import Device, DeviceKind
from standby.domain.serving import gpus_of
from standby.runtime.activity import tree_of
from standby.runtime.devices.binding import bind
from standby.runtime.devices.cores import CoreBook
from standby.runtime.devices.inventory import Devices
from standby.runtime.engines.base import EngineHandle
from standby.runtime.exit_status import ExitStatus
from standby.runtime.isolation import Isolation, entry_environment
from standby.runtime.isolation_cell import Cell, Limits
from standby.runtime.isolation_policy import DeviceSharing, may_share
from standby.warm_pool.ledger import Ledger
from standby.warm_pool.managed import Managed
from standby.warm_pool.turns import Turns

_log = logging.getLogger(__name__)

# The ledger reserves what an engine was seen to need; its cgroup ends it only well above, where something is wrong.
MEMORY_MAX_FACTOR = 1.5
SETTLE_LIMIT_S = 30.0


@dataclass
class Berths:
    """Part of the agent's loop. ``ledger`` returns the present one."""

    devices: Devices
    cores: CoreBook
    isolation: Isolation
    sharing: DeviceSharing
    instances: Mapping[str, Managed]
    ledger: Callable[[], Ledger]
    turns: Turns = field(default_factory=Turns)
    _cells: dict[str, Cell] = field(default_factory=dict)

    def devices_of(self, managed: Managed) -> tuple[str, ...]:
        """Return the GPUs of an instance, chosen when it first needs them. Raises EngineError where none is fit."""
        if managed.adapter.capabilities.device is DeviceKind.CPU:
            return ()
        if not managed.devices:
            managed.devices = self._choose(managed)
        return managed.devices

    def free(self, managed: Managed) -> None:
        """The instance has no process any more: the next climb chooses anew."""
        managed.devices = ()

    # ---- around a process ----------------------------------------------------------------------------------------

    def prepare(self, managed: Managed, run: int) -> dict[str, str]:
        """Give an engine that is about to start its processors and its cgroup; return what it must find in its environment."""
        if managed.adapter.capabilities.device is DeviceKind.CPU:
            managed.cores = self.cores.take(managed.id).cores
        held = self.ledger().held(managed.id).host
        cell = self.isolation.create(managed.id, run, Limits(memory_max=round(held * MEMORY_MAX_FACTOR) or None))
        if cell is not None:
            self._cells[managed.id] = cell
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(managed.devices)} if managed.devices else {}
        return {**entry_environment(cell), **seen}

    def spawned(self, managed: Managed, handle: EngineHandle) -> None:
        """Move what it may have forked before it had entered its cgroup by itself."""
        cell = self._cells.get(managed.id)
        if cell is not None and (words := cell.gather(lambda: tree_of(handle.process.mark, handle.pid))):
            _log.info("instance %s: %s", managed.id, words)

    def asleep(self, managed: Managed) -> None:
        """It computes nothing: its processors are free for others."""
        self.cores.give_back(managed.id)

    def awake(self, managed: Managed, handle: EngineHandle) -> None:
        """Bind an engine that wakes to processors that are free now."""
        if managed.adapter.capabilities.device is not DeviceKind.CPU:
            return
        managed.cores = self.cores.take(managed.id).cores
        if managed.cores and (words := bind(tree_of(handle.process.mark, handle.pid), managed.cores)):
            _log.info("instance %s: %s", managed.id, words)

    def explained(self, managed: Managed, status: ExitStatus) -> ExitStatus:
        """Return the exit together with what its cgroup knows of memory."""
        cell = self._cells.get(managed.id)
        return status if cell is None else replace(status, out_of_memory=cell.out_of_memory())

    async def leave(self, managed: Managed) -> None:
        """The engine has been ended: end what its cgroup still holds, and free all but the GPUs.

        May be called again. Raises EngineError where a process of it does not end, OSError.
        """
        self.cores.give_back(managed.id)
        cell = self._cells.get(managed.id)
        if cell is not None:
            cell.kill()
            await cell.remove()
            # Known until it is gone: who tries again finds it.
            self._cells.pop(managed.id, None)

    # ---- inside --------------------------------------------------------------------------------------------------

    def _choose(self, managed: Managed) -> tuple[str, ...]:
        wanted = gpus_of(managed.assignment.model.engine_options)
        lacks: list[str] = []
        fit: list[Device] = []
        for device in self._offered():
            allowed, why = may_share(device, managed.assignment.tenant, self._tenants_on(device.id), self.sharing)
            if device.cordoned or not allowed:
                lacks.append(f"{device.id}: {device.cordoned or why}")
            else:
                fit.append(device)
        if len(fit) < wanted:
            told = "; ".join(filter(None, (*lacks, self.devices.hidden))) or "this node has no GPU"
            raise EngineError(f"needs {wanted} GPUs, {len(fit)} can be used: {told}", remedy="free one, or use another node")
        ledger = self.ledger()
        fit.sort(key=lambda device: (-ledger.free_of(device.id), device.id))
        return tuple(device.id for device in fit[:wanted])

    def _offered(self) -> list[Device]:
        """Return GPUs and MIG instances; a card that is cut into instances is not offered itself."""
        listed = [device for device in self.devices.list() if device.kind is not DeviceKind.CPU]
        cut = {device.parent for device in listed if device.kind is DeviceKind.MIG}
        return [device for device in listed if device.id not in cut]

    def _tenants_on(self, device: str) -> set[str]:
        return {managed.assignment.tenant for managed in self.instances.values() if device in managed.devices}
