"""The kernel's page cache, file by file: read in ahead of need, count, give back. Blocking: call from a thread."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

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


def read_in(paths: Iterable[Path], stop: threading.Event, limit: int) -> int:
    """Read the files, in order, until ``stop`` is set or ``limit`` bytes are read; return the bytes read.

    The limit keeps an artifact larger than memory from pushing out its own beginning.
    """
    buffer = bytearray(_BLOCK)
    done = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, min(_WINDOW, limit), os.POSIX_FADV_WILLNEED)
            while done < limit and not stop.is_set() and (got := file.readinto(buffer)):
                done += got
    return done


def resident_bytes(paths: Iterable[Path]) -> int:
    """Return how many bytes of the files are in memory, by mincore(2), in whole pages but never above their sizes."""
    return sum(_resident(path) for path in paths)


def give_back(paths: Iterable[Path]) -> None:
    """Ask the kernel to drop the files' clean pages that no process maps, by posix_fadvise(2)."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _resident(path: Path) -> int:
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        pages = sum(_pages(file.fileno(), start, min(_WINDOW, size - start)) for start in range(0, size, _WINDOW))
    return min(size, pages * mmap.PAGESIZE)


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
