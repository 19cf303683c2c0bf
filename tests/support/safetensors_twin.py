"""The real model of the tests as safetensors: the same weights in the Hugging Face layout, made from its GGUF.

Every weight is dequantised and rounded to bfloat16, so that the twin is a whole model that any engine for that layout can
serve; 269 MB. What is made is kept below ``.cache/`` of the checkout, by the GGUF's digest, until ``make clean``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt

from support.real_model import real_model_path
from support.safetensors_builder import header_of
from support.twin_tokenizer import write_tokenizer

_FORM: Final = 1
"""Raised with every change of what is made here: what an older form has left is then not used again."""
_ROOT: Final = Path(__file__).parents[2] / ".cache" / "twin"
_ALIGNED: Final = 8
_OUTER: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_Floats = npt.NDArray[np.float32]


def twin_folder(shards: int = 1) -> Path:
    """Return the folder of the twin with its weights in so many files; made at the first call (seconds)."""
    return _kept(f"shards-{shards}", lambda folder: build_twin(real_model_path(), folder, shards=shards))


def twin_archive(name: str, *, level: int = 1) -> Path:
    """Return the twin packed as ``model.tar`` or ``model.tar.gz`` (gzip ``level``); made at the first call."""
    folder = twin_folder()
    return _kept(f"level-{level}-{name}", lambda into: pack(folder, into / name, level=level)) / name


def twin_pickle_archive(*, level: int = 6) -> Path:
    """Return a ``model.tar.gz`` whose weights are a pickled state dict of PyTorch; needs torch and safetensors."""
    folder = twin_folder()

    def make(into: Path) -> None:
        unpacked = into / "unpacked"
        unpacked.mkdir()
        _pickle(folder / "model.safetensors", unpacked / "pytorch_model.bin")
        for path in folder.glob("*.json"):
            os.link(path, unpacked / path.name)
        pack(unpacked, into / "model.tar.gz", level=level)
        shutil.rmtree(unpacked)

    return _kept(f"pickle-level-{level}", make) / "model.tar.gz"


def pack(folder: Path, archive: Path, *, level: int) -> None:
    """Write the files of ``folder`` into a tar, gzipped when its name ends on ``.gz``."""
    gzipped = archive.name.endswith(".gz")
    with tarfile.open(archive, "w:gz", compresslevel=level) if gzipped else tarfile.open(archive, "w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, arcname=path.name)


def build_twin(source: Path, into: Path, *, shards: int = 1) -> None:
    """Write the twin of a GGUF of the Llama architecture into the existing folder ``into``."""
    reader = gguf.GGUFReader(source)
    facts = _Facts(reader)
    tensors = [_Tensor(_name(item.name), item, facts) for item in reader.tensors]
    _write_weights(tensors, into, shards)
    config = facts.config(tied="lm_head.weight" not in {tensor.name for tensor in tensors})
    _write_json(into / "config.json", config)
    stops = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    _write_json(into / "generation_config.json", {"_from_model_config": True, **stops})
    write_tokenizer(reader, into, context_length=config["max_position_embeddings"])


class _Facts:
    """The GGUF's metadata."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self._reader = reader
        architecture = self.value("general.architecture")
        assert architecture == "llama", f"the twin is made of Llama models only, not of {architecture!r}"
        self.heads = int(self.value("llama.attention.head_count"))
        self.kv_heads = int(self.value("llama.attention.head_count_kv"))

    def value(self, key: str) -> Any:
        return self._reader.fields[key].contents()

    def config(self, *, tied: bool) -> dict[str, Any]:
        hidden = int(self.value("llama.embedding_length"))
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "torch_dtype": "bfloat16",
            "vocab_size": int(self.value("llama.vocab_size")),
            "hidden_size": hidden,
            "intermediate_size": int(self.value("llama.feed_forward_length")),
            "num_hidden_layers": int(self.value("llama.block_count")),
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": hidden // self.heads,
            "max_position_embeddings": int(self.value("llama.context_length")),
            "rms_norm_eps": round(float(self.value("llama.attention.layer_norm_rms_epsilon")), 9),
            "rope_theta": float(self.value("llama.rope.freq_base")),
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": tied,
            "bos_token_id": int(self.value("tokenizer.ggml.bos_token_id")),
            "eos_token_id": int(self.value("tokenizer.ggml.eos_token_id")),
        }


@dataclass(frozen=True)
class _Tensor:
    name: str
    item: gguf.ReaderTensor
    facts: _Facts

    @property
    def shape(self) -> tuple[int, ...]:
        # GGUF names the fastest dimension first.
        return tuple(int(length) for length in reversed(self.item.shape))

    @property
    def size(self) -> int:
        return int(self.item.n_elements) * 2

    def content(self) -> bytes:
        """The weights as bfloat16, little-endian."""
        values = gguf.dequantize(self.item.data, self.item.tensor_type).astype(np.float32).reshape(self.shape)
        if self.name.endswith("q_proj.weight"):
            values = _unrotated(values, self.facts.heads)
        elif self.name.endswith("k_proj.weight"):
            values = _unrotated(values, self.facts.kv_heads)
        return _bfloat16(values)


def _name(name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER[part]}.{kind}"


def _unrotated(values: _Floats, heads: int) -> _Floats:
    """Undo the order of rows that llama.cpp wants for its rotary embedding: there pairs lie together, here halves."""
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _bfloat16(values: _Floats) -> bytes:
    """Round to the nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def _write_weights(tensors: Sequence[_Tensor], into: Path, shards: int) -> None:
    if shards == 1:
        _write_shard(tensors, into / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, group in enumerate(_groups(tensors, shards), 1):
        name = f"model-{number:05}-of-{shards:05}.safetensors"
        _write_shard(group, into / name)
        weight_map |= {tensor.name: name for tensor in group}
    total = sum(tensor.size for tensor in tensors)
    _write_json(into / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _groups(tensors: Sequence[_Tensor], count: int) -> Iterator[list[_Tensor]]:
    """Yield ``count`` neighbourhoods of about the same bytes."""
    total, before = sum(tensor.size for tensor in tensors), 0
    groups: list[list[_Tensor]] = [[] for _ in range(count)]
    for tensor in tensors:
        groups[min(count - 1, before * count // total)].append(tensor)
        before += tensor.size
    assert all(groups), f"{len(tensors)} tensors do not fill {count} shards"
    yield from groups


def _write_shard(tensors: Sequence[_Tensor], path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, **header_of({tensor.name: ("BF16", tensor.shape) for tensor in tensors})}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNED)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor in tensors:
            file.write(tensor.content())


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _pickle(weights: Path, into: Path) -> None:
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(weights), into)


@cache
def _source_digest() -> str:
    # Not the file's time: two environments of one checkout may hold the same model.
    with real_model_path().open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder ``name`` of what is kept; let ``make`` fill it when it is not there."""
    folder = _ROOT / f"{_FORM}-{_source_digest()[:16]}" / name
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"making-{name}-"))
    try:
        make(temporary)
        temporary.rename(folder)
    except OSError:
        # Another process has made the same meanwhile.
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
