"""Gives a process's own memory back to the machine, and takes it in again. Called inside the engine's process.

Weights are mapped files: their pages can be dropped at any time and read again. Two steps are needed: forgetting the
mapping's pages (MADV_DONTNEED), then the page cache's copy (POSIX_FADV_DONTNEED). Where another process maps the same
file, the kernel keeps the pages that it uses. This pair was chosen over MADV_PAGEOUT, which does silently nothing for
files of another owner and took twice as long (19 ms against 9 ms for 94 MiB).

Key-value cache is anonymous memory: it cannot be dropped, except for blocks that hold only zeros, which the kernel
gives back as zeros when they are next touched. A cache that has seen few tokens is nearly all zeros.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

_MADV_DONTNEED: Final = 4
_MADV_POPULATE_READ: Final = 22  # Linux 5.14
_POPULATE_STEP: Final = 2 * 1024 * 1024
_ZERO_BLOCK: Final = 64 * 1024
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PAGEMAP_ENTRY: Final = 8  # bytes for each page, see the kernel's pagemap documentation
# Heaps of threads are at most 64 MiB (glibc); what is larger is one big allocation, such as a key-value cache.
_BIG_ALLOCATION: Final = 65 * 1024 * 1024

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of ``/proc/self/maps``: bytes from ``start`` to ``end``."""

    start: int
    end: int
    permissions: str
    path: str

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.end - self.start


def own_mappings() -> Iterator[Mapping]:
    """Yield the mappings of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in fields[0].split("-"))
        yield Mapping(start, end, fields[1], fields[5] if len(fields) == 6 else "")


def weights_mappings(files: frozenset[str]) -> tuple[Mapping, ...]:
    """Return the read-only mappings of ``files``; a writable one could hold changes that dropping would lose."""
    return tuple(found for found in own_mappings() if found.path in files and "w" not in found.permissions)


def page_out(files: frozenset[str], *, keep_cached: bool) -> None:
    """Drop the pages of ``files`` from this process and, unless ``keep_cached``, from the page cache.

    Pages that stay in the cache are clean: the kernel takes them as soon as it needs the memory, and until then a wake
    finds them there.
    """
    for mapping in weights_mappings(files):
        _LIBC.madvise(mapping.start, mapping.size, _MADV_DONTNEED)
    for path in () if keep_cached else files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def page_in(files: frozenset[str], interrupted: Callable[[], bool]) -> None:
    """Read the pages of ``files`` into this process in steps of 2 MiB, until done or ``interrupted``.

    Twice as fast as faulting them in one by one, and other threads may serve meanwhile. A kernel that does not know
    the request (before 5.14) leaves it to the faults.
    """
    for mapping in weights_mappings(files):
        for start in range(mapping.start, mapping.end, _POPULATE_STEP):
            refused = _LIBC.madvise(start, min(_POPULATE_STEP, mapping.end - start), _MADV_POPULATE_READ)
            if refused or interrupted():
                return


def drop_zero_blocks() -> int:
    """Give back blocks of big anonymous allocations that hold only zeros; return how many bytes.

    Nobody may write to these allocations meanwhile, or the write is lost: only for an engine that has no work.
    """
    zeros = bytes(_ZERO_BLOCK)
    dropped = 0
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for mapping in own_mappings():
            if mapping.path or not mapping.permissions.startswith("rw-p") or mapping.size < _BIG_ALLOCATION:
                continue
            for start in _touched_blocks(pagemap, mapping):
                if _LIBC.memcmp(start, zeros, _ZERO_BLOCK) == 0:
                    _LIBC.madvise(start, _ZERO_BLOCK, _MADV_DONTNEED)
                    dropped += _ZERO_BLOCK
    return dropped


def _touched_blocks(pagemap: FileIO, mapping: Mapping) -> Iterator[int]:
    """Yield the start of each whole block of which a page is there: looking at the others would bring them in."""
    entries = _ZERO_BLOCK // _PAGE * _PAGEMAP_ENTRY
    pagemap.seek(mapping.start // _PAGE * _PAGEMAP_ENTRY)
    content = pagemap.read(mapping.size // _PAGE * _PAGEMAP_ENTRY)
    untouched = bytes(entries)
    for position in range(0, len(content) - entries + 1, entries):
        if content[position : position + entries] != untouched:
            yield mapping.start + position // _PAGEMAP_ENTRY * _PAGE


def trim_heap() -> None:
    """Give freed heap memory back, where the C library can."""
    if hasattr(_LIBC, "malloc_trim"):
        _LIBC.malloc_trim(0)
