"""The safetensors parser: right where the format's own library is, and unmoved by broken and hostile headers."""

from __future__ import annotations

import json
import struct
import tracemalloc
from typing import Any

import pytest
import safetensors as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.artifacts.safetensors import DTYPE_BITS, MAX_HEADER_BYTES, MAX_TENSORS, SafetensorsHeader, parse_safetensors
from standby.domain.errors import UnsupportedArtifact
from support.safetensors_builder import header_of, raw, safetensors


def parse(content: bytes) -> SafetensorsHeader:
    def read(offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= len(content), "the parser asked for bytes outside the file"
        return content[offset : offset + length]

    return parse_safetensors(read, len(content))


def deserialize(content: bytes) -> dict[str, dict[str, Any]]:
    return dict(reference.deserialize(content))  # type: ignore[no-untyped-call] # the library has no types


def one(**fields: Any) -> dict[str, Any]:
    return {"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], **fields}}


def test_totals() -> None:
    found = parse(safetensors({"a": ("F32", (2, 3)), "b": ("BF16", (8,)), "c": ("F32", ()), "none": ("U8", (0, 7))}))
    assert found.names == {"a", "b", "c", "none"}
    assert found.parameter_count == 6 + 8 + 1
    assert found.bytes_by_dtype == {"F32": 28, "BF16": 16, "U8": 0}


@pytest.mark.parametrize(("dtype", "bits"), DTYPE_BITS.items())
def test_every_dtype_has_the_size_of_the_reference(dtype: str, bits: int) -> None:
    content = raw({"w": {"dtype": dtype, "shape": [8], "data_offsets": [0, bits]}}, bytes(bits))
    deserialize(content)
    assert parse(content).bytes_by_dtype == {dtype: bits}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no safetensors file: it has 0 bytes"),
        (b"\0" * 7, "no safetensors file: it has 7 bytes"),
        (b"PK\x03\x04" + bytes(100), r"truncated safetensors: the header needs 67324760 bytes, the file has 104"),
        (b"\xff" * 100, rf"claim a header of 18446744073709551615 bytes, more than {MAX_HEADER_BYTES}"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1) + bytes(100), "claim a header of 100000001 bytes"),
        (struct.pack("<Q", 93) + bytes(100), "does not begin with '{'"),
        (struct.pack("<Q", 101) + bytes(100), "needs 109 bytes, the file has 108"),
        (raw(b""), "does not begin with '{'"),
        (raw(b"[]"), "does not begin with '{'"),
        (raw(b' {"a": 1}'), "does not begin with '{'"),
        (raw(b'{"w": '), "not JSON"),
        (raw(b'{"w": ' + b"[" * 100_000), "not JSON"),
        (raw(b'{"\xff": 1}'), "not JSON"),
        (raw(b'{"\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'), "not JSON"),
        (raw({}), "0 tensors"),
        (raw({"__metadata__": {}}), "0 tensors"),
        (raw({"__metadata__": {"a": 1}, **one()}, bytes(4)), "__metadata__ holds more than strings"),
        (raw({"__metadata__": [], **one()}, bytes(4)), "__metadata__ holds more than strings"),
        (raw(b'{"w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]},' * 2 + b'"x": 1}'), "'w' is there twice|not JSON"),
        (raw(b'{"w": 1, "w": 2}'), "'w' is there twice"),
        (raw(b'{"w": {"dtype": "U8", "dtype": "U8"}}'), "'dtype' is there twice"),
        (raw({"w": 1}), "tensor 'w' has other fields"),
        (raw({"w": {"dtype": "U8", "shape": [0]}}), "tensor 'w' has other fields"),
        (raw(one(dtype="Q4"), bytes(4)), "unknown dtype 'Q4'"),
        (raw(one(dtype=["U8"]), bytes(4)), "unknown dtype"),
        (raw(one(shape=4), bytes(4)), "no shape of whole numbers"),
        (raw(one(shape=[True]), bytes(4)), "no shape of whole numbers"),
        (raw(one(shape=[-4]), bytes(4)), "-4 is negative"),
        (raw(one(shape=[4.0]), bytes(4)), "4.0 is not a whole number"),
        (raw(one(shape=[1e400]), bytes(4)), "Infinity is not a whole number"),
        (raw(one(shape=[1 << 40, 1 << 40, 0]), bytes(4)), "more numbers than a file can hold"),
        (raw(one(data_offsets=[4, 0]), bytes(4)), "no begin and end"),
        (raw(one(data_offsets=[0, 4, 8]), bytes(8)), "no begin and end"),
        (raw(one(shape=[5]), bytes(4)), "5 numbers of U8 need 5 bytes, its offsets span 4"),
        (raw(one(dtype="F4", shape=[7]), bytes(4)), "7 numbers of F4 need 3.5 bytes"),
        (raw(one(data_offsets=[1, 5]), bytes(5)), "'w' begins at 1 and leaves a gap"),
        (raw({**one(), "v": one()["w"]}, bytes(4)), "begins at 0 and overlaps the tensor before it, which ends at 4"),
        (raw(one(), bytes(3)), "truncated safetensors: the tensors need 4 bytes, 3 are there"),
        (raw(one(), bytes(6)), "2 trailing bytes"),
    ],
)
def test_broken_header(content: bytes, says: str) -> None:
    with pytest.raises(UnsupportedArtifact, match=says) as caught:
        parse(content)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_every_truncation_is_refused() -> None:
    whole = safetensors()
    for length in range(len(whole)):
        with pytest.raises(UnsupportedArtifact, match=r"truncated safetensors|no safetensors file"):
            parse(whole[:length])


def test_too_many_tensors_are_refused_before_they_are_counted_in_memory() -> None:
    """A header of commas would become a list of as many objects; it is refused by counting bytes."""
    content = raw(b'{"w": [' + b"1," * (16 * MAX_TENSORS + 2) + b"1]}")
    tracemalloc.start()
    try:
        with pytest.raises(UnsupportedArtifact, match="more than 3200000 values"):
            parse(content)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_damage_is_refused_or_the_reference_agrees(data: st.DataObject) -> None:
    """Bytes changed, cut out or put in end in our own error, or in a file that the format's own library reads alike."""
    content = bytearray(safetensors({"a": ("F32", (2, 3)), "b": ("BF16", (8,)), "c": ("U8", (0,))}))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["change", "digit", "cut", "insert"])):
            case "change":
                content[at] = data.draw(st.integers(0, 255))
            case "digit":
                content[at] = data.draw(st.sampled_from(b'0123456789-,.[]{}"'))
            case "cut":
                del content[at : at + data.draw(st.integers(1, 9))]
            case _:
                content[at:at] = data.draw(st.binary(max_size=4))
    agrees(bytes(content))


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=3),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["U8", "F16", "F4", "F6_E2M3", "X"]),
                "shape": st.lists(st.integers(-1, 4), max_size=3),
                "data_offsets": st.lists(st.integers(0, 16), min_size=2, max_size=2),
            }
        ),
        max_size=3,
    ),
    st.integers(0, 24),
)
def test_any_header_is_refused_or_the_reference_agrees(header: dict[str, Any], size: int) -> None:
    agrees(raw(json.dumps(header).encode(), bytes(size)))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["F32", "BF16", "I8"]), st.lists(st.integers(0, 3), max_size=3)), min_size=1, max_size=4)
)
def test_what_is_right_is_accepted(shapes: list[tuple[str, list[int]]]) -> None:
    tensors = {f"t{number}": (dtype, tuple(shape)) for number, (dtype, shape) in enumerate(shapes)}
    size = max(entry["data_offsets"][1] for entry in header_of(tensors).values())
    content = raw(header_of(tensors), bytes(size))
    assert parse(content).names == set(deserialize(content))


def agrees(content: bytes) -> None:
    try:
        found = parse(content)
    except UnsupportedArtifact:
        return
    try:
        expected = deserialize(content)
    except reference.SafetensorError as error:
        raise AssertionError(f"accepted what the reference refuses: {error}") from error
    assert found.names == expected.keys()
    assert sum(found.bytes_by_dtype.values()) == sum(len(entry["data"]) for entry in expected.values())
