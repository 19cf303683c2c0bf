"""Which objects make up a model, decided from names and sizes alone."""

from __future__ import annotations

import pytest

from standby.artifacts.gguf_header import GgufHeader, SplitPart
from standby.artifacts.layout import Permissions, choose_layout, is_ours, notes_on
from standby.artifacts.safetensors import SafetensorsHeader
from standby.artifacts.shards import check_parts, check_shards, named_shards, weight_map
from standby.domain.errors import UnsupportedArtifact
from standby.domain.model import Member, ModelFormat

pytestmark = pytest.mark.decision


def refs(*paths: str) -> list[Member]:
    return [Member(path=path, size=10) for path in paths]


def chosen(*paths: str) -> list[str]:
    return [ref.path for ref in choose_layout(refs(*paths), "here").files]


def test_one_gguf_is_the_model_and_nothing_else_is_taken() -> None:
    layout = choose_layout(refs("README.md", "model.gguf", ".gitattributes"), "here")
    assert layout.format is ModelFormat.GGUF
    assert [ref.path for ref in layout.files] == ["model.gguf"]


def test_safetensors_takes_companions_and_no_code() -> None:
    paths = ("README.md", "config.json", "model.safetensors", "modeling_x.py", "pytorch_model.bin", "tokenizer.json")
    assert chosen(*paths) == ["config.json", "tokenizer.json", "model.safetensors"]


def test_indexed_shards_bring_their_index() -> None:
    layout = choose_layout(
        refs(
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ),
        "here",
    )
    assert layout.index is not None
    assert layout.index.path == "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (("x.tar.gz",), r"name it: …/x\.tar\.gz"),
        (("deep/config.json", "deep/model.safetensors"), "register the folder that holds the weights: …/deep/"),
        (("adapter_config.json", "adapter_model.safetensors"), "are an adapter, not a whole model"),
        (("m-00001-of-00003.gguf", "m-00003-of-00003.gguf"), r"1 of 3 parts of the GGUF are missing: m-00002-of-00003\.gguf"),
        (("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "n.gguf"), "2 GGUF files, one expected"),
        (("m-00001-of-00001.gguf", "m-00002-of-00001.gguf"), "0 of 1 parts"),
        (("a.gguf", "b.gguf"), "2 GGUF files, one expected: a.gguf, b.gguf"),
        (("a.gguf", "model.safetensors", "config.json"), "both GGUF"),
        (("model.safetensors",), "without config.json"),
        (("pytorch_model.bin", "config.json"), "only pickled weights"),
        (("model.pt",), "only pickled weights"),
        (("weights.pkl",), "only pickled weights"),
        (("README.md", "config.json"), "no weights among them"),
        (("config.json", "model-00001-of-00004.safetensors"), "have no index"),
        (("config.json", "a.safetensors", "b.safetensors"), "have no index"),
    ],
)
def test_refused(paths: tuple[str, ...], says: str) -> None:
    with pytest.raises(UnsupportedArtifact, match=says):
        choose_layout(refs(*paths), "here")


def test_long_lists_are_cut() -> None:
    with pytest.raises(UnsupportedArtifact, match=r"and 25 more"):
        choose_layout(refs(*[f"{number:02}.gguf" for number in range(30)]), "here")


def test_parts_of_one_gguf_are_one_model() -> None:
    assert chosen("m-00002-of-00002.gguf", "m-00001-of-00002.gguf") == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]


def test_empty_weights() -> None:
    files = [*refs("config.json"), Member(path="model.safetensors", size=0)]
    with pytest.raises(UnsupportedArtifact, match=r"model\.safetensors of 0 bytes among the weights"):
        choose_layout(files, "here")


def test_what_the_operator_allows() -> None:
    files = refs("config.json", "pytorch_model.bin", "modeling_x.py", "tokenizer.json")
    layout = choose_layout(files, "here", Permissions(pickles=True))
    assert layout.format is ModelFormat.PICKLE
    assert [file.path for file in layout.files] == ["config.json", "tokenizer.json", "pytorch_model.bin"]
    with_code = choose_layout(files, "here", Permissions(pickles=True, remote_code=True))
    assert "modeling_x.py" in [file.path for file in with_code.files]


def test_notes_say_what_was_left_out() -> None:
    files = refs("config.json", "model.safetensors", "modeling_x.py", "pytorch_model.bin", "old/a.safetensors", "b.safetensors")
    assert notes_on(files, refs("config.json", "model.safetensors")) == (
        "left out modeling_x.py: nothing from a model is executed",
        "left out pytorch_model.bin: pickled weights run code when they are loaded",
        "left out old/a.safetensors: weights in a folder below the model's own",
        "left out b.safetensors: no part of the model",
    )


def test_index_names_missing_shards() -> None:
    """Field case B03: an engine would load uninitialised weights and call itself healthy."""
    with pytest.raises(UnsupportedArtifact, match=r"1 of 2 shards that the index names are missing: b\.safetensors"):
        named_shards({"x": "a.safetensors", "y": "b.safetensors"}, {"a.safetensors"}, "here")


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": {"a": 1}}])
def test_index_without_a_map(index: dict[str, object]) -> None:
    with pytest.raises(UnsupportedArtifact, match="has no 'weight_map'"):
        weight_map(index, "the index", "here")


def holds(*tensors: str) -> SafetensorsHeader:
    return SafetensorsHeader(frozenset(tensors), 1, {"F32": 4}, 8)


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"x": "a", "z": "a", "y": "b"}, "shard a lacks 1 tensors that the index expects there: 'z'"),
        ({"x": "b", "y": "b"}, "shard a holds 1 tensors that the index expects elsewhere: 'x'"),
        ({"y": "b"}, "shard a holds 1 tensors that the index does not name: 'x'"),
    ],
)
def test_index_and_shards_differ(mapping: dict[str, str], says: str) -> None:
    with pytest.raises(UnsupportedArtifact, match=says):
        check_shards(mapping, {"a": holds("x"), "b": holds("y")}, "here")


def test_index_and_shards_agree() -> None:
    check_shards({"x": "a", "y": "b"}, {"a": holds("x"), "b": holds("y")}, "here")


def part(number: int, count: int, *tensors: str, total: int = 2) -> GgufHeader:
    split = SplitPart(number, count, total) if count else None
    return GgufHeader(3, frozenset(), {}, frozenset(tensors), {}, 0, 0, split)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([part(1, 3, "x")], "a is part 2 of 3 of a split model"),
        ([part(0, 2, "x"), part(0, 2, "y")], "b says in its header that it is part 1 of 2, not part 2 of 2"),
        ([part(0, 2, "x"), part(0, 0, "y")], "b says in its header that it is a whole model"),
        ([part(0, 2, "x"), part(1, 2, "x")], "b holds tensors of an earlier part: 'x'"),
        ([part(0, 2, "x"), part(1, 2, "y", "z")], "the parts hold 3 tensors, their headers say 2"),
    ],
)
def test_parts_that_are_no_set(parts: list[GgufHeader], says: str) -> None:
    with pytest.raises(UnsupportedArtifact, match=says):
        check_parts(list(zip("ab", parts, strict=False)), "here")


def test_parts_that_are_a_set() -> None:
    check_parts([("a", part(0, 2, "x")), ("b", part(1, 2, "y"))], "here")
    check_parts([("a", part(0, 0, "x"))], "here")


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        (".standby/engine-cache/x.cache1", True),
        ("m7/.standby/model.gguf", True),
        (".standby", False),
        ("standby/model.gguf", False),
        ("x.standby/model.gguf", False),
        ("model.gguf", False),
    ],
)
def test_what_standby_wrote_beside_a_model(path: str, ours: bool) -> None:
    assert is_ours(path) is ours
