"""Registration: everything about an artifact is checked here, before anything becomes servable."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from standby.artifacts.archive import ArchiveContents, read_archive
from standby.artifacts.archive_rules import ArchiveLimits
from standby.artifacts.config_facts import Totals, config_facts, refuse_remote_code
from standby.artifacts.contents import Contents, Found, ObjectContents
from standby.artifacts.credentials import Credentials
from standby.artifacts.data_source import SourceHint
from standby.artifacts.gguf_header import GgufHeader, joined
from standby.artifacts.layout import (
    CONFIG,
    PROPERTIES,
    TOKENIZER_CONFIG,
    Layout,
    Permissions,
    choose_layout,
    is_ours,
    notes_on,
)
from standby.artifacts.location import archive_name
from standby.artifacts.safetensors import SafetensorsHeader
from standby.artifacts.shards import check_parts, check_shards, named_shards, weight_map
from standby.artifacts.sources import OpenedSource, Source, open_source
from standby.artifacts.verdicts import refusals
from standby.domain.errors import EmptySource, InvalidInput, UnsupportedArtifact
from standby.domain.model import Manifest, Member, ModelFacts, ModelFormat, ObjectRef, SourceOptions

_PARALLEL_HEADS: Final = 8
_LIMITS: Final = ArchiveLimits()
_LONGEST_PROPERTIES: Final = 64 << 10
_Json = Mapping[str, Any]


class ServedElsewhere(UnsupportedArtifact):
    """What lies there is no model, but has settings beside it, which may say where one lies: ``properties`` is their text."""

    def __init__(self, error: UnsupportedArtifact, properties: str) -> None:
        super().__init__(error.message, remedy=error.remedy)
        self.properties = properties


@dataclass(frozen=True)
class _Judged:
    """The files that belong to the model after their headers were read, and what they say."""

    files: tuple[Member, ...]
    facts: ModelFacts


async def inspect(
    uri: str,
    options: SourceOptions,
    *,
    environment: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
    hint: SourceHint | None = None,
    allow_remote_code: bool = False,
    allow_pickles: bool = False,
    limits: ArchiveLimits = _LIMITS,
) -> Manifest:
    """Return the manifest of what lies at ``uri`` now: exactly the objects of the model, each pinned.

    ``credentials`` win over those of ``environment``, those over what the AWS SDK finds. Raises InvalidInput,
    SourceUnreachable, EmptySource and UnsupportedArtifact; each names the place.
    """
    source = open_source(uri, options, environment=environment, credentials=credentials)
    refs = await _without_markers(source, [ref for ref in await source.list() if not is_ours(ref.path)])
    _require_content(refs, source.where)
    allow = Permissions(remote_code=allow_remote_code, pickles=allow_pickles)
    if _is_archive(uri, refs, hint):
        return await _inspect_archive(source, uri, refs[0], allow, limits)
    contents = ObjectContents(source, refs)
    layout, properties = await _laid_out(contents, allow)
    by_path = {ref.path: ref for ref in refs}
    pinned = await _pin_all(source, [by_path[file.path] for file in layout.files])
    contents.replace(pinned)
    judged = await _judge(contents, layout, allow)
    return Manifest(
        source_uri=uri,
        source=source.options,
        format=layout.format,
        objects=tuple(pinned[file.path] for file in judged.files),
        facts=judged.facts,
        refusals=refusals(layout.format, judged.facts),
        notes=notes_on(contents.files, judged.files),
        properties=properties,
    )


async def _inspect_archive(
    source: OpenedSource, uri: str, ref: ObjectRef, allow: Permissions, limits: ArchiveLimits
) -> Manifest:
    pinned = (await _pin_all(source, [ref]))[ref.path]
    contents = await _read_archive(source, pinned, f"archive {uri}", limits)
    layout, properties = await _laid_out(contents, allow)
    judged = await _judge(contents, layout, allow)
    return Manifest(
        source_uri=uri,
        source=source.options,
        format=layout.format,
        objects=(pinned,),
        facts=judged.facts,
        archive=contents.describe(judged.files),
        refusals=refusals(layout.format, judged.facts),
        notes=(*contents.notes, *notes_on(contents.files, judged.files)),
        properties=properties,
    )


async def _laid_out(contents: Contents, allow: Permissions) -> tuple[Layout, str]:
    """Return the layout and the text of the settings beside the model. Raises UnsupportedArtifact, ServedElsewhere."""
    properties = await _properties(contents)
    try:
        return choose_layout(contents.files, contents.where, allow), properties
    except UnsupportedArtifact as error:
        if properties:
            raise ServedElsewhere(error, properties) from error
        raise


async def _properties(contents: Contents) -> str:
    sizes = {file.path: file.size for file in contents.files}
    if not 0 < sizes.get(PROPERTIES, 0) <= _LONGEST_PROPERTIES:
        return ""
    found = (await contents.look([PROPERTIES]))[PROPERTIES]
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else ""


async def _read_archive(source: Source, ref: ObjectRef, where: str, limits: ArchiveLimits) -> ArchiveContents:
    stop = threading.Event()
    try:
        return await asyncio.to_thread(read_archive, source, ref, where, limits, stop)
    finally:
        # A caller who leaves must not keep a thread reading a hundred gigabytes.
        stop.set()


def _is_archive(uri: str, refs: Sequence[ObjectRef], hint: SourceHint | None) -> bool:
    """True when the URI names one object and that is an archive. Raises InvalidInput when the hint says otherwise."""
    single = len(refs) == 1 and not uri.endswith("/") and uri.endswith(refs[0].path.rpartition("/")[2])
    if hint is SourceHint.ARCHIVE and not single:
        raise InvalidInput(f"{uri!r} names no single object, and an archive was expected", remedy="name the archive itself")
    if hint is SourceHint.OBJECT and not single:
        raise InvalidInput(f"{uri!r} names no single object, and one was expected", remedy="name the object itself")
    return single and (hint is SourceHint.ARCHIVE or archive_name(refs[0].path))


def _require_content(refs: Sequence[ObjectRef], where: str) -> None:
    if not refs:
        raise EmptySource(f"{where}: 0 objects", remedy="check the bucket and the prefix for typing errors, or upload first")
    if not any(ref.size for ref in refs):
        raise EmptySource(f"{where}: {len(refs)} objects, every one of 0 bytes", remedy="upload the model again")


async def _without_markers(source: Source, refs: Sequence[ObjectRef]) -> list[ObjectRef]:
    """Drop the zero-byte objects by which consoles show folders: listed without their slash, they look like files."""
    empty = await _pin_all(source, [ref for ref in refs if ref.size == 0])
    return [ref for ref in refs if ref.size or ref.path in empty]


async def _pin_all(source: Source, refs: Sequence[ObjectRef]) -> Mapping[str, ObjectRef]:
    """Ask the store for each object by itself: proves that it can be read, and gives its version."""
    gate = asyncio.Semaphore(_PARALLEL_HEADS)

    async def pin(ref: ObjectRef) -> ObjectRef | None:
        async with gate:
            return await source.pin(ref)

    found = await asyncio.gather(*(pin(ref) for ref in refs))
    return {ref.path: ref for ref in found if ref is not None}


async def _judge(contents: Contents, layout: Layout, allow: Permissions) -> _Judged:
    """Read the headers and check that everything belongs together."""
    if layout.format is ModelFormat.GGUF:
        return _Judged(layout.files, await _gguf_facts(contents, layout))
    texts = await _texts(contents, [CONFIG, TOKENIZER_CONFIG])
    if not allow.remote_code:
        for name, content in texts.items():
            refuse_remote_code(name, content, contents.where)
    files, totals = layout.files, None
    if layout.format is ModelFormat.SAFETENSORS:
        files, totals = await _shards(contents, layout)
    paths = frozenset(file.path for file in files)
    return _Judged(files, config_facts(texts[CONFIG], texts.get(TOKENIZER_CONFIG, {}), paths, totals))


async def _gguf_facts(contents: Contents, layout: Layout) -> ModelFacts:
    paths = [file.path for file in layout.files]
    found = await contents.look(paths)
    parts = [(path, header) for path in paths if isinstance(header := found[path], GgufHeader)]
    check_parts(parts, contents.where)
    return joined([header for _, header in parts]).facts()


async def _shards(contents: Contents, layout: Layout) -> tuple[tuple[Member, ...], Totals]:
    files = layout.files
    mapping: Mapping[str, str] | None = None
    if layout.index is not None:
        index = _parsed(layout.index.path, await contents.look([layout.index.path]), contents.where)
        mapping = weight_map(index, layout.index.path, contents.where)
        wanted = named_shards(mapping, {file.path for file in files}, contents.where)
        # A stray shard that the index does not name is no part of the model and is not taken.
        files = tuple(file for file in files if not file.path.endswith(".safetensors") or file.path in wanted)
    shards = [file.path for file in files if file.path.endswith(".safetensors")]
    found = await contents.look(shards)
    headers = {path: header for path, header in found.items() if isinstance(header, SafetensorsHeader)}
    if mapping is not None:
        check_shards(mapping, headers, contents.where)
    totals = Totals()
    for header in headers.values():
        totals.add(header)
    return files, totals


async def _texts(contents: Contents, names: Sequence[str]) -> Mapping[str, _Json]:
    present = {file.path for file in contents.files}
    found = await contents.look([name for name in names if name in present])
    return {name: _parsed(name, found, contents.where) for name in found}


def _parsed(name: str, found: Mapping[str, Found], where: str) -> _Json:
    content = found[name]
    try:
        parsed = json.loads(content) if isinstance(content, bytes) else None
    except (ValueError, RecursionError) as error:
        raise UnsupportedArtifact(f"{where}: {name} is not JSON: {str(error)[:120]}", remedy="upload it again") from None
    if not isinstance(parsed, dict):
        raise UnsupportedArtifact(f"{where}: {name} holds no JSON object", remedy="upload it again")
    return parsed
