"""What downloads and archives do on a disk. Blocking: call from a thread."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from typing_extensions import Buffer

from standby.artifacts.location import checked_path
from standby.domain.errors import DiskFull, IncompleteDownload, UnsupportedArtifact

DISK_MARGIN: Final = 16 << 20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_PREALLOCATION: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_NO_CLONE: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.EXDEV, errno.EPERM, errno.ETXTBSY})
# ioctl_ficlone(2): _IOW(0x94, 9, int)
_FICLONE: Final = 0x40049409
_BLOCK: Final = 1 << 20
_STAT_BLOCK: Final = 512


class Hasher(Protocol):
    """A running hash of hashlib."""

    def update(self, data: Buffer, /) -> None:
        """Take more bytes."""

    def hexdigest(self) -> str:
        """Return the hash of all bytes so far."""


def is_full(error: OSError) -> bool:
    """True when the disk, the quota or the largest file allowed is full."""
    return error.errno in _FULL


def disk_full(folder: Path, needed: int, error: OSError | None = None) -> DiskFull:
    """Return the error that names the folder, the bytes needed and the bytes there."""
    cause = f" ({error.strerror})" if error is not None and error.strerror else ""
    return DiskFull(
        f"disk full: {needed} bytes needed below {folder}, {free_bytes(folder)} free{cause}",
        remedy="free space on that disk or give the artifact cache a larger one",
    )


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written on the volume of ``folder``."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def check_paths(paths: Iterable[str]) -> None:
    """Raise UnsupportedArtifact unless every path stays inside its folder and all can lie beside each other."""
    names = [checked_path(path) for path in paths]
    folders = {str(parent) for name in names for parent in Path(name).parents}
    if len(set(names)) != len(names) or folders & set(names):
        raise UnsupportedArtifact("two objects would have the same path on disk", remedy="rename one and register again")


def missing_bytes(path: Path, size: int) -> int:
    """Bytes that the disk does not hold for ``path`` yet."""
    try:
        return max(0, size - path.stat().st_blocks * _STAT_BLOCK)
    except FileNotFoundError:
        return size


def allocated_bytes(folder: Path) -> int:
    """Bytes that the disk holds for everything below ``folder``; what vanishes meanwhile counts as nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_blocks * _STAT_BLOCK
    return total


def create(path: Path, size: int) -> None:
    """Create a file in its full size, so that a full disk shows now. One that is there already stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError), path.open("xb") as file:
        if size == 0:
            return
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in _NO_PREALLOCATION:
                raise
            file.truncate(size)


def clone(source: Path, target: Path) -> os.stat_result | None:
    """Let ``target`` share the bytes of ``source`` until one of them is written; None when the disk cannot do that.

    Never a hard link: its owner could rewrite the file in place, under an engine that maps it. Returns what the cloned
    file was *after* it was cloned.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb", buffering=0) as origin:
        try:
            with target.open("xb", buffering=0) as file:
                fcntl.ioctl(file.fileno(), _FICLONE, origin.fileno())
        except OSError as error:
            target.unlink(missing_ok=True)
            if error.errno not in _NO_CLONE:
                raise
            return None
        return os.fstat(origin.fileno())


def write_at(path: Path, content: Buffer, start: int) -> int:
    """Write ``content`` and return its bytes; the file must exist.

    It never comes into being here: after a cancelled download its folder is gone, and it stays gone.
    """
    view = memoryview(content)
    with path.open("r+b", buffering=0) as file:
        written = 0
        while written < view.nbytes:
            written += os.pwrite(file.fileno(), view[written:], start + written)
    return written


def feed(hasher: Hasher, path: Path, start: int, length: int) -> None:
    """Hash what the kernel holds for the file, not what arrived: a write that went wrong is found too."""
    buffer = memoryview(bytearray(min(length, _BLOCK)))
    with path.open("rb", buffering=0) as file:
        done = 0
        while done < length:
            got = os.preadv(file.fileno(), [buffer[: length - done]], start + done)
            if got == 0:
                raise IncompleteDownload(f"{path} ends after {start + done} bytes", remedy="retry the download")
            hasher.update(buffer[:got])
            done += got


class Crc:
    """CRC-32 in the shape of a hash: finds accidents, and costs a tenth of a cryptographic one."""

    def __init__(self) -> None:
        self.value = 0

    def update(self, data: Buffer, /) -> None:
        """Take more bytes."""
        self.value = zlib.crc32(data, self.value)

    def hexdigest(self) -> str:
        """Return the checksum in hex."""
        return f"{self.value:08x}"


def flush(path: Path) -> None:
    """Make a file's bytes durable."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make the names inside ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folders(root: Path) -> None:
    """Make all names below ``root`` durable, the deepest first."""
    for folder, _, _ in os.walk(root, topdown=False):
        flush_folder(Path(folder))


def write_note(path: Path, content: bytes) -> None:
    """Create a small file, durable when this returns."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def empty(folder: Path) -> None:
    """Remove everything inside ``folder``, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
