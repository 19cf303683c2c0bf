"""The kernel's page cache, file by file: read in ahead of need, count, give back. Blocking: call from a thread."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from standby.artifacts.pace import Pacer

_BLOCK: Final = 4 << 20
_WINDOW: Final = 256 << 20
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_PROT_NONE: Final = 0
# Only the lowest bit of each byte that mincore writes has a meaning.
_LOWEST_BIT: Final = bytes(value & 1 for value in range(256))
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
# cachestat(2), since Linux 6.5; the same number on every architecture, and no wrapper in the C library yet.
_CACHESTAT: Final = 451
_NO_CACHESTAT: Final = frozenset({errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP})


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted"))


def read_in(paths: Iterable[Path], stop: threading.Event, pacer: Pacer) -> int:
    """Read the files, in order, until ``stop`` is set; return the bytes read."""
    buffer = memoryview(bytearray(pacer.portion(_BLOCK, 1)))
    done = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            if pacer.bytes_per_s is None:
                os.posix_fadvise(file.fileno(), 0, _WINDOW, os.POSIX_FADV_WILLNEED)
            while not stop.wait(pacer.reserve(len(buffer))) and (got := file.readinto(buffer)):
                done += got
    return done


def resident_bytes(paths: Iterable[Path]) -> int:
    """Return how many bytes of the files are in memory, in whole pages but never above their sizes."""
    return sum(_resident(path) for path in paths)


def give_back(paths: Iterable[Path]) -> None:
    """Ask the kernel to drop the files' clean pages that no process maps, by posix_fadvise(2)."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _resident(path: Path) -> int:
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        pages = cached_pages(file.fileno())
        if pages is None:
            pages = mapped_pages(file.fileno(), size)
    return min(size, pages * mmap.PAGESIZE)


def cached_pages(descriptor: int) -> int | None:
    """Count the file's pages in memory by cachestat(2), which does not look at each; None where it is not to be had."""
    counts = _Counts()
    everything = _Range(0, 0)
    if _LIBC.syscall(_CACHESTAT, descriptor, ctypes.byref(everything), ctypes.byref(counts), 0) == 0:
        return int(counts.cached)
    if ctypes.get_errno() in _NO_CACHESTAT:
        return None
    raise OSError(ctypes.get_errno(), "cachestat failed")


def mapped_pages(descriptor: int, size: int) -> int:
    """Count the file's pages in memory by mincore(2)."""
    return sum(_pages(descriptor, start, min(_WINDOW, size - start)) for start in range(0, size, _WINDOW))


def _pages(descriptor: int, start: int, length: int) -> int:
    """Count resident pages of one window; PROT_NONE, so that the mapping itself can never bring one in."""
    address = _LIBC.mmap(None, length, _PROT_NONE, mmap.MAP_SHARED, descriptor, start)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "mmap failed")
    try:
        states = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        if _LIBC.mincore(address, length, states) != 0:
            raise OSError(ctypes.get_errno(), "mincore failed")
        return states.raw.translate(_LOWEST_BIT).count(1)
    finally:
        _LIBC.munmap(address, length)
