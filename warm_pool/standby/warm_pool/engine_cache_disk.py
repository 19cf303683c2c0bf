"""The engine caches as they lie on the disk of one node. Blocking: call from a thread. One process uses a root.

``<root>/<fingerprint>/files/``  what the engine reads and writes
``<root>/<fingerprint>/state.json``  what it held when it was last captured or seeded; missing: a start was cut short
``<root>/suspects/<fingerprint>/``  set aside after a start that failed with it, until one without it succeeds or fails, too
``<root>/refused/<fingerprint>.json``  packed caches that are never used again
``<root>/tmp/``  packing, unpacking and deletions under way; emptied at each start
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from standby.artifacts.volume import allocated_bytes, free_bytes
from standby.domain.values import Value
from standby.host.files import write_private
from standby.warm_pool.engine_cache_archive import CacheManifest
from standby.warm_pool.eviction import Candidate, Room, plan_eviction

_FINGERPRINT: Final = re.compile(r"[0-9a-f]{64}")
_MOST_REFUSALS: Final = 16


class Shared(Value):
    """A packed cache in a store: its URI, its identity (empty: another node's, not looked at), the bytes of its files."""

    uri: str
    identity: str = ""
    bytes: int


class CacheState(Value):
    """What ``state.json`` holds. ``times``: of each file in nanoseconds, so that what an engine rewrote is known as such."""

    manifest: CacheManifest
    times: Mapping[str, int]
    shared: Shared | None = None
    """Where other nodes find it; None: nowhere that this node knows of."""


class Refusal(Value):
    """One packed cache that is never used again, and why."""

    identity: str
    reason: str


class Refusals(Value):
    """What a file below ``refused/`` holds."""

    refusals: tuple[Refusal, ...] = ()


class Content(StrEnum):
    """What is there for an engine to start from."""

    NOTHING = "nothing"
    WHOLE = "whole"
    UNFINISHED = "unfinished"
    """Files of a start that never came to its capture; engines write each of theirs in one step."""


class EngineCacheFolder:
    """The root folder and its rules."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tmp = root / "tmp"
        self._suspects = root / "suspects"
        self._refused = root / "refused"

    def prepare(self) -> None:
        """Create the folders that are missing, and remove what an earlier process left half done."""
        shutil.rmtree(self.tmp, ignore_errors=True)
        for folder in (self.tmp, self._suspects, self._refused):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def files(self, fingerprint: str) -> Path:
        """Return the folder for the engine, which is made if need be."""
        folder = self._of(fingerprint) / "files"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    def temporary(self) -> Path:
        """Return a new path below ``tmp``."""
        return self.tmp / secrets.token_hex(8)

    # ---- what a cache holds ------------------------------------------------------------------------------------

    def state(self, fingerprint: str) -> CacheState | None:
        """Return what was noted last; None when nothing was. Raises ValueError when the note is of no use."""
        try:
            state = CacheState.model_validate_json((self._of(fingerprint) / "state.json").read_bytes())
        except FileNotFoundError:
            return None
        if state.manifest.fingerprint != fingerprint:
            raise ValueError(f"it is of fingerprint {state.manifest.fingerprint[:12]}")
        return state

    def note(self, fingerprint: str, state: CacheState) -> None:
        """Note what the cache holds now."""
        write_state(self._of(fingerprint), state)

    def content(self, fingerprint: str) -> Content:
        """Return what there is. Raises ValueError when files are not what they were, though nobody wrote them since."""
        files = self._of(fingerprint) / "files"
        try:
            state = self.state(fingerprint)
        except ValidationError as error:
            raise ValueError(f"its state.json is damaged: {str(error).partition(chr(10))[0]}") from None
        if not _holds_files(files):
            return Content.NOTHING
        if state is None:
            return Content.UNFINISHED
        for file in state.manifest.files:
            _check_unchanged(files / file.path, file.size, file.sha256, state.times.get(file.path))
        return Content.WHOLE

    def adopt(self, folder: Path, fingerprint: str) -> None:
        """Give a folder that holds ``files/`` and ``state.json`` its place, in one step; what was there goes."""
        self.discard(fingerprint)
        folder.rename(self._of(fingerprint))

    def discard(self, fingerprint: str) -> None:
        """Remove a cache: out of sight in one step, then delete it."""
        self._remove(self._of(fingerprint))

    # ---- starts that failed ------------------------------------------------------------------------------------

    def suspected(self, fingerprint: str) -> bool:
        """Return whether the last start with the cache failed, and none without it has ended since."""
        return (self._suspects / fingerprint).exists()

    def suspect(self, fingerprint: str) -> None:
        """Set the cache aside."""
        self._of(fingerprint).rename(self._suspects / fingerprint)

    def acquit(self, fingerprint: str) -> None:
        """Put the suspect back in place of what a start without it has made, which failed as well."""
        self.discard(fingerprint)
        (self._suspects / fingerprint).rename(self._of(fingerprint))

    def convict(self, fingerprint: str, reason: str) -> None:
        """Remove the suspect, as a start without it succeeded; where it is known by its identity it never comes back."""
        folder = self._suspects / fingerprint
        with contextlib.suppress(OSError, ValidationError):
            shared = CacheState.model_validate_json((folder / "state.json").read_bytes()).shared
            if shared is not None and shared.identity:
                self.refuse(fingerprint, shared.identity, reason)
        self._remove(folder)

    def refused(self, fingerprint: str) -> tuple[Refusal, ...]:
        """Return the packed caches that are never used again."""
        with contextlib.suppress(OSError, ValidationError):
            return Refusals.model_validate_json((self._refused / f"{fingerprint}.json").read_bytes()).refusals
        return ()

    def refuse(self, fingerprint: str, identity: str, reason: str) -> None:
        """Remember that the packed cache ``identity`` is never used again."""
        others = [refusal for refusal in self.refused(fingerprint) if refusal.identity != identity]
        refusals = Refusals(refusals=(*others, Refusal(identity=identity, reason=reason))[-_MOST_REFUSALS:])
        write_private(self._refused / f"{fingerprint}.json", refusals.model_dump_json(indent=1))

    # ---- room --------------------------------------------------------------------------------------------------

    def touch(self, fingerprint: str, at: float) -> None:
        """Note when the cache was used, for the order in which they go."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._of(fingerprint), (at, at))

    def make_room(self, cap_bytes: int, incoming: int, keep: Collection[str]) -> str:
        """Remove the caches that were used longest ago until ``incoming`` bytes fit; return why they do not, or nothing.

        Those in ``keep`` stay. Suspects count as well, and go like others.
        """
        folders = [path for parent in (self.root, self._suspects) for path in parent.iterdir() if _is_cache(path)]
        candidates = [Candidate(str(path), allocated_bytes(path), path.stat().st_mtime, path.name in keep) for path in folders]
        plan = plan_eviction(candidates, Room(cap_bytes, 0, free_bytes(self.root)), incoming)
        for victim in plan.victims:
            self._remove(Path(victim))
        return "" if plan.fits else plan.reason

    def _of(self, fingerprint: str) -> Path:
        if not _FINGERPRINT.fullmatch(fingerprint):
            raise ValueError(f"{fingerprint[:80]!r} is no fingerprint")
        return self.root / fingerprint

    def _remove(self, folder: Path) -> None:
        grave = self.temporary()
        with contextlib.suppress(FileNotFoundError):
            folder.rename(grave)
            shutil.rmtree(grave, ignore_errors=True)


def write_state(folder: Path, state: CacheState) -> None:
    """Write the ``state.json`` of the cache that lies in ``folder``."""
    write_private(folder / "state.json", state.model_dump_json())


def times_of(files: Path, manifest: CacheManifest) -> dict[str, int]:
    """Return the times of all files of ``manifest``, which nobody else writes now."""
    return {file.path: (files / file.path).stat().st_mtime_ns for file in manifest.files}


def _check_unchanged(path: Path, size: int, sha256: str, time_ns: int | None) -> None:
    """What an engine removed or wrote anew is its own business; what changed without being written is damage."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return
    if state.st_mtime_ns != time_ns:
        return
    if state.st_size == size:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == sha256:
                return
    raise ValueError(f"{path.name} is not what it was, and nobody has written it since")


def _holds_files(folder: Path) -> bool:
    return any(names for _, _, names in os.walk(folder))


def _is_cache(path: Path) -> bool:
    return _FINGERPRINT.fullmatch(path.name) is not None
