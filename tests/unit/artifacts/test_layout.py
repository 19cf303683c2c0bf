"""Which objects make up a model, decided from names and sizes alone."""

from __future__ import annotations

import pytest

from standby.artifacts.layout import check_index, choose_layout
from standby.domain.errors import UnsupportedArtifact
from standby.domain.model import ModelFormat, ObjectRef

pytestmark = pytest.mark.decision


def refs(*paths: str) -> list[ObjectRef]:
    return [ObjectRef(key=f"m/{path}", path=path, size=10) for path in paths]


def chosen(*paths: str) -> list[str]:
    return [ref.path for ref in choose_layout(refs(*paths), "here").objects]


def test_one_gguf_is_the_model_and_nothing_else_is_taken() -> None:
    layout = choose_layout(refs("README.md", "model.gguf", ".gitattributes"), "here")
    assert layout.format is ModelFormat.GGUF
    assert [ref.path for ref in layout.objects] == ["model.gguf"]


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


def test_index_names_missing_shards() -> None:
    """Field case B03: an engine would load uninitialised weights and call itself healthy."""
    with pytest.raises(UnsupportedArtifact, match=r"1 of 2 shards that the index names are missing: b\.safetensors"):
        check_index({"x": "a.safetensors", "y": "b.safetensors"}, refs("a.safetensors"), "here")
