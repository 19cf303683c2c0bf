"""Which files of a listing make up the model: a pure decision over names and sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from standby.artifacts.location import archive_name
from standby.domain.errors import UnsupportedArtifact
from standby.domain.model import Member, ModelFormat

OURS: Final = ".standby"
"""Folder beside a model in which standby keeps what it learnt of it, e.g. compiled kernels; never a part of the model."""

INDEX_SUFFIX: Final = ".safetensors.index.json"
CONFIG: Final = "config.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
PROPERTIES: Final = "serving.properties"
"""Settings of LMI's containers beside a model; read at registration, of no use to engines."""

_ADAPTER: Final = "adapter_config.json"
_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
# What engines read beside the weights. Python files are left where they are: nothing from a model is ever executed.
_COMPANIONS: Final = (".json", ".txt", ".model", ".jinja", ".tiktoken")
_CODE: Final = ".py"
_SHARD: Final = re.compile(r".*-(\d{5})-of-(\d{5})\.safetensors")
_PART: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_LISTED: Final = 5
_AGAIN: Final = "upload it again"


@dataclass(frozen=True)
class Permissions:
    """What the operator allows, although it may run code that comes with a model."""

    remote_code: bool = False
    pickles: bool = False


@dataclass(frozen=True)
class Layout:
    """The format, the files that belong to the model, the shard index where there is one, and what was left out."""

    format: ModelFormat
    files: tuple[Member, ...]
    index: Member | None = None
    notes: tuple[str, ...] = ()


def choose_layout(files: Sequence[Member], where: str, allow: Permissions = Permissions()) -> Layout:
    """Return the layout of the model in ``files``, which came from ``where``.

    Raises UnsupportedArtifact: several GGUF models, GGUF and safetensors together, parts or shards missing, empty
    weights, weights that run code when they are loaded, missing ``config.json``, no weights at all.
    """
    ggufs = [file for file in files if file.path.lower().endswith(".gguf")]
    tensors = [file for file in files if file.path.endswith(".safetensors") and "/" not in file.path]
    if ggufs and tensors:
        raise UnsupportedArtifact(
            f"{where}: both GGUF ({names(ggufs)}) and safetensors ({names(tensors)})",
            remedy="register one GGUF object, or a folder with one format",
        )
    if ggufs:
        chosen = Layout(ModelFormat.GGUF, _one_gguf(ggufs, where))
    elif tensors:
        chosen = _safetensors(files, tensors, where, allow)
    else:
        chosen = _pickles(files, where, allow)
    _refuse_empty(chosen, where)
    return Layout(chosen.format, chosen.files, chosen.index, notes_on(files, chosen.files))


def is_ours(path: str) -> bool:
    """Return whether ``path`` lies in a folder that standby itself wrote, at whatever depth."""
    return OURS in path.split("/")[:-1]


def notes_on(files: Sequence[Member], taken: Sequence[Member]) -> tuple[str, ...]:
    """Return in words what of ``files`` is not ``taken`` and why, as far as somebody could miss it."""
    kept = {file.path for file in taken}
    left = [file for file in files if file.path not in kept]
    groups = (
        ([file for file in left if file.path.endswith(_CODE)], "nothing from a model is executed"),
        ([file for file in left if file.path.endswith(_PICKLES)], "pickled weights run code when they are loaded"),
        (
            [file for file in left if file.path.endswith(".safetensors") and "/" in file.path],
            "weights in a folder below the model's own",
        ),
        ([file for file in left if file.path.endswith(".safetensors") and "/" not in file.path], "no part of the model"),
    )
    return tuple(f"left out {names(found)}: {reason}" for found, reason in groups if found)


def names(files: Sequence[Member]) -> str:
    """Return the first paths and how many more there are."""
    return some([file.path for file in files])


def some(paths: Sequence[str]) -> str:
    """Return the first few of ``paths`` and how many more there are."""
    rest = len(paths) - _LISTED
    return ", ".join(paths[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _one_gguf(ggufs: Sequence[Member], where: str) -> tuple[Member, ...]:
    parts = {file.path: _PART.fullmatch(file.path) for file in ggufs}
    sets = {(found.group(1), found.group(3)) if found else (path, "") for path, found in parts.items()}
    if len(sets) > 1:
        raise UnsupportedArtifact(
            f"{where}: {len(sets)} GGUF files, one expected: {names(ggufs)}",
            remedy=f"register one object, e.g. …/{ggufs[0].path}, or keep the parts of one model in a folder of their own",
        )
    stem, total = next(iter(sets))
    if not total:
        return tuple(ggufs)
    wanted = range(1, int(total) + 1)
    present = {int(found.group(2)) for found in parts.values() if found}
    missing = [f"{stem}-{number:05}-of-{total}.gguf" for number in wanted if number not in present]
    if missing or present - set(wanted):
        raise UnsupportedArtifact(
            f"{where}: {len(missing)} of {int(total)} parts of the GGUF are missing: {some(missing)}",
            remedy="upload the missing parts and register their folder, or join the parts and register the result",
        )
    return tuple(sorted(ggufs, key=lambda file: file.path))


def _safetensors(files: Sequence[Member], tensors: Sequence[Member], where: str, allow: Permissions) -> Layout:
    by_path = {file.path: file for file in files}
    _require_config(by_path.keys() & {CONFIG, _ADAPTER}, f"safetensors ({names(tensors)})", where)
    companions = _companions(files, allow)
    index = _index_of(files)
    if index is not None:
        return Layout(ModelFormat.SAFETENSORS, (*companions, *tensors), index)
    chosen = [by_path[_SINGLE]] if _SINGLE in by_path else list(tensors)
    if len(chosen) > 1 or _SHARD.fullmatch(chosen[0].path):
        raise UnsupportedArtifact(
            f"{where}: the shards {names(chosen)} have no index ({_INDEX})", remedy="upload the index beside the shards"
        )
    return Layout(ModelFormat.SAFETENSORS, (*companions, *chosen))


def _pickles(files: Sequence[Member], where: str, allow: Permissions) -> Layout:
    pickles = [file for file in files if file.path.endswith(_PICKLES)]
    if not pickles:
        raise _no_weights(files, where)
    if not allow.pickles:
        raise UnsupportedArtifact(
            f"{where}: only pickled weights ({names(pickles)}); loading them runs whatever code they hold",
            remedy="convert the model to safetensors or GGUF",
        )
    _require_config({file.path for file in files}, f"pickled weights ({names(pickles)})", where)
    beside = [file for file in pickles if "/" not in file.path]
    if not beside:
        raise _no_weights(files, where)
    return Layout(ModelFormat.PICKLE, (*_companions(files, allow), *beside))


def _companions(files: Sequence[Member], allow: Permissions) -> list[Member]:
    endings = (*_COMPANIONS, _CODE) if allow.remote_code else _COMPANIONS
    return [file for file in files if "/" not in file.path and file.path.endswith(endings)]


def _require_config(paths: set[str], what: str, where: str) -> None:
    if CONFIG in paths:
        return
    if _ADAPTER in paths:
        raise UnsupportedArtifact(
            f"{where}: {what} with {_ADAPTER} and no config.json are an adapter, not a whole model",
            remedy="merge the adapter into its base model and register the result",
        )
    raise UnsupportedArtifact(
        f"{where}: {what} without config.json",
        remedy="register the model's whole folder with config.json beside the weights",
    )


def _index_of(files: Sequence[Member]) -> Member | None:
    by_path = {file.path: file for file in files}
    if _INDEX in by_path:
        return by_path[_INDEX]
    others = [file for path, file in by_path.items() if path.endswith(INDEX_SUFFIX) and "/" not in path]
    return others[0] if len(others) == 1 and _SINGLE not in by_path else None


def _refuse_empty(layout: Layout, where: str) -> None:
    empty = [file for file in layout.files if file.size == 0 and not file.path.endswith((*_COMPANIONS, _CODE))]
    if empty:
        raise UnsupportedArtifact(f"{where}: {names(empty)} of 0 bytes among the weights", remedy=_AGAIN)


def _no_weights(files: Sequence[Member], where: str) -> UnsupportedArtifact:
    archives = [file.path for file in files if archive_name(file.path)]
    deeper = sorted({file.path.rpartition("/")[0] for file in files if file.path.endswith((".safetensors", *_PICKLES))})
    if archives:
        remedy = f"to register an archive, name it: …/{archives[0]}"
    elif deeper:
        remedy = f"register the folder that holds the weights: …/{deeper[0]}/"
    else:
        remedy = "register a folder with one .gguf file, or with config.json and .safetensors files"
    return UnsupportedArtifact(f"{where}: {len(files)} objects and no weights among them ({names(files)})", remedy=remedy)
