"""The GGUF parser: right on a real file, and unmoved by broken and hostile ones."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.artifacts.gguf import MAX_HEADER_BYTES, parse_gguf
from standby.artifacts.gguf_header import GgufHeader, SplitPart
from standby.domain.errors import UnsupportedArtifact
from support.gguf_builder import KEYS, Value, gguf, header, text
from support.real_model import real_model_path


def parse(content: bytes) -> GgufHeader:
    def read(offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= len(content), "the parser asked for bytes outside the file"
        return content[offset : offset + length]

    return parse_gguf(read, len(content))


def test_real_model() -> None:
    """The header of SmolLM2-135M says what the model card says, and its tensors end exactly at the file's end."""
    path = real_model_path()
    with path.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        found = parse_gguf(read, path.stat().st_size)
    facts = found.facts()
    assert (facts.architecture, facts.context_length, facts.quantisation) == ("llama", 8192, "Q4_1")
    assert facts.parameter_count == 134_515_008
    assert facts.has_chat_template
    assert facts.has_tokenizer
    assert found.required_bytes == path.stat().st_size
    assert facts.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert (facts.tensor_count, facts.dtypes[0]) == (272, "Q4_1")


def test_small_model() -> None:
    facts = parse(gguf()).facts()
    assert facts.model_dump() == {
        "architecture": "llama",
        "name": "Tiny",
        "parameter_count": 128,
        "context_length": 2048,
        "quantisation": "F16",
        "has_chat_template": True,
        "has_tokenizer": True,
        "tensor_count": 1,
        "dtypes": ("F16",),
        "kv_bytes_per_token": None,
    }


SHAPE: Mapping[str, Value] = {"llama.block_count": 2, "llama.embedding_length": 64, "llama.attention.head_count": 8}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 2 * 8 * (8 + 8) * 2),
        ({"llama.attention.head_count_kv": 2}, 2 * 2 * (8 + 8) * 2),
        ({"llama.attention.head_count_kv": 2, "llama.attention.key_length": 16}, 2 * 2 * (16 + 8) * 2),
        ({"llama.attention.head_count_kv": [2, 4]}, (2 + 4) * (8 + 8) * 2),
        ({"llama.attention.kv_lora_rank": 512}, None),
        ({"llama.attention.head_count": 0}, None),
        ({"llama.embedding_length": 0}, None),
    ],
)
def test_key_value_cache(more: Mapping[str, Value], expected: int | None) -> None:
    """Grouped heads make the cache smaller; an architecture that stores something else has no figure."""
    assert parse(gguf({**KEYS, **SHAPE, **more})).facts().kv_bytes_per_token == expected


def test_part_of_a_split_model_says_so() -> None:
    part = parse(gguf({**KEYS, "split.count": 3, "split.no": 1, "split.tensors.count": 9}))
    assert part.split == SplitPart(number=1, count=3, tensor_count=9)


def test_quantisation_without_file_type_is_that_of_most_parameters() -> None:
    keys = {name: value for name, value in KEYS.items() if name != "general.file_type"}
    assert parse(gguf(keys)).facts().quantisation == "F16"


def test_every_truncation_is_refused() -> None:
    """Cut anywhere, in the header or in the data, and it is no model."""
    whole = gguf()
    for length in range(len(whole)):
        with pytest.raises(UnsupportedArtifact, match=r"truncated GGUF|not a GGUF"):
            parse(whole[:length])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04" + bytes(100), "not a GGUF file: it begins with"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(100), "version 1 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(100), "0 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60) + bytes(100), "keys, more than"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1) + bytes(100), "tensors, allowed"),
        (gguf({**KEYS, "general.alignment": 7}), "alignment 7"),
        (gguf({**KEYS, "general.alignment": "32"}), "not a whole number"),
        (gguf({**KEYS, "split.count": "many"}), "not a whole number"),
        (header({}, [("w", (1,) * 5, 1, 0)]) + bytes(100), "5 dimensions"),
        (header({}, [("w", (1 << 62, 1 << 62), 1, 0)]) + bytes(100), "truncated GGUF"),
        (header({}, [("w", (1,), 1, 1 << 62)]) + bytes(100), "lies at offset 4611686018427387904, the one before it ends at 0"),
        (
            header({}, [("w", (1,), 1, 0), ("v", (1,), 1, 64)]) + bytes(200),
            "'v' lies at offset 64, the one before it ends at 32",
        ),
        (header({}, [("w", (1,), 1, 0), ("w", (1,), 1, 32)]) + bytes(200), "tensor 'w' is there twice"),
        (header({}, [("w", (33,), 2, 0)]) + bytes(200), "rows of 33 are no multiple of Q4_0's block 32"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + (text("a") + struct.pack("<II", 4, 1)) * 2, "there twice"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("a") + struct.pack("<I", 99), "unknown type 99"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 1, 2) + b"\xff\xfe" + bytes(50), "not UTF-8"),
    ],
)
def test_broken_header(content: bytes, says: str) -> None:
    with pytest.raises(UnsupportedArtifact, match=says):
        parse(content)


def test_nested_arrays_have_a_depth_limit() -> None:
    """Arrays in arrays in arrays would recurse until the interpreter's stack ends."""
    nested = text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 10_000
    with pytest.raises(UnsupportedArtifact, match="deeper than"):
        parse(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + nested)


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, MAX_HEADER_BYTES + 1])
def test_declared_lengths_allocate_nothing(length: int) -> None:
    """A string said to be exabytes long costs a message, not memory."""
    size = 1 << 40
    start = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("a") + struct.pack("<IQ", 8, length)

    def read(offset: int, count: int) -> bytes:
        return (start + bytes(count))[offset : offset + count] if offset == 0 else bytes(count)

    tracemalloc.start()
    try:
        with pytest.raises(UnsupportedArtifact, match=r"truncated GGUF|limit of \d+ bytes"):
            parse_gguf(read, size)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    """Bytes changed at random end in our own error or in a header that still fits the file; never in another error."""
    content = bytearray(gguf())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse(bytes(content))
        found.facts()
    except UnsupportedArtifact:
        return
    assert found.required_bytes <= len(content)
