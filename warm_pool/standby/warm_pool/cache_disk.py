"""The artifact cache as it lies on the disk. Blocking: call from a thread.

``<root>/artifacts/<digest>/``  complete artifacts only: ``manifest.json``, the model below ``files/``, and ``pin.json``
    while an operator keeps it
``<root>/tmp/<owner>-<random>/``  downloads and deletions under way, on the same volume; an archive lies below ``packed/``
``<root>/tmp/left-<random>/``  what an interrupted download has brought, for the next attempt; see standby.artifacts.journal
``<root>/locks/<digest>.fetch``  held alone while one process downloads the artifact
``<root>/locks/<digest>.use``  held together by all who use the artifact, alone by the one who evicts it
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from standby.artifacts.journal import read_journal
from standby.artifacts.volume import allocated_bytes, flush_folder, free_bytes, write_note
from standby.domain.model import Manifest
from standby.domain.values import Value
from standby.warm_pool.cache_temporary import FileLock, TemporaryFolder, claim, owner

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_KEEP_LEFT_S: Final = 86_400.0
_PIN: Final = "pin.json"


class StoredManifest(Value):
    """What ``manifest.json`` holds: the manifest, and the SHA-256 of each file as it was when it arrived."""

    manifest: Manifest
    sha256: Mapping[str, str]


class OperatorPin(Value):
    """What ``pin.json`` holds: who keeps the artifact, since when (seconds since the epoch)."""

    by: str
    at: float


@dataclass(frozen=True)
class StoredArtifact:
    """A complete artifact: its folder, what its ``manifest.json`` and its ``pin.json`` say."""

    folder: Path
    stored: StoredManifest
    last_used: float
    pin: OperatorPin | None = None

    @property
    def files(self) -> Path:
        """Folder that the manifest's paths are relative to."""
        return self.folder / "files"

    @property
    def bytes(self) -> int:
        """Bytes of the model's files."""
        return sum(item.size for item in self.stored.manifest.files)

    def paths(self) -> list[Path]:
        """The model's files in the manifest's order."""
        return [self.files / item.path for item in self.stored.manifest.files]


class CacheFolder:
    """The root folder of a cache and its rules. Several processes may use one root at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.artifacts = root / "artifacts"
        self.tmp = root / "tmp"
        self.locks = root / "locks"

    def prepare(self) -> None:
        """Create the folders that are missing."""
        for folder in (self.artifacts, self.tmp, self.locks):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def sweep(self, *, resumable_too: bool = False) -> int:
        """Remove the temporary folders whose owners are gone; return how many.

        What an interrupted download has brought stays for a day, unless ``resumable_too``.
        """
        swept = 0
        for folder in self.tmp.iterdir():
            lock = claim(folder)
            if lock is None:
                continue
            # Held while the folder goes: nobody may take over what is being removed.
            with contextlib.closing(lock):
                if resumable_too or not self._is_resumable(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                    swept += 1
        return swept

    def left_bytes(self) -> int:
        """Bytes on the disk that interrupted downloads have left."""
        total = 0
        for folder in self.tmp.iterdir():
            lock = claim(folder)
            if lock is not None:
                with contextlib.closing(lock):
                    total += allocated_bytes(folder)
        return total

    def _is_resumable(self, folder: Path) -> bool:
        told = read_journal(folder / "journal")
        if told is None or not told.chunks or self.exists(told.heading.manifest.digest):
            return False
        return time.time() - (folder / "journal").stat().st_mtime < _KEEP_LEFT_S

    def digests(self) -> list[str]:
        """Return the names of all that lies among the artifacts, whole or not."""
        return [entry.name for entry in self.artifacts.iterdir()]

    def exists(self, digest: str) -> bool:
        """True when something lies under the artifact's final name."""
        return (self.artifacts / digest).exists()

    def load(self, digest: str) -> StoredArtifact | None:
        """Return the artifact if it is there and every file has its size; None otherwise."""
        folder = self.artifacts / digest
        if not _DIGEST.fullmatch(digest):
            return None
        try:
            stored = StoredManifest.model_validate_json((folder / "manifest.json").read_bytes())
            artifact = StoredArtifact(folder, stored, folder.stat().st_mtime, self._pin_of(digest))
            sizes_right = all((artifact.files / item.path).stat().st_size == item.size for item in stored.manifest.files)
        except (OSError, ValidationError):
            return None
        return artifact if sizes_right and stored.manifest.digest == digest else None

    def new_temporary(self) -> TemporaryFolder:
        """Create a folder of our own."""
        return TemporaryFolder(self._new_name())

    def temporary_for(self, digest: str) -> TemporaryFolder:
        """Return the folder of an interrupted download of ``digest``, now ours, or a new one.

        Whoever calls holds the artifact's fetch lock, so that no two take over the same folder.
        """
        for folder in self.tmp.iterdir():
            lock = claim(folder)
            if lock is None:
                continue
            told = read_journal(folder / "journal")
            if told is not None and told.heading.manifest.digest == digest:
                ours = self._new_name()
                with contextlib.suppress(FileNotFoundError):
                    folder.rename(ours)
                    return TemporaryFolder(ours, lock)
            lock.release()
        return self.new_temporary()

    def _new_name(self) -> Path:
        return self.tmp / f"{owner()}-{secrets.token_hex(8)}"

    def publish(self, temporary: TemporaryFolder, stored: StoredManifest) -> StoredArtifact:
        """Make a complete download visible under its digest in one step, durable before and after."""
        for item in stored.manifest.files:
            # Engines map these files; nobody may ever write into them again.
            (temporary.files / item.path).chmod(0o444)
        temporary.journal.unlink(missing_ok=True)
        shutil.rmtree(temporary.packed, ignore_errors=True)
        write_note(temporary.path / "manifest.json", stored.model_dump_json(indent=1).encode())
        flush_folder(temporary.path)
        folder = self.artifacts / stored.manifest.digest
        temporary.path.rename(folder)
        flush_folder(self.artifacts)
        return StoredArtifact(folder, stored, folder.stat().st_mtime)

    def withdraw(self, digest: str, *, force: bool = False, pinned_too: bool = False) -> bool:
        """Remove an artifact: out of sight in one step, then delete it.

        False when somebody uses it, unless ``force``; False when an operator keeps it, unless ``pinned_too``. A running
        engine that maps the files keeps them until it ends.
        """
        lock = self.try_lock(digest, "use")
        if lock is None and not force:
            return False
        with self.new_temporary() as grave:
            try:
                if not pinned_too and (self.artifacts / digest / _PIN).exists():
                    return False
                with contextlib.suppress(FileNotFoundError):
                    (self.artifacts / digest).rename(grave.path / "removed")
                    flush_folder(self.artifacts)
            finally:
                # Before the deletion, which may take long: whoever wants to pin meanwhile waits for this lock.
                if lock is not None:
                    lock.release()
        return True

    def keep(self, digest: str, pin: OperatorPin) -> bool:
        """Write an operator's pin, durable when this returns; False when the artifact is not there."""
        folder = self.artifacts / digest
        # As a user: an eviction that has begun is over first, and none begins meanwhile.
        with contextlib.closing(self.lock_use(digest)), self.new_temporary() as temporary:
            if not folder.exists():
                return False
            write_note(temporary.path / _PIN, pin.model_dump_json().encode())
            with _unchanged_time(folder):
                (temporary.path / _PIN).rename(folder / _PIN)
            flush_folder(folder)
        return True

    def let_go(self, digest: str) -> None:
        """Remove an operator's pin, durable when this returns."""
        folder = self.artifacts / digest
        with contextlib.suppress(FileNotFoundError):
            with _unchanged_time(folder):
                (folder / _PIN).unlink()
            flush_folder(folder)

    def _pin_of(self, digest: str) -> OperatorPin | None:
        try:
            return OperatorPin.model_validate_json((self.artifacts / digest / _PIN).read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            # Somebody pinned it: to forget that because the note is damaged could cost the artifact.
            return OperatorPin(by="unreadable pin.json", at=0.0)

    def touch(self, digest: str, at: float) -> None:
        """Note on the disk when the artifact was used, for the order after a restart."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.artifacts / digest, (at, at))

    def disk_free(self) -> int:
        """Bytes that may still be written on the root's volume."""
        return free_bytes(self.root)

    def try_lock(self, digest: str, purpose: str, *, shared: bool = False) -> FileLock | None:
        """Take the lock of ``digest`` for ``purpose`` (fetch or use); None when another process holds it."""
        return FileLock.take(self.locks / f"{digest}.{purpose}", shared=shared, wait=False)

    def lock_use(self, digest: str) -> FileLock:
        """Take the shared lock of a user; waits only as long as an eviction takes to rename one folder."""
        lock = FileLock.take(self.locks / f"{digest}.use", shared=True, wait=True)
        assert lock is not None
        return lock


@contextlib.contextmanager
def _unchanged_time(folder: Path) -> Iterator[None]:
    """Put back the folder's time, which tells when the artifact was used."""
    state = folder.stat()
    yield
    os.utime(folder, ns=(state.st_atime_ns, state.st_mtime_ns))
