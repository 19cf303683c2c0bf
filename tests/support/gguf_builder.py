"""Small GGUF files made to order, right or wrong in one place."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping

Value = str | int | bool | list[str] | list[int]

KEYS: Mapping[str, Value] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "general.file_type": 1,
    "llama.context_length": 2048,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.chat_template": "{{ messages }}",
}


def text(value: str) -> bytes:
    """A string as GGUF writes it."""
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def header(keys: Mapping[str, Value], tensors: list[tuple[str, tuple[int, ...], int, int]]) -> bytes:
    """Everything before the data; a tensor is (name, sizes, type, offset)."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(keys))]
    parts += [text(name) + _value(value) for name, value in keys.items()]
    for name, sizes, kind, offset in tensors:
        shape = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        parts.append(text(name) + shape + struct.pack("<IQ", kind, offset))
    return b"".join(parts)


def gguf(
    keys: Mapping[str, Value] = KEYS, *, rows: int = 4, columns: int = 32, seed: int = 0, name: str = "token_embd.weight"
) -> bytes:
    """A whole file with one F16 tensor of ``rows`` by ``columns`` random numbers."""
    head = header(keys, [(name, (columns, rows), 1, 0)])
    padding = b"\0" * (-len(head) % 32)
    return head + padding + random.Random(seed).randbytes(rows * columns * 2)


def _value(value: Value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    texts = [item for item in value if isinstance(item, str)]
    if texts:
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(item) for item in texts)
    return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
