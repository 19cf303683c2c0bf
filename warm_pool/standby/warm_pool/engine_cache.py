"""Compiled kernels and graphs of engines, kept by fingerprint: captured after a good start, there before the next one.

One owner of the disk below one root. Nothing here ever fails a start: what cannot be had, or may not be used, is said in
words, and the engine compiles for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

from standby.artifacts.crew import uninterrupted
from standby.domain.errors import DiskFull, StandbyError
from standby.warm_pool.engine_cache_archive import (
    HEAD_BYTES,
    RefusedCache,
    identity_of,
    pack,
    signing_key,
    survey,
    unpack,
)
from standby.warm_pool.engine_cache_disk import CacheState, Content, EngineCacheFolder, Shared, times_of, write_state
from standby.warm_pool.engine_cache_shelf import Shelf, bring, peek, send

_log = logging.getLogger(__name__)

DEFAULT_CAP: Final = 2 << 30
SEED_LIMIT_S: Final = 60.0
"""For bringing a cache from the store; compiling anew takes longer."""
SEND_LIMIT_S: Final = 600.0
_ASK_AGAIN_S: Final = 60.0
"""After a store did not answer, starts go on without it for so long."""
_GROWN: Final = 1.1
"""A cache that has so much more in it than what the other nodes have is worth sending once more."""
_FAILURES: Final = (OSError, StandbyError)  # TimeoutError is an OSError


class Origin(StrEnum):
    """Where the content of a prepared cache comes from."""

    EMPTY = "empty"
    LOCAL = "local"
    STORE = "store"


@dataclass(frozen=True)
class Prepared:
    """``path`` is the engine's folder; ``note`` says in words what did not work, or empty."""

    path: Path
    origin: Origin
    bytes: int = 0
    ms: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Captured:
    """What a cache holds after a start. ``shared``: other nodes find it now."""

    files: int = 0
    bytes: int = 0
    changed: bool = False
    shared: bool = False
    ms: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class EngineCacheOptions:
    """``secret`` is the deployment's, from which the signing key is made; without it nothing is shared."""

    cap_bytes: int = DEFAULT_CAP
    secret: bytes | None = field(default=None, repr=False)
    version: str = ""
    seed_limit_s: float = SEED_LIMIT_S
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


class EngineCache:
    """All engine caches of one node. ``user`` is an instance: a cache in use is never removed."""

    def __init__(self, root: Path, options: EngineCacheOptions | None = None) -> None:
        self._options = options or EngineCacheOptions()
        self._disk = EngineCacheFolder(root)
        self._key = None if self._options.secret is None else signing_key(self._options.secret)
        self._users: dict[str, dict[str, Origin]] = {}
        self._moving: dict[str, asyncio.Lock] = {}
        self._capturing: dict[str, asyncio.Lock] = {}
        self._checked: set[str] = set()
        self._silent_until: dict[str, float] = {}
        self._told: set[str] = set()

    async def open(self) -> None:
        """Make the folders and remove what an earlier process left half done. Raises OSError."""
        await asyncio.to_thread(self._disk.prepare)

    async def prepare(self, fingerprint: str, user: str, shelf: Shelf | None = None) -> Prepared:
        """Return the folder for an engine that is to start, filled from this node, else from ``shelf``, else empty.

        Any number may ask at once: one of them fills it, the others wait for that. ``user`` holds the cache until
        ``release`` or a failed ``validated``. Raises OSError only when not even an empty folder can be made.
        """
        began = self._options.monotonic()
        async with self._moving.setdefault(fingerprint, asyncio.Lock()):
            # Held from here on: room that is made for another fingerprint meanwhile must not take this one's.
            users = self._users.setdefault(fingerprint, {})
            users[user] = Origin.EMPTY
            try:
                origin, note = await self._filled(fingerprint, shelf)
                users[user] = origin
                path = await asyncio.to_thread(self._disk.files, fingerprint)
                self._disk.touch(fingerprint, self._options.wall())
            except BaseException:
                self._let_go(fingerprint, user)
                raise
        state = await asyncio.to_thread(self._state, fingerprint)
        if note:
            _log.warning("engine cache %s: %s", fingerprint[:12], note)
        return Prepared(path, origin, state.manifest.total_bytes if state else 0, self._ms_since(began), note)

    async def capture(self, fingerprint: str, shelf: Shelf | None = None) -> Captured:
        """Take up what a good start has left, and send it to ``shelf`` when it is new there.

        The engine may serve meanwhile. What cannot be kept or sent is said in ``note``.
        """
        began = self._options.monotonic()
        async with self._capturing.setdefault(fingerprint, asyncio.Lock()):
            try:
                captured = await self._capture(fingerprint, shelf)
            except _FAILURES as error:
                captured = Captured(note=_words(error))
        if captured.note:
            self._tell_once(f"engine cache {fingerprint[:12]} was not shared: {captured.note}")
        return replace(captured, ms=self._ms_since(began))

    async def validated(self, fingerprint: str, user: str, *, ok: bool) -> str:
        """Tell how the start of ``user`` with its prepared cache has ended; return in words what follows, or nothing.

        A start that fails with content sets the content aside, and the next one goes without: when that succeeds the
        content was bad and is never used again; when that fails as well it was not, and comes back. Only for what may be
        the engine's own fault: not for a start that was cancelled.
        """
        async with self._moving.setdefault(fingerprint, asyncio.Lock()):
            origin = self._users.get(fingerprint, {}).get(user)
            if not ok:
                self._let_go(fingerprint, user)
            if origin is None:
                return ""
            try:
                return await uninterrupted(partial(self._judge, fingerprint, origin, ok=ok))
            except OSError as error:
                return f"the engine cache could not be set aside: {error}"

    async def release(self, fingerprint: str, user: str) -> None:
        """Tell that ``user`` does not use its cache any more; removes what is beyond the cap."""
        async with self._moving.setdefault(fingerprint, asyncio.Lock()):
            if self._let_go(fingerprint, user):
                with contextlib.suppress(OSError):
                    await uninterrupted(partial(self._disk.make_room, self._options.cap_bytes, 0, frozenset(self._users)))

    def refusals(self, fingerprint: str) -> tuple[str, ...]:
        """Return in words which packed caches were refused, oldest first."""
        return tuple(refusal.reason for refusal in self._disk.refused(fingerprint))

    # ---- before a start ----------------------------------------------------------------------------------------

    async def _filled(self, fingerprint: str, shelf: Shelf | None) -> tuple[Origin, str]:
        """Fill the cache if there is something to fill it with; return from where, and what did not work."""
        notes: list[str] = []
        suspected = await asyncio.to_thread(self._disk.suspected, fingerprint)
        if suspected:
            notes.append("the last start with its content failed: this one goes without")
        try:
            if await uninterrupted(partial(self._local, fingerprint)) is not Content.NOTHING:
                return Origin.LOCAL, "; ".join(notes)
        except ValueError as error:
            notes.append(f"what lay here is not used: {error}")
            await uninterrupted(partial(self._disk.discard, fingerprint))
        origin = Origin.EMPTY
        if shelf is not None and self._key is not None and not suspected:
            try:
                async with asyncio.timeout(self._options.seed_limit_s):
                    origin = await self._seed(fingerprint, shelf, self._key)
            except _FAILURES as error:
                notes.append(f"none was brought from {shelf.uri}: {_words(error)}")
        return origin, "; ".join(notes)

    def _local(self, fingerprint: str) -> Content:
        """Look at every byte once in a process's life: a crash of the machine may have torn files."""
        if fingerprint in self._checked and self._disk.state(fingerprint) is not None:
            return Content.WHOLE
        found = self._disk.content(fingerprint)
        self._checked.add(fingerprint)
        return found

    async def _seed(self, fingerprint: str, shelf: Shelf, key: bytes) -> Origin:
        """Bring, judge and unpack; EMPTY where the store has none. Raises RefusedCache, ArtifactError, OSError."""
        if self._options.monotonic() < self._silent_until.get(shelf.uri, 0.0):
            return Origin.EMPTY
        packed, stop = self._disk.temporary(), threading.Event()
        try:
            if not await self._brought(shelf, fingerprint, packed):
                return Origin.EMPTY
            await uninterrupted(partial(self._take_in, fingerprint, shelf, packed, key, stop), on_cancel=stop.set)
        except RefusedCache as error:
            if error.identity:
                await asyncio.to_thread(self._disk.refuse, fingerprint, error.identity, error.message)
            raise
        finally:
            packed.unlink(missing_ok=True)
        return Origin.STORE

    async def _brought(self, shelf: Shelf, fingerprint: str, packed: Path) -> bool:
        try:
            return await bring(shelf, fingerprint, packed, self._options.cap_bytes)
        except RefusedCache:
            raise
        except _FAILURES:
            self._silent_until[shelf.uri] = self._options.monotonic() + _ASK_AGAIN_S
            raise

    def _take_in(self, fingerprint: str, shelf: Shelf, packed: Path, key: bytes, stop: threading.Event) -> None:
        identity = _identity(packed)
        for refusal in self._disk.refused(fingerprint):
            if refusal.identity == identity:
                raise RefusedCache(refusal.reason, identity)
        lacking = self._disk.make_room(self._options.cap_bytes, packed.stat().st_size, frozenset(self._users))
        if lacking:
            raise DiskFull(lacking)
        folder = self._disk.temporary()
        folder.mkdir(mode=0o700)
        try:
            manifest = unpack(packed, folder / "files", fingerprint, key, self._options.cap_bytes, stop)
            shared = Shared(uri=shelf.place(fingerprint), identity=identity, bytes=manifest.total_bytes)
            times = times_of(folder / "files", manifest)
            write_state(folder, CacheState(manifest=manifest, times=times, shared=shared))
            self._disk.adopt(folder, fingerprint)
            self._checked.add(fingerprint)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # ---- after a start -----------------------------------------------------------------------------------------

    async def _capture(self, fingerprint: str, shelf: Shelf | None) -> Captured:
        before = await asyncio.to_thread(self._state, fingerprint)
        manifest, times = await uninterrupted(
            partial(survey, self._disk.files(fingerprint), fingerprint, self._options.version)
        )
        if not manifest.files:
            return Captured()
        changed = before is None or before.manifest.files != manifest.files
        state = CacheState(manifest=manifest, times=times, shared=before.shared if before is not None else None)
        if changed:
            await uninterrupted(partial(self._disk.note, fingerprint, state))
        note = ""
        place = shelf.place(fingerprint) if shelf is not None else ""
        if shelf is not None and self._key is not None and _worth_sending(state, place):
            try:
                async with asyncio.timeout(SEND_LIMIT_S):
                    shared = await self._share(fingerprint, state, shelf, self._key)
                state = state.model_copy(update={"shared": shared})
                await uninterrupted(partial(self._disk.note, fingerprint, state))
            except _FAILURES as error:
                note = f"not stored at {shelf.uri}: {_words(error)}"
        await uninterrupted(partial(self._disk.make_room, self._options.cap_bytes, 0, frozenset(self._users)))
        known = not note and state.shared is not None and state.shared.uri == place
        return Captured(len(manifest.files), manifest.total_bytes, changed, known, note=note)

    async def _share(self, fingerprint: str, state: CacheState, shelf: Shelf, key: bytes) -> Shared:
        manifest, place = state.manifest, shelf.place(fingerprint)
        if manifest.total_bytes > self._options.cap_bytes:
            raise RefusedCache(f"it holds {manifest.total_bytes} bytes, more than the cap of {self._options.cap_bytes}")
        packed, stop = self._disk.temporary(), threading.Event()
        try:
            identity = await uninterrupted(
                partial(pack, self._disk.files(fingerprint), manifest, packed, key, stop), on_cancel=stop.set
            )
            ours = Shared(uri=place, identity=identity, bytes=manifest.total_bytes)
            grown = state.shared is not None and state.shared.uri == place
            if await send(shelf, fingerprint, packed, overwrite=grown):
                return ours
            # The first good one stays, unless it is one that this node knows to be bad.
            there = await peek(shelf, fingerprint)
            if any(refusal.identity == there for refusal in self._disk.refused(fingerprint)):
                await send(shelf, fingerprint, packed, overwrite=True)
                return ours
            return ours.model_copy(update={"identity": there})
        finally:
            packed.unlink(missing_ok=True)

    # ---- small things ------------------------------------------------------------------------------------------

    def _judge(self, fingerprint: str, origin: Origin, *, ok: bool) -> str:
        suspected, held = self._disk.suspected(fingerprint), bool(self._users.get(fingerprint))
        if ok:
            if not suspected:
                return ""
            self._disk.convict(fingerprint, "a start with it failed, and one without it succeeded")
            return "its former content was bad and is never used again: a start without it succeeded"
        if held or (origin is Origin.EMPTY and not suspected):
            return ""
        if suspected:
            self._disk.acquit(fingerprint)
            return "a start without its content failed as well: the content is used again"
        self._disk.suspect(fingerprint)
        return f"its content ({origin.value}) is set aside: the next start goes without"

    def _state(self, fingerprint: str) -> CacheState | None:
        try:
            return self._disk.state(fingerprint)
        except (OSError, ValueError):
            return None

    def _let_go(self, fingerprint: str, user: str) -> bool:
        users = self._users.get(fingerprint, {})
        held = users.pop(user, None) is not None
        if not users:
            self._users.pop(fingerprint, None)
        return held

    def _ms_since(self, began: float) -> float:
        return (self._options.monotonic() - began) * 1000

    def _tell_once(self, words: str) -> None:
        if words not in self._told:
            self._told.add(words)
            _log.warning("%s", words)


def _worth_sending(state: CacheState, place: str) -> bool:
    shared = state.shared
    return shared is None or shared.uri != place or state.manifest.total_bytes > shared.bytes * _GROWN


def _identity(packed: Path) -> str:
    with packed.open("rb") as file:
        return identity_of(file.read(HEAD_BYTES))


def _words(error: BaseException) -> str:
    return "it took too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
