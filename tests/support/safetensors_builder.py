"""Small safetensors models made to order, right or wrong in one place."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from typing import Any

SIZES: Mapping[str, int] = {"F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1}

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


def header_of(tensors: Shapes) -> dict[str, Any]:
    """The header's JSON for tensors one after the other: name → (dtype, shape)."""
    found: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        length = SIZES[dtype]
        for part in shape:
            length *= part
        found[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + length]}
        at += length
    return found


def raw(header: bytes | Mapping[str, Any], data: bytes = b"") -> bytes:
    """A file of exactly this header and data."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def safetensors(tensors: Shapes | None = None, *, seed: int = 0) -> bytes:
    """A whole file with these tensors of random numbers."""
    header = header_of(tensors or {"w": ("BF16", (4, 8))})
    size = max(entry["data_offsets"][1] for entry in header.values())
    return raw({"__metadata__": {"format": "pt"}, **header}, random.Random(seed).randbytes(size))


def index(mapping: Mapping[str, str]) -> bytes:
    """A shard index: tensor → file."""
    return json.dumps({"metadata": {}, "weight_map": dict(mapping)}).encode()


def model(*, shards: int = 1, **config: Any) -> dict[str, bytes]:
    """Path → content of a whole model in the Hugging Face layout."""
    files = {
        "config.json": json.dumps({**CONFIG, **config}).encode(),
        "tokenizer.json": b'{"model": {}}',
        "tokenizer_config.json": b'{"chat_template": "{{ messages }}"}',
    }
    if shards == 1:
        return {**files, "model.safetensors": safetensors()}
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    for number, name in enumerate(names):
        files[name] = safetensors({f"w{number}": ("BF16", (4, 8))}, seed=number)
    files["model.safetensors.index.json"] = index({f"w{number}": name for number, name in enumerate(names)})
    return files
