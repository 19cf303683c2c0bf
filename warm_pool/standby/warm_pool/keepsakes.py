"""What is kept of an engine beyond its life: its compiled kernels, and the tokens by which the next one is known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from standby.artifacts.credentials import Credentials
from standby.domain.errors import StandbyError
from standby.domain.model import Manifest
from standby.runtime.engines.base import EngineHandle
from standby.runtime.fingerprint import DeviceFacts, fingerprint, of_tenant
from standby.warm_pool.canaries import Canaries, CanaryCheck
from standby.warm_pool.engine_cache import EngineCache, Origin
from standby.warm_pool.engine_cache_shelf import BESIDE, Shelf, shelf_for
from standby.warm_pool.managed import Managed

_log = logging.getLogger(__name__)

CAPTURE_AFTER_S: Final = 5.0
"""The first request comes with readiness: packing what was compiled waits until that is served."""

KeysFor = Callable[[str, Manifest], Awaitable[Credentials | None]]


@dataclass
class Keepsakes:
    """Part of the agent's loop. ``facts`` tells what computes: given the devices, or none and the processors' number.

    ``tell`` says something of an instance to operators. ``keys_for`` opens a tenant's stored keys, for caches that lie
    beside the tenant's model.
    """

    canaries: Canaries
    caches: EngineCache
    place: str | None
    keys_for: KeysFor
    facts: Callable[[Sequence[str], int | None], DeviceFacts]
    tell: Callable[[Managed, str], None]
    _held: dict[str, str] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def fingerprint(self, managed: Managed) -> str:
        """Return the name of everything that this instance's tokens and kernels depend on."""
        model = managed.assignment.model
        return fingerprint(
            engine=model.engine,
            version=managed.adapter.version,
            digest=managed.digest,
            options=model.engine_options,
            device=self.facts(managed.devices, len(managed.cores) or None),
            slots=managed.assignment.slots,
        )

    async def prepare(self, managed: Managed) -> Path | None:
        """Return the folder of compiled kernels for a start, filled with what is known; None where the engine has none."""
        managed.fingerprint = self.fingerprint(managed)
        if not managed.adapter.uses_compile_cache(managed.assignment.model.engine_options):
            return None
        name = of_tenant(managed.fingerprint, managed.assignment.tenant)
        prepared = await self.caches.prepare(name, managed.id, await self._shelf(managed))
        self._held[managed.id] = name
        if prepared.note:
            self.tell(managed, f"engine cache: {prepared.note}")
        if prepared.origin is not Origin.EMPTY:
            _log.info("instance %s starts with %d bytes of kernels from %s", managed.id, prepared.bytes, prepared.origin.value)
        return prepared.path

    async def check(self, managed: Managed, handle: EngineHandle, limit_s: float, *, after_wake: bool) -> None:
        """Let the engine prove itself. Raises ProbeFailed; of that CanaryMismatch when it says something else than ever."""
        outcome = await self.canaries.check(
            managed.adapter, handle, managed.fingerprint, limit_s, after_wake=after_wake, depth=managed.sleep_depth
        )
        if outcome.check is CanaryCheck.MISMATCHED:
            self.tell(managed, f"canary mismatch {'after a wake' if after_wake else 'at a start'}: {outcome.reason}")
        outcome.raise_mismatch()

    async def started(self, managed: Managed, *, well: bool) -> None:
        """Take up how a start has ended; what a good one compiled is kept, and sent to the other nodes."""
        name = self._held.get(managed.id)
        if name is None:
            return
        words = await self.caches.validated(name, managed.id, ok=well)
        if words:
            self.tell(managed, f"engine cache: {words}")
        if well:
            task = asyncio.get_running_loop().create_task(self._capture(managed, name), name=f"capture {managed.id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._held.pop(managed.id, None)

    async def ended(self, managed: Managed) -> None:
        """The instance's process is gone: its folder may be used, or removed, by others."""
        name = self._held.pop(managed.id, None)
        if name is not None:
            await self.caches.release(name, managed.id)

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """What is being kept right now; to be ended with the node."""
        return tuple(self._tasks)

    async def _capture(self, managed: Managed, name: str) -> None:
        await asyncio.sleep(CAPTURE_AFTER_S)
        captured = await self.caches.capture(name, await self._shelf(managed))
        if captured.changed:
            _log.info("kept %d bytes of compiled kernels of %s", captured.bytes, managed.id, extra={"shared": captured.shared})

    async def _shelf(self, managed: Managed) -> Shelf | None:
        tenant, manifest = managed.assignment.tenant, managed.assignment.model.manifest
        try:
            keys = await self.keys_for(tenant, manifest) if self.place == BESIDE else None
            return shelf_for(self.place, manifest, keys)
        except StandbyError as error:
            _log.warning("instance %s: engine caches stay on this node: %s", managed.id, error)
            return None
