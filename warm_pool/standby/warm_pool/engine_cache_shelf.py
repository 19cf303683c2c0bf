"""Where packed engine caches lie for all nodes: a place of the operator's, or beside the model's own artifacts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from standby.artifacts import volume
from standby.artifacts.credentials import Credentials
from standby.artifacts.layout import OURS
from standby.artifacts.location import parse_file, parse_s3, scheme_of
from standby.artifacts.sources import open_source
from standby.artifacts.store_put import open_sink
from standby.domain.errors import InvalidInput
from standby.domain.model import Manifest, ObjectRef, SourceOptions
from standby.warm_pool.engine_cache_archive import HEAD_BYTES, RefusedCache, identity_of

BESIDE: Final = "beside"
_FOLDER: Final = f"{OURS}/engine-cache/"
_SUFFIX: Final = ".cache1"
"""Ends in the number of the format: another version of standby looks for its own."""
_CHUNK: Final = 8 << 20
_PARALLEL: Final = 4


@dataclass(frozen=True)
class Shelf:
    """A folder in a store. ``uri`` ends in a slash; ``credentials`` None: keys are found as this process finds them."""

    uri: str
    options: SourceOptions = field(default_factory=SourceOptions)
    credentials: Credentials | None = field(default=None, repr=False)

    def place(self, fingerprint: str) -> str:
        """Return the URI of the cache of ``fingerprint``."""
        return f"{self.uri}{fingerprint}{_SUFFIX}"


def check_setting(setting: str) -> str:
    """Return the setting if it names a place that can be written: ``beside``, or an s3:// or file:// folder.

    Raises InvalidInput.
    """
    if setting != BESIDE:
        _folder(setting)
    return setting


def shelf_for(setting: str | None, manifest: Manifest, credentials: Credentials | None = None) -> Shelf | None:
    """Return where the caches of a model lie; None where nothing is shared.

    ``credentials``: the tenant's stored keys that the manifest names, opened; they count for ``beside`` only, as a
    place of the operator's is written with the node's own keys. Raises InvalidInput for a ``setting`` that is no place.
    """
    if not setting:
        return None
    if setting == BESIDE:
        return Shelf(f"{_beside(manifest)}{_FOLDER}", manifest.source, credentials)
    return Shelf(_folder(setting))


async def bring(shelf: Shelf, fingerprint: str, into: Path, cap_bytes: int) -> bool:
    """Write the packed cache to the new file ``into``; False where there is none. Nothing of it is believed yet.

    Raises RefusedCache for one that is too large, ArtifactError when the store refuses, fails, or the object changes.
    """
    source = open_source(shelf.place(fingerprint), shelf.options, credentials=shelf.credentials)
    found = await source.list()
    if len(found) != 1:
        return False
    ref = found[0]
    if ref.size > 2 * cap_bytes + HEAD_BYTES:
        raise RefusedCache(f"it has {ref.size} bytes, and the cap is {cap_bytes}")
    await asyncio.to_thread(volume.create, into, ref.size)
    gate = asyncio.Semaphore(_PARALLEL)

    async def part(start: int) -> None:
        async with gate:
            content = await source.read(ref, start, min(_CHUNK, ref.size - start))
            await asyncio.to_thread(volume.write_at, into, content, start)

    try:
        async with asyncio.TaskGroup() as group:
            for start in range(0, ref.size, _CHUNK):
                group.create_task(part(start))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return True


async def peek(shelf: Shelf, fingerprint: str) -> str:
    """Return the identity of the packed cache that lies there; empty when there is none. Raises ArtifactError."""
    source = open_source(shelf.place(fingerprint), shelf.options, credentials=shelf.credentials)
    found = await source.list()
    if len(found) != 1:
        return ""
    return identity_of(bytes(await source.read(found[0], 0, min(HEAD_BYTES, found[0].size))))


async def send(shelf: Shelf, fingerprint: str, packed: Path, *, overwrite: bool) -> bool:
    """Store the packed cache; False where another node was first. Raises SourceUnreachable."""
    sink = await asyncio.to_thread(partial(open_sink, shelf.place(fingerprint), shelf.options, credentials=shelf.credentials))
    return await sink.put(packed, overwrite=overwrite)


def _folder(uri: str) -> str:
    """Return ``uri`` with its slash. Raises InvalidInput."""
    if scheme_of(uri) == "s3":
        parse_s3(uri)
    else:
        parse_file(uri)
    if "?" in uri or "#" in uri:
        raise InvalidInput(f"{uri!r} holds a query or a fragment", remedy="write s3://bucket/prefix/ or file:///absolute/path")
    return uri if uri.endswith("/") else f"{uri}/"


def _beside(manifest: Manifest) -> str:
    """Return the folder of the model with its slash: of one object, the folder around it."""
    uri = manifest.source_uri
    if uri.endswith("/"):
        return uri
    named = parse_s3(uri).key if scheme_of(uri) == "s3" else str(parse_file(uri))
    return f"{uri.rpartition('/')[0]}/" if _is_object(manifest.objects, named) else f"{uri}/"


def _is_object(objects: tuple[ObjectRef, ...], named: str) -> bool:
    return any(ref.key == named for ref in objects)
