"""The artifact cache as it lies on the disk. Blocking: call from a thread.

``<root>/artifacts/<digest>/``  complete artifacts only: ``manifest.json`` and the model below ``files/``
``<root>/tmp/<owner>-<random>/``  downloads and deletions under way, on the same volume
``<root>/locks/<digest>.fetch``  held alone while one process downloads the artifact
``<root>/locks/<digest>.use``  held together by all who use the artifact, alone by the one who evicts it
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import psutil
from pydantic import ValidationError

from standby.artifacts.fetch import flush_folder
from standby.domain.model import Manifest
from standby.domain.values import Value

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class StoredManifest(Value):
    """What ``manifest.json`` holds: the manifest, and the SHA-256 of each file as it was when it arrived."""

    manifest: Manifest
    sha256: Mapping[str, str]


@dataclass(frozen=True)
class StoredArtifact:
    """A complete artifact: its folder and what its ``manifest.json`` says."""

    folder: Path
    stored: StoredManifest
    last_used: float

    @property
    def files(self) -> Path:
        """Folder that the manifest's paths are relative to."""
        return self.folder / "files"

    @property
    def bytes(self) -> int:
        """Bytes of the model's files."""
        return self.stored.manifest.total_bytes

    def paths(self) -> list[Path]:
        """The model's files in the manifest's order."""
        return [self.files / ref.path for ref in self.stored.manifest.objects]


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

    def sweep(self) -> int:
        """Remove the temporary folders whose owners are gone; return how many."""
        swept = 0
        for folder in self.tmp.iterdir():
            if _owner_is_gone(folder):
                shutil.rmtree(folder, ignore_errors=True)
                swept += 1
        return swept

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
            artifact = StoredArtifact(folder, stored, folder.stat().st_mtime)
            sizes_right = all((artifact.files / ref.path).stat().st_size == ref.size for ref in stored.manifest.objects)
        except (OSError, ValidationError):
            return None
        return artifact if sizes_right and stored.manifest.digest == digest else None

    def new_temporary(self) -> TemporaryFolder:
        """Create a folder of our own for a download."""
        return TemporaryFolder(self.tmp / f"{_owner()}-{secrets.token_hex(8)}")

    def publish(self, temporary: TemporaryFolder, stored: StoredManifest) -> StoredArtifact:
        """Make a complete download visible under its digest in one step, durable before and after."""
        for ref in stored.manifest.objects:
            # Engines map these files; nobody may ever write into them again.
            (temporary.path / "files" / ref.path).chmod(0o444)
        note = temporary.path / "manifest.json"
        with note.open("xb") as file:
            file.write(stored.model_dump_json(indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        flush_folder(temporary.path)
        folder = self.artifacts / stored.manifest.digest
        temporary.path.rename(folder)
        flush_folder(self.artifacts)
        return StoredArtifact(folder, stored, folder.stat().st_mtime)

    def withdraw(self, digest: str, *, force: bool = False) -> bool:
        """Remove an artifact: out of sight in one step, then delete it. False when it is in use, unless ``force``.

        A running engine that maps the files keeps them until it ends.
        """
        lock = self.try_lock(digest, "use")
        if lock is None and not force:
            return False
        with self.new_temporary() as grave:
            try:
                with contextlib.suppress(FileNotFoundError):
                    (self.artifacts / digest).rename(grave.path / "removed")
                    flush_folder(self.artifacts)
            finally:
                # Before the deletion, which may take long: whoever wants to pin meanwhile waits for this lock.
                if lock is not None:
                    lock.release()
        return True

    def touch(self, digest: str, at: float) -> None:
        """Note on the disk when the artifact was used, for the order after a restart."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.artifacts / digest, (at, at))

    def disk_free(self) -> int:
        """Bytes that may still be written on the root's volume."""
        state = os.statvfs(self.root)
        return state.f_bavail * state.f_frsize

    def try_lock(self, digest: str, purpose: str, *, shared: bool = False) -> FileLock | None:
        """Take the lock of ``digest`` for ``purpose`` (fetch or use); None when another process holds it."""
        return FileLock.take(self.locks / f"{digest}.{purpose}", shared=shared, wait=False)

    def lock_use(self, digest: str) -> FileLock:
        """Take the shared lock of a user; waits only as long as an eviction takes to rename one folder."""
        lock = FileLock.take(self.locks / f"{digest}.use", shared=True, wait=True)
        assert lock is not None
        return lock


class FileLock:
    """A lock on a file that the kernel gives back when its holder dies, however it dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, *, shared: bool, wait: bool) -> FileLock | None:
        """Return the lock, or None when it is taken and ``wait`` is false. A folder can be locked as well."""
        flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)


class TemporaryFolder:
    """A folder that exists inside a ``with`` block, unless it was renamed away; locked as long, so that none sweeps it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> TemporaryFolder:
        self.path.mkdir(mode=0o700)
        lock = FileLock.take(self.path, shared=False, wait=False)
        assert lock is not None
        self._lock = lock
        return self

    def __exit__(self, *_exc: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


@cache
def _boot() -> str:
    return _BOOT_ID.read_text().strip().replace("-", "")[:12]


def _owner() -> str:
    pid = os.getpid()
    return f"{pid}-{_started(pid)}-{_boot()}"


def _started(pid: int) -> int:
    """Start time of a process in milliseconds, which tells a process from a later one with the same id."""
    return round(psutil.Process(pid).create_time() * 1000)


def _owner_is_gone(folder: Path) -> bool:
    """True when neither the process that the name tells of runs, nor anyone holds the folder's lock.

    The lock also protects a download of a process in another container, whose id means nothing here.
    """
    try:
        lock = FileLock.take(folder, shared=False, wait=False)
    except OSError:
        return False
    if lock is None:
        return False
    lock.release()
    pid, _, rest = folder.name.partition("-")
    started, _, rest = rest.partition("-")
    boot = rest.partition("-")[0]
    if not (pid.isdigit() and started.isdigit()) or boot != _boot():
        return True
    try:
        return _started(int(pid)) != int(started)
    except psutil.NoSuchProcess:
        return True
