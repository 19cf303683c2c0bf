"""The node's heart beat: what the node is and holds, said every few seconds."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from types import MappingProxyType
from typing import Final

from standby.domain.model import EngineKind
from standby.domain.node import Device, DeviceKind, EngineAbsence, Node
from standby.domain.prices import Footprint
from standby.host import tasks
from standby.runtime.engines.llama_cpp_options import LlamaCppOptions
from standby.runtime.engines.registry import EngineRegistry
from standby.runtime.engines.tensorrt_llm_options import TensorRtLlmOptions
from standby.runtime.engines.vllm_options import VllmOptions
from standby.warm_pool.agent import Agent
from standby.warm_pool.announcer import Announcer
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.duty import Duty
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.price_key import digest_of
from standby.warm_pool.settings import NodeSettings

_log = logging.getLogger(__name__)

# A driver in trouble answers after minutes or never; a node that says nothing meanwhile would be taken for dead.
LOOK_S: Final = 0.5
_OPTION_NAMES: Final = MappingProxyType(
    {
        EngineKind.LLAMA_CPP: tuple(LlamaCppOptions.model_fields),
        EngineKind.VLLM: tuple(VllmOptions.model_fields),
        EngineKind.TENSORRT_LLM: tuple(TensorRtLlmOptions.model_fields),
    }
)


@dataclass
class Heart:
    """Says every few seconds what the node is, and what its instances hold. ``measured`` is called with each beat."""

    settings: NodeSettings
    agent: Agent
    announcer: Announcer
    cache: ArtifactCache
    memory: MemoryDesk
    registry: EngineRegistry
    duty: Duty
    measured: Callable[[], None] = lambda: None
    beats: int = 0

    def __post_init__(self) -> None:
        self.boot_id = secrets.token_hex(8)
        self.started_at = time.time()
        self._version = version("standby")
        self._versions = {kind: self.registry.adapter(kind).version for kind in self.registry.available()}
        self._absent = {
            kind: EngineAbsence(reason=cause.message, remedy=cause.remedy) for kind, cause in self.registry.absent().items()
        }

    async def run(self) -> None:
        """Beat until cancelled."""
        looking: asyncio.Task[None] | None = None
        try:
            while True:
                await asyncio.sleep(self.settings.heartbeat_s)
                if looking is None or looking.done():
                    looking = asyncio.create_task(self._look_at_devices(), name="look at devices")
                await asyncio.wait({looking}, timeout=LOOK_S)
                self.beat()
        finally:
            await tasks.end([looking] if looking is not None else [])

    async def _look_at_devices(self) -> None:
        try:
            await self.agent.effects.engines.berths.devices.refresh()
        except Exception as error:  # noqa: BLE001 - whatever a driver does, the node lives and serves
            _log.warning("devices could not be measured: %r", error)

    def beat(self) -> None:
        """Announce."""
        self.beats += 1
        devices = self.agent.effects.engines.berths.devices.list()
        gpus = {device.id: device for device in devices if device.kind is not DeviceKind.CPU}
        self.memory.set_devices(
            {name: device.memory_total for name, device in gpus.items()},
            {name: device.cordoned for name, device in gpus.items() if device.cordoned},
        )
        for managed in list(self.agent.instances.values()):
            self.agent.say(managed)
        self.announcer.node(self._record(devices))
        self.measured()

    def _record(self, devices: tuple[Device, ...]) -> Node:
        engines, kinds = self.agent.effects.engines, self.registry.available()
        ledger = self.memory.ledger
        return Node(
            name=self.settings.node_name,
            boot_id=self.boot_id,
            door=self.agent.door,
            engines=kinds,
            engine_options={kind: names for kind, names in _OPTION_NAMES.items() if kind in kinds},
            engine_versions=self._versions,
            absent_engines=self._absent,
            engine_devices={kind: self.registry.adapter(kind).capabilities.device for kind in kinds},
            memory=self.memory.snapshot(),
            cache_bytes=self.cache.used_bytes,
            cache_capacity=self.cache.capacity_bytes,
            artifacts=self.cache.contents(),
            costs=self.agent.keeper.book.table,
            footprints=_largest(self.memory, lambda size: max(size.awake or 0, size.peak or 0)),
            device_footprints=_largest(self.memory, lambda size: size.device_awake or 0),
            devices=tuple(
                device.model_copy(update={"memory_reserved": ledger.reserved_of(device.id)})
                if device.id in ledger.devices
                else device
                for device in devices
            ),
            zygotes=engines.zygotes.records(),
            isolation=engines.berths.isolation.describe(self.settings.device_sharing),
            heartbeat=self.beats,
            mode=self.duty.mode,
            mode_reason=self.duty.reason,
            started_at=self.started_at,
            version=self._version,
        )


def _largest(memory: MemoryDesk, of: Callable[[Footprint], int]) -> dict[str, int]:
    """Return by model digest the most that was measured of it, whatever its options."""
    found: dict[str, int] = {}
    for name in memory.sizes.keys():  # noqa: SIM118 - it is no mapping
        digest = digest_of(name)
        found[digest] = max(found.get(digest, 0), of(memory.sizes.footprint(name)))
    return {digest: amount for digest, amount in found.items() if amount}
