"""Do the files of one model belong together: index against shard headers, part against part. Pure.

A shard that is missing or stale is not noticed by engines: they leave the weights uninitialised and report healthy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from standby.artifacts.gguf_header import GgufHeader
from standby.artifacts.layout import some
from standby.artifacts.safetensors import SafetensorsHeader
from standby.domain.errors import UnsupportedArtifact

_REMEDY: Final = "upload the index and all shards of one and the same save"


def weight_map(index: Mapping[str, Any], name: str, where: str) -> Mapping[str, str]:
    """Return the map from tensors to files in the index ``name``. Raises UnsupportedArtifact when there is none."""
    found = index.get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(file, str) for file in found.values()):
        raise UnsupportedArtifact(f"{where}: {name} has no 'weight_map' from tensors to files", remedy="upload the index again")
    return found


def named_shards(mapping: Mapping[str, str], present: Collection[str], where: str) -> tuple[str, ...]:
    """Return the shards that ``mapping`` names, in order. Raises UnsupportedArtifact naming those not ``present``."""
    wanted = sorted(set(mapping.values()))
    missing = [name for name in wanted if name not in present]
    if missing:
        raise UnsupportedArtifact(
            f"{where}: {len(missing)} of {len(wanted)} shards that the index names are missing: {some(missing)}",
            remedy="upload the missing shards, or the index that belongs to these",
        )
    return tuple(wanted)


def check_shards(mapping: Mapping[str, str], headers: Mapping[str, SafetensorsHeader], where: str) -> None:
    """Compare the index with every shard's header, both ways. Raises UnsupportedArtifact naming shard and tensors."""
    expected: dict[str, set[str]] = {}
    for tensor, shard in mapping.items():
        expected.setdefault(shard, set()).add(tensor)
    for shard, header in headers.items():
        wanted = expected.get(shard, set())
        lacking = sorted(wanted - header.names)
        if lacking:
            raise UnsupportedArtifact(
                f"{where}: shard {shard} lacks {len(lacking)} tensors that the index expects there: {_some(lacking)}",
                remedy=_REMEDY,
            )
        unnamed = sorted(header.names - wanted)
        twice = [tensor for tensor in unnamed if tensor in mapping]
        if twice:
            raise UnsupportedArtifact(
                f"{where}: shard {shard} holds {len(twice)} tensors that the index expects elsewhere: {_some(twice)}",
                remedy=_REMEDY,
            )
        if unnamed:
            raise UnsupportedArtifact(
                f"{where}: shard {shard} holds {len(unnamed)} tensors that the index does not name: {_some(unnamed)}",
                remedy=_REMEDY,
            )


def check_parts(parts: Sequence[tuple[str, GgufHeader]], where: str) -> None:
    """Check that the GGUF files, in the order of their names, are one model. Raises UnsupportedArtifact."""
    if len(parts) == 1:
        path, header = parts[0]
        if header.split is not None:
            raise UnsupportedArtifact(
                f"{where}: {path} is part {header.split.number + 1} of {header.split.count} of a split model",
                remedy="register the folder that holds all parts, or join them with llama-gguf-split --merge",
            )
        return
    seen: set[str] = set()
    for place, (path, header) in enumerate(parts):
        found = header.split
        if found is None or (found.number, found.count) != (place, len(parts)):
            says = f"part {found.number + 1} of {found.count}" if found else "a whole model"
            raise UnsupportedArtifact(
                f"{where}: {path} says in its header that it is {says}, not part {place + 1} of {len(parts)}",
                remedy="upload all parts of one and the same split, with the names they were given",
            )
        twice = sorted(seen & header.tensor_names)
        if twice:
            raise UnsupportedArtifact(f"{where}: {path} holds tensors of an earlier part: {_some(twice)}", remedy=_REMEDY)
        seen |= header.tensor_names
    expected = parts[0][1].split
    if expected is not None and expected.tensor_count != len(seen):
        raise UnsupportedArtifact(
            f"{where}: the parts hold {len(seen)} tensors, their headers say {expected.tensor_count}", remedy=_REMEDY
        )


def _some(tensors: Sequence[str]) -> str:
    return some([repr(tensor[:80]) for tensor in tensors])
