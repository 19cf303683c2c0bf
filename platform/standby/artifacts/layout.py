"""Which objects of a listing make up the model: a pure decision over names and sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from standby.domain.errors import UnsupportedArtifact
from standby.domain.model import ModelFormat, ObjectRef

INDEX_SUFFIX: Final = ".safetensors.index.json"
_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
# What engines read beside the weights. Python files are left where they are: nothing from a model is ever executed.
_COMPANIONS: Final = (".json", ".txt", ".model", ".jinja", ".tiktoken")
_SHARD: Final = re.compile(r".*-(\d{5})-of-(\d{5})\.safetensors")
_LISTED: Final = 5


@dataclass(frozen=True)
class Layout:
    """The format, the objects that belong to the model, and the shard index where there is one."""

    format: ModelFormat
    objects: tuple[ObjectRef, ...]
    index: ObjectRef | None = None


def choose_layout(refs: Sequence[ObjectRef], where: str) -> Layout:
    """Return the layout of the model in ``refs``, which came from ``where``.

    Raises UnsupportedArtifact: several GGUF files, GGUF and safetensors together, weights that run code when they are
    loaded, missing ``config.json``, missing shards, no weights at all.
    """
    ggufs = [ref for ref in refs if ref.path.lower().endswith(".gguf")]
    tensors = [ref for ref in refs if ref.path.endswith(".safetensors") and "/" not in ref.path]
    if ggufs and tensors:
        raise UnsupportedArtifact(
            f"{where}: both GGUF ({names(ggufs)}) and safetensors ({names(tensors)})",
            remedy="register one GGUF object, or a folder with one format",
        )
    if len(ggufs) > 1:
        raise UnsupportedArtifact(
            f"{where}: {len(ggufs)} GGUF files, one expected: {names(ggufs)}",
            remedy=f"register one object, e.g. …/{ggufs[0].path}",
        )
    if ggufs:
        return Layout(ModelFormat.GGUF, tuple(ggufs))
    if tensors:
        return _safetensors(refs, tensors, where)
    raise _no_weights(refs, where)


def check_index(weight_map: Mapping[str, str], refs: Iterable[ObjectRef], where: str) -> tuple[str, ...]:
    """Return the shards that ``weight_map`` (tensor → file) names, in order.

    Raises UnsupportedArtifact naming the missing ones.
    """
    present = {ref.path for ref in refs}
    wanted = sorted(set(weight_map.values()))
    missing = [name for name in wanted if name not in present]
    if missing:
        raise UnsupportedArtifact(
            f"{where}: {len(missing)} of {len(wanted)} shards that the index names are missing: {_some(missing)}",
            remedy="upload the missing shards, or the index that belongs to these",
        )
    return tuple(wanted)


def names(refs: Sequence[ObjectRef]) -> str:
    """Return the first paths and how many more there are."""
    return _some([ref.path for ref in refs])


def _safetensors(refs: Sequence[ObjectRef], tensors: Sequence[ObjectRef], where: str) -> Layout:
    by_path = {ref.path: ref for ref in refs}
    if "config.json" not in by_path:
        raise UnsupportedArtifact(
            f"{where}: safetensors ({names(tensors)}) without config.json",
            remedy="register the model's whole folder with config.json beside the weights",
        )
    companions = [ref for ref in refs if "/" not in ref.path and ref.path.endswith(_COMPANIONS)]
    index = _index_of(by_path)
    if index is not None:
        return Layout(ModelFormat.SAFETENSORS, (*companions, *tensors), index)
    chosen = [by_path[_SINGLE]] if _SINGLE in by_path else list(tensors)
    if len(chosen) > 1 or _SHARD.fullmatch(chosen[0].path):
        raise UnsupportedArtifact(
            f"{where}: the shards {names(chosen)} have no index ({_INDEX})", remedy="upload the index beside the shards"
        )
    return Layout(ModelFormat.SAFETENSORS, (*companions, *chosen))


def _index_of(by_path: Mapping[str, ObjectRef]) -> ObjectRef | None:
    if _INDEX in by_path:
        return by_path[_INDEX]
    others = [ref for path, ref in by_path.items() if path.endswith(INDEX_SUFFIX) and "/" not in path]
    return others[0] if len(others) == 1 and _SINGLE not in by_path else None


def _no_weights(refs: Sequence[ObjectRef], where: str) -> UnsupportedArtifact:
    pickles = [ref for ref in refs if ref.path.endswith(_PICKLES)]
    if pickles:
        return UnsupportedArtifact(
            f"{where}: only pickled weights ({names(pickles)}); loading them runs whatever code they hold",
            remedy="convert the model to safetensors or GGUF",
        )
    return UnsupportedArtifact(
        f"{where}: {len(refs)} objects and no weights among them ({names(refs)})",
        remedy="register a folder with one .gguf file, or with config.json and .safetensors files",
    )


def _some(paths: Sequence[str]) -> str:
    rest = len(paths) - _LISTED
    return ", ".join(paths[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
