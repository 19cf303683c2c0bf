"""A bare reader of ranges: the yardstick beside our download. Threads, http.client, a mapped file, no retries.

It asks with a signed URL, so that it carries no client library at all.
"""

from __future__ import annotations

import hashlib
import http.client
import mmap
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

PARALLEL: Final = 4
RANGE_BYTES: Final = 16 << 20


def read_bare(url: str, size: int, into: Path, *, finish: bool) -> str:
    """Read the object of ``size`` bytes into the new file ``into``.

    With ``finish`` it is hashed as it arrives and flushed at the end, as a download must be that is believed later; the
    SHA-256 is returned, else "".
    """
    with into.open("xb+") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        with mmap.mmap(file.fileno(), size) as mapped, memoryview(mapped) as view:
            arrived = [threading.Event() for _ in range(0, size, RANGE_BYTES)]
            numbers = iter(range(len(arrived)))
            with ThreadPoolExecutor(PARALLEL + 1) as threads:
                digest = threads.submit(_hash, view, arrived) if finish else None
                for work in [threads.submit(_read, url, view, numbers, arrived) for _ in range(PARALLEL)]:
                    work.result()
                found = digest.result() if digest is not None else ""
        if finish:
            os.fsync(file.fileno())
    return found


def _read(url: str, view: memoryview, numbers: Iterator[int], arrived: list[threading.Event]) -> None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc)
    try:
        for number in numbers:
            start = number * RANGE_BYTES
            part = view[start : start + RANGE_BYTES]
            asked = {"Range": f"bytes={start}-{start + len(part) - 1}"}
            connection.request("GET", f"{parts.path}?{parts.query}", headers=asked)
            answer = connection.getresponse()
            assert answer.status == http.HTTPStatus.PARTIAL_CONTENT, answer.status
            done = 0
            while done < len(part):
                got = answer.readinto(part[done:])
                assert got, f"cut after {done} bytes"
                done += got
            answer.read()
            arrived[number].set()
    finally:
        connection.close()


def _hash(view: memoryview, arrived: list[threading.Event]) -> str:
    sha256 = hashlib.sha256()
    for number, event in enumerate(arrived):
        event.wait()
        sha256.update(view[number * RANGE_BYTES : (number + 1) * RANGE_BYTES])
    return sha256.hexdigest()
