"""How an artifact's bytes come to lie in a temporary folder: fetched, and unpacked where they are an archive."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from standby.artifacts import volume
from standby.artifacts.fetch import FetchOptions, OnFile, Progress
from standby.artifacts.unpack import unpack
from standby.domain.model import Archive, Manifest
from standby.warm_pool.cache_temporary import TemporaryFolder

OnPath = Callable[[Path], None]
"""Called in the event loop with a file that is whole and verified, where it lies now.

Open it at once or link to it: its folder is renamed when the artifact is complete.
"""


class Fetch(Protocol):
    """The shape of standby.artifacts.fetch.fetch."""

    def __call__(
        self, manifest: Manifest, into: Path, progress: Progress, *, on_file: OnFile | None = None, options: FetchOptions = ...
    ) -> Awaitable[Mapping[str, str]]:
        """Return path → SHA-256 of every object, which then lie below ``into``."""


def work_bytes(manifest: Manifest) -> int:
    """Bytes that progress counts: those of the objects, and those of an archive's members once more."""
    return manifest.total_bytes + (manifest.archive.total_bytes if manifest.archive is not None else 0)


def bytes_to_write(manifest: Manifest, temporary: TemporaryFolder) -> int:
    """Bytes that the disk has to take until the artifact is complete; what an earlier attempt has brought is there."""
    return max(0, work_bytes(manifest) - volume.allocated_bytes(temporary.path))


async def arrive(
    fetch: Fetch, options: FetchOptions, manifest: Manifest, temporary: TemporaryFolder, report: Progress, on_path: OnPath
) -> Mapping[str, str]:
    """Bring the artifact's files below ``temporary.files`` and return path → SHA-256 of each.

    Raises what standby.artifacts.fetch and standby.artifacts.unpack raise.
    """
    options = replace(options, journal=temporary.journal)
    total = work_bytes(manifest)

    def progress(done: int, _objects: int) -> None:
        report(done, total)

    def arrived(path: str) -> None:
        on_path(temporary.files / path)

    if manifest.archive is None:
        return await fetch(manifest, temporary.files, progress, on_file=arrived, options=options)
    await fetch(manifest, temporary.packed, progress, options=options)
    return await _unpacked(manifest, manifest.archive, temporary, report, on_path)


async def _unpacked(
    manifest: Manifest, archive: Archive, temporary: TemporaryFolder, report: Progress, on_path: OnPath
) -> Mapping[str, str]:
    done = manifest.total_bytes

    def unpacked(path: str, size: int) -> None:
        nonlocal done
        done += size
        report(done, work_bytes(manifest))
        on_path(temporary.files / path)

    # An earlier attempt that ended in the middle of this.
    await asyncio.to_thread(shutil.rmtree, temporary.files, ignore_errors=True)
    return await unpack(temporary.packed / manifest.objects[0].path, archive, temporary.files, on_file=unpacked)
