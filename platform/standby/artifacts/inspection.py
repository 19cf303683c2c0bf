"""Registration: everything about an artifact is checked here, before anything becomes servable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from standby.artifacts.gguf import parse_gguf
from standby.artifacts.layout import Layout, check_index, choose_layout
from standby.artifacts.location import SourceInterrupted
from standby.artifacts.sources import Source, open_source
from standby.domain.errors import EmptySource, UnsupportedArtifact
from standby.domain.model import Manifest, ModelFacts, ModelFormat, ObjectRef, SourceOptions

MAX_JSON_BYTES: Final = 32 << 20
_PARALLEL_HEADS: Final = 8
_READ_ATTEMPTS: Final = 3


async def inspect(uri: str, options: SourceOptions, *, environment: Mapping[str, str] | None = None) -> Manifest:
    """Return the manifest of what lies at ``uri`` now: exactly the objects of the model, each pinned.

    Raises InvalidInput, SourceUnreachable, EmptySource and UnsupportedArtifact; each names the place.
    """
    source = open_source(uri, options, environment=environment)
    refs = await _without_markers(source, await source.list())
    _require_content(refs, source.where)
    layout = choose_layout(refs, source.where)
    layout = await _pinned(source, layout)
    if layout.format is ModelFormat.GGUF:
        objects, facts = layout.objects, await _gguf_facts(source, layout.objects[0])
    else:
        objects, facts = await _safetensors_facts(source, layout)
    return Manifest(source_uri=uri, source=options, format=layout.format, objects=objects, facts=facts)


def _require_content(refs: Sequence[ObjectRef], where: str) -> None:
    if not refs:
        raise EmptySource(f"{where}: 0 objects", remedy="check the bucket and the prefix for typing errors, or upload first")
    if not any(ref.size for ref in refs):
        raise EmptySource(f"{where}: {len(refs)} objects, every one of 0 bytes", remedy="upload the model again")


async def _without_markers(source: Source, refs: Sequence[ObjectRef]) -> list[ObjectRef]:
    """Drop the zero-byte objects by which consoles show folders: listed without their slash, they look like files."""
    empty = await _pin_all(source, [ref for ref in refs if ref.size == 0])
    return [ref for ref in refs if ref.size or ref.path in empty]


async def _pinned(source: Source, layout: Layout) -> Layout:
    """Ask the store for each object by itself: proves that it can be read, and gives its version."""
    found = await _pin_all(source, layout.objects)
    objects = tuple(found[ref.path] for ref in layout.objects)
    return Layout(layout.format, objects, found[layout.index.path] if layout.index is not None else None)


async def _pin_all(source: Source, refs: Sequence[ObjectRef]) -> Mapping[str, ObjectRef]:
    gate = asyncio.Semaphore(_PARALLEL_HEADS)

    async def pin(ref: ObjectRef) -> ObjectRef | None:
        async with gate:
            return await source.pin(ref)

    found = await asyncio.gather(*(pin(ref) for ref in refs))
    return {ref.path: ref for ref in found if ref is not None}


async def _gguf_facts(source: Source, ref: ObjectRef) -> ModelFacts:
    def read(offset: int, length: int) -> bytes:
        return bytes(_read_patiently(source, ref, offset, length))

    try:
        header = await asyncio.to_thread(parse_gguf, read, ref.size)
    except UnsupportedArtifact as error:
        raise UnsupportedArtifact(f"{source.where}, {ref.path}: {error.message}", remedy=error.remedy) from None
    return header.facts()


async def _safetensors_facts(source: Source, layout: Layout) -> tuple[tuple[ObjectRef, ...], ModelFacts]:
    by_path = {ref.path: ref for ref in layout.objects}
    objects = layout.objects
    if layout.index is not None:
        index = await _json(source, layout.index)
        shards = check_index(_weight_map(index, source.where, layout.index), objects, source.where)
        # A stray shard that the index does not name is no part of the model and is not taken.
        objects = tuple(ref for ref in objects if not ref.path.endswith(".safetensors") or ref.path in shards)
    config = await _json(source, by_path["config.json"])
    tokenizer = await _json(source, by_path["tokenizer_config.json"]) if "tokenizer_config.json" in by_path else {}
    return objects, _config_facts(config, tokenizer, frozenset(by_path))


def _config_facts(config: Mapping[str, Any], tokenizer: Mapping[str, Any], paths: frozenset[str]) -> ModelFacts:
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type", "")
    context = config.get("max_position_embeddings")
    quantisation = config.get("quantization_config")
    method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
    precision = config.get("dtype") or config.get("torch_dtype")
    return ModelFacts(
        architecture=str(first),
        context_length=context if isinstance(context, int) else None,
        quantisation=str(method or precision or ""),
        has_chat_template="chat_template" in tokenizer or "chat_template.jinja" in paths,
        has_tokenizer=bool(paths & {"tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json"}),
    )


def _weight_map(index: Mapping[str, Any], where: str, ref: ObjectRef) -> Mapping[str, str]:
    found = index.get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise UnsupportedArtifact(
            f"{where}: {ref.path} has no 'weight_map' from tensors to files", remedy="upload the index again"
        )
    return found


async def _json(source: Source, ref: ObjectRef) -> Mapping[str, Any]:
    if ref.size > MAX_JSON_BYTES:
        raise UnsupportedArtifact(f"{source.where}: {ref.path} has {ref.size} bytes, more than {MAX_JSON_BYTES}")
    content = await asyncio.to_thread(_read_patiently, source, ref, 0, ref.size) if ref.size else b""
    try:
        parsed = json.loads(bytes(content))
    except (ValueError, RecursionError) as error:
        raise UnsupportedArtifact(
            f"{source.where}: {ref.path} is not JSON: {str(error)[:120]}", remedy="upload it again"
        ) from None
    if not isinstance(parsed, dict):
        raise UnsupportedArtifact(f"{source.where}: {ref.path} holds no JSON object", remedy="upload it again")
    return parsed


def _read_patiently(source: Source, ref: ObjectRef, offset: int, length: int) -> bytes:
    for _ in range(_READ_ATTEMPTS - 1):
        try:
            return bytes(source.read_blocking(ref, offset, length))
        except SourceInterrupted:
            continue
    return bytes(source.read_blocking(ref, offset, length))
