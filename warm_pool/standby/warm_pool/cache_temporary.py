"""Folders and locks of the artifact cache that outlive nobody: the kernel or the next sweep takes them back.

Blocking: call from a thread.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from functools import cache
from pathlib import Path
from typing import Final

import psutil

from standby.artifacts.fetch import may_pass
from standby.artifacts.journal import read_journal

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class FileLock:
    """A lock on a file that the kernel gives back when its holder dies, however it dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path, *, shared: bool, wait: bool) -> FileLock | None:
        """Return the lock on the file, which is created if need be; None when it is taken and ``wait`` is false."""
        return cls._locked(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), shared=shared, wait=wait)

    @classmethod
    def take_folder(cls, path: Path) -> FileLock | None:
        """Return the lock on a folder, for us alone; None when it is taken. Raises OSError when it is not there."""
        return cls._locked(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), shared=False, wait=False)

    @classmethod
    def _locked(cls, descriptor: int, *, shared: bool, wait: bool) -> FileLock | None:
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

    close = release


class TemporaryFolder:
    """A folder that exists inside a ``with`` block, unless it was renamed away; locked as long, so that none sweeps it.

    ``lock`` comes with a folder that is taken over. When the block ends with a failure that may pass, what a download has
    brought stays for the next attempt, under a name that says so.
    """

    def __init__(self, path: Path, lock: FileLock | None = None) -> None:
        self.path = path
        self.files = path / "files"
        self.packed = path / "packed"
        self.journal = path / "journal"
        self._lock = lock

    def __enter__(self) -> TemporaryFolder:
        if self._lock is None:
            self.path.mkdir(mode=0o700)
            self._lock = FileLock.take_folder(self.path)
        assert self._lock is not None
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        told = read_journal(self.journal) if error is not None and may_pass(error) else None
        if told is not None and told.chunks:
            self.path.rename(self.path.parent / f"left-{secrets.token_hex(8)}")
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        assert self._lock is not None
        self._lock.release()


@cache
def _boot() -> str:
    return _BOOT_ID.read_text().strip().replace("-", "")[:12]


def owner() -> str:
    """Return the name of this process, told from every other that ever ran here."""
    pid = os.getpid()
    return f"{pid}-{_started(pid)}-{_boot()}"


def _started(pid: int) -> int:
    """Start time of a process in milliseconds, which tells a process from a later one with the same id."""
    return round(psutil.Process(pid).create_time() * 1000)


def claim(folder: Path) -> FileLock | None:
    """Return the lock of a folder whose owner is gone: neither the process that its name tells of runs, nor is it held.

    The lock also protects a download of a process in another container, whose id means nothing here.
    """
    try:
        lock = FileLock.take_folder(folder)
    except OSError:
        return None
    if lock is None or _runs_no_more(folder.name):
        return lock
    lock.release()
    return None


def _runs_no_more(owner: str) -> bool:
    pid, _, rest = owner.partition("-")
    started, _, rest = rest.partition("-")
    boot = rest.partition("-")[0]
    if not (pid.isdigit() and started.isdigit()) or boot != _boot():
        return True
    try:
        return _started(int(pid)) != int(started)
    except psutil.NoSuchProcess:
        return True
