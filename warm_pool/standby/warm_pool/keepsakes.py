"""What is kept of an engine beyond its life: its compiled kernels, and the tokens by which the next one is known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

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
    beside the tenant's model. ``mismatches`` counts engines that did not say what they should.
    """

    canaries: Canaries
    caches: EngineCache
    place: str | None
    keys_for: KeysFor
    facts: Callable[[Sequence[str], int | None], DeviceFacts]
    tell: Callable[[Managed, str], None]
    mismatches: int = 0
    _held: dict[str, str] = field(default_factory=dict)
    _unproven: set[str] = field(default_factory=set)
    """Instances whose engine has started with its folder of kernels, and has not proved itself yet."""
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
        """Return the folder of compiled kernels for a start, filled with what is known; None where the engine has none.

        The instance's devices and processors are chosen: they are part of the fingerprint.
        """
        managed.fingerprint = self.fingerprint(managed)
        if not managed.adapter.uses_compile_cache(managed.assignment.model.engine_options):
            return None
        name = of_tenant(managed.fingerprint, managed.assignment.tenant)
        try:
            prepared = await self.caches.prepare(name, managed.id, await self._shelf(managed))
        except OSError as error:  # it can start without; what else the disk does not take will say so by itself
            self.tell(managed, f"engine cache: no folder can be made: {error}")
            return None
        self._held[managed.id] = name
        self._unproven.add(managed.id)
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
            self.mismatches += 1
            self.tell(managed, f"canary mismatch {'after a wake' if after_wake else 'at a start'}: {outcome.reason}")
        outcome.raise_mismatch()

    def proven(self, managed: Managed) -> None:
        """The start was good: what it compiled is kept, and sent to the other nodes. In the background, whatever follows."""
        name = self._held.get(managed.id)
        if name is not None:
            self._unproven.discard(managed.id)
            self._begin(self._capture(managed, name), f"capture {managed.id}")

    def ended(self, managed: Managed, *, broke: bool) -> None:
        """The process is gone: its folder may be used, or removed, by others. In the background, before any later start.

        ``broke``: by a fault that may be its own. Where it had not proved itself yet its kernels may be to blame.
        """
        name = self._held.pop(managed.id, None)
        if name is None:
            return
        blamed = broke and managed.id in self._unproven
        self._unproven.discard(managed.id)
        self._begin(self._let_go(managed, name, blamed=blamed), f"engine cache {managed.id}")

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """What is being kept right now; to be ended with the node."""
        return tuple(self._tasks)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run ``work`` apart from the engine: who orders its next step, or waits for its end, does not wait for a disk."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed in an unforeseen way", task.get_name(), exc_info=error)

    async def _let_go(self, managed: Managed, name: str, *, blamed: bool) -> None:
        if blamed:
            self._say(managed, await self.caches.validated(name, managed.id, ok=False))
        else:
            await self.caches.release(name, managed.id)

    async def _capture(self, managed: Managed, name: str) -> None:
        self._say(managed, await self.caches.validated(name, managed.id, ok=True))
        await asyncio.sleep(CAPTURE_AFTER_S)
        captured = await self.caches.capture(name, await self._shelf(managed))
        if captured.changed:
            _log.info("kept %d bytes of compiled kernels of %s", captured.bytes, managed.id, extra={"shared": captured.shared})

    def _say(self, managed: Managed, words: str) -> None:
        if words:
            self.tell(managed, f"engine cache: {words}")

    async def _shelf(self, managed: Managed) -> Shelf | None:
        tenant, manifest = managed.assignment.tenant, managed.assignment.model.manifest
        try:
            keys = await self.keys_for(tenant, manifest) if self.place == BESIDE else None
            return shelf_for(self.place, manifest, keys)
        except StandbyError as error:
            _log.warning("instance %s: engine caches stay on this node: %s", managed.id, error)
            return None
