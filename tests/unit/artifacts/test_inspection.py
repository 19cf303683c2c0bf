"""Registration of folders, single files and archives on a disk: the same checks as in a store, without one."""

from __future__ import annotations

import asyncio
import gzip
import json
import tarfile
import threading
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from standby.artifacts.archive import ReadCancelled, read_archive
from standby.artifacts.archive_rules import ArchiveLimits
from standby.artifacts.data_source import SourceHint
from standby.artifacts.inspection import inspect
from standby.artifacts.sources import open_source
from standby.domain.errors import EmptySource, InvalidInput, StandbyError, UnsupportedArtifact
from standby.domain.model import Compression, EngineKind, Manifest, Member, ModelFormat, SourceOptions
from support.archive_builder import entry, tar, tar_gz, wrapped
from support.gguf_builder import KEYS, gguf
from support.safetensors_builder import CONFIG, index, model, safetensors

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n"
Files = Mapping[str, bytes]


def write(folder: Path, files: Files) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


async def of_folder(folder: Path, files: Files, **allowed: Any) -> Manifest:
    write(folder, files)
    return await inspect(f"file://{folder}", SourceOptions(), **allowed)


async def of_archive(folder: Path, content: bytes, name: str = "model.tar.gz", **allowed: Any) -> Manifest:
    (folder / name).write_bytes(content)
    return await inspect(f"file://{folder}/{name}", SourceOptions(), **allowed)


async def of_kind(folder: Path, files: Files, packed: Compression | None) -> Manifest:
    if packed is None:
        return await of_folder(folder, files)
    if packed is Compression.GZIP:
        return await of_archive(folder, tar_gz(files))
    return await of_archive(folder, tar(files), "model.tar")


def without(files: Files, *paths: str, **replaced: bytes) -> dict[str, bytes]:
    return {path: replaced.get(path.partition(".")[0], content) for path, content in files.items() if path not in paths}


async def test_safetensors(tmp_path: Path) -> None:
    manifest = await of_folder(tmp_path, model(shards=3))
    facts = manifest.facts
    assert manifest.format is ModelFormat.SAFETENSORS
    assert (facts.architecture, facts.context_length, facts.quantisation) == ("LlamaForCausalLM", 4096, "bfloat16")
    assert (facts.tensor_count, facts.parameter_count, facts.dtypes) == (3, 96, ("BF16",))
    assert (facts.has_tokenizer, facts.has_chat_template, facts.kv_bytes_per_token) == (True, True, 128)
    assert manifest.refusals.keys() == {EngineKind.LLAMA_CPP}
    assert manifest.notes == ()


async def test_split_gguf(tmp_path: Path) -> None:
    first = gguf({**KEYS, "split.count": 2, "split.no": 0, "split.tensors.count": 2})
    second = gguf({"split.count": 2, "split.no": 1, "split.tensors.count": 2}, name="blk.0")
    names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    manifest = await of_folder(tmp_path, dict(zip(names, (first, second), strict=True)))
    assert [ref.path for ref in manifest.objects] == names
    assert (manifest.facts.name, manifest.facts.tensor_count, manifest.facts.parameter_count) == ("Tiny", 2, 256)
    with pytest.raises(UnsupportedArtifact, match="part 1 of 2 of a split model; register the folder"):
        await of_folder(tmp_path / "one", {"whole.gguf": first})


async def test_stray_files_are_noted_and_not_taken(tmp_path: Path) -> None:
    """Code and pickles beside good weights are left where they are; so is a broken shard that the index does not name."""
    stray = {"stray.safetensors": b"x", "modeling_x.py": b"", "pytorch_model.bin": b"x", "original/w.safetensors": b"x"}
    manifest = await of_folder(tmp_path, {**model(shards=2), **stray})
    assert not {ref.path for ref in manifest.objects} & stray.keys()
    assert [note.partition(":")[0] for note in manifest.notes] == [
        "left out modeling_x.py",
        "left out pytorch_model.bin",
        "left out original/w.safetensors",
        "left out stray.safetensors",
    ]


SHARD = "model-00001-of-00002.safetensors"
WRONG_INDEX = index({"w0": SHARD, "w1": "model-00002-of-00002.safetensors", "w9": SHARD})

BAD: list[tuple[Files, str]] = [
    ({**model(), "model.safetensors": POINTER}, "model.safetensors is a Git LFS pointer of 128 bytes.*upload the real file"),
    ({**model(), "config.json": POINTER}, "config.json is a Git LFS pointer"),
    ({"model.gguf": POINTER}, "model.gguf is a Git LFS pointer"),
    ({**model(), "model.safetensors": b""}, "model.safetensors of 0 bytes among the weights; upload it again"),
    ({**model(), "model.safetensors": safetensors() + b"x"}, "model.safetensors: safetensors with 1 trailing bytes"),
    ({**model(), "model.safetensors": safetensors()[:-1]}, "model.safetensors: truncated safetensors: .* 63 are there"),
    ({**model(), "model.safetensors": b"\xff" * 64}, "model.safetensors: no safetensors file: its first 8 bytes claim"),
    ({**model(shards=2), "model.safetensors.index.json": WRONG_INDEX}, "lacks 1 tensors that the index expects there: 'w9'"),
    ({**model(shards=2), SHARD: safetensors({"other": ("F32", (1,))})}, "lacks 1 tensors .*'w0'"),
    ({**model(shards=2), SHARD: b""}, f"{SHARD} of 0 bytes among the weights"),
    (without(model(shards=2), SHARD), f"1 of 2 shards that the index names are missing: {SHARD}"),
    ({**model(), "config.json": b"{"}, "config.json is not JSON"),
    ({**model(), "config.json": b"[]"}, "config.json holds no JSON object"),
    ({**model(), "config.json": b"[" * 100_000}, "config.json is not JSON"),
    ({**model(), "config.json": b'{"a": "\xff"}'}, "config.json is not JSON"),
    (model(auto_map={"AutoModel": "modeling_x.X"}), "config.json asks for the model's own Python code"),
    ({**model(), "tokenizer_config.json": b'{"auto_map": {"a": "b"}}'}, "tokenizer_config.json asks for the model's own"),
    ({"pytorch_model.bin": b"x", "config.json": b"{}"}, "only pickled weights"),
    ({"model.gguf": gguf()[:-1]}, "model.gguf: truncated GGUF: the tensors need"),
    ({"model.gguf": b"PK\x03\x04" * 20}, "model.gguf: not a GGUF file"),
    ({"m-00001-of-00002.gguf": gguf()}, "1 of 2 parts of the GGUF are missing: m-00002-of-00002.gguf"),
    ({"m-00001-of-00002.gguf": gguf(), "m-00002-of-00002.gguf": gguf()}, "m-00001-of-00002.gguf says in its header that it"),
    ({"README.md": b"x"}, "no weights among them"),
]


@pytest.mark.parametrize("packed", [None, Compression.GZIP, Compression.NONE])
@pytest.mark.parametrize(("files", "says"), BAD, ids=[says[:40] for _, says in BAD])
async def test_bad_model(tmp_path: Path, files: Files, says: str, packed: Compression | None) -> None:
    """Each is refused in a sentence that names the file, from a folder as from both kinds of archive."""
    with pytest.raises(UnsupportedArtifact, match=says) as caught:
        await of_kind(tmp_path, files, packed)
    message = str(caught.value)
    assert message.startswith(f"folder '{tmp_path}'" if packed is None else f"archive file://{tmp_path}/model.tar")
    assert caught.value.remedy
    assert "\n" not in message


@pytest.mark.parametrize("content", [tar_gz(model(shards=2)), tar(model(shards=2))])
async def test_archive(tmp_path: Path, content: bytes) -> None:
    manifest = await of_archive(tmp_path, content)
    plain = await of_folder(tmp_path / "same", model(shards=2))
    assert manifest.facts == plain.facts
    assert manifest.archive is not None
    assert set(manifest.files) == set(plain.files)
    assert [ref.path for ref in manifest.objects] == ["model.tar.gz"]
    assert manifest.total_bytes == len(content)
    assert manifest.archive.compression is (Compression.GZIP if content.startswith(b"\x1f\x8b") else Compression.NONE)


async def test_archive_with_everything_that_is_left_out(tmp_path: Path) -> None:
    """The layout of SageMaker's own packers: one folder around the model, code beside it, and what a Mac adds."""
    files = {
        **wrapped("smol", {**model(), "README.md": b"x", "modeling_x.py": b"x"}),
        "code/inference.py": b"import os",
        "code/requirements.txt": b"",
        "._smol": b"x",
        "__MACOSX/smol/._config.json": b"x",
    }
    manifest = await of_archive(tmp_path, tar_gz(files), "model.tgz")
    assert manifest.archive is not None
    assert manifest.archive.wrapper == "smol"
    assert sorted(file.path for file in manifest.files) == sorted(model())
    assert manifest.notes == (
        "unwrapped folder smol",
        "left out 2 files: the folder code/: nothing from a model is executed",
        "left out 1 files: files that an operating system wrote beside the model",
        "left out 1 files: the folder __MACOSX/: no part of a model",
        "left out modeling_x.py: nothing from a model is executed",
    )


async def test_gguf_in_an_archive(tmp_path: Path) -> None:
    manifest = await of_archive(tmp_path, tar_gz({"deep/er/model.gguf": gguf()}))
    assert manifest.format is ModelFormat.GGUF
    assert manifest.files == (Member(path="er/model.gguf", size=len(gguf())),)
    assert manifest.facts.name == "Tiny"


BOMB = gzip.compress(tar({"config.json": b"{}", "zeros.bin": bytes(64 << 20)}), compresslevel=9)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (tar_gz({"../../agent.conf": b"x"}), "member '../../agent.conf' holds '..' and could leave the model's folder"),
        (tar_gz({**model(), "/etc/cron.d/x": b"x"}), "member '/etc/cron.d/x' is an absolute path"),
        (tar_gz([entry("w", kind=tarfile.SYMTYPE, link="/etc"), entry("w/x", b"x")]), "member 'w' is a symbolic link"),
        (tar_gz([entry("w", kind=tarfile.SYMTYPE, link="model.gguf")]), "member 'w' is a symbolic link"),
        (tar_gz([entry("w", kind=tarfile.LNKTYPE, link="../../x")]), "member 'w' is a hard link"),
        (tar_gz([entry("w", kind=tarfile.FIFOTYPE)]), "member 'w' is a FIFO"),
        (tar_gz([entry("w", kind=tarfile.CHRTYPE)]), "member 'w' is a device"),
        (tar_gz([entry("a", b"x"), entry("./a", b"y")]), "member './a' is there twice"),
        (tar_gz([entry("a", b"x"), entry("a/b", b"y")]), "member 'a/b' lies in a folder that is also a file"),
        (tar_gz({f"{number}": b"" for number in range(201)}), "the archive has more than 200 members"),
        (BOMB, "more than 200 for one: a compression bomb"),
        (tar_gz({"a": b"x" * 1_100_000}), "has 1100000 bytes, more than the limit of 1000000"),
        (tar_gz({"a": b"x" * 600_000, "b": b"x" * 600_000}), "member 'b' brings the unpacked size past the limit"),
        (tar_gz(model())[:-4], "truncated gzip"),
        (gzip.compress(tar(model())[:-9000]), "truncated tar"),
        (b"PK\x03\x04" * 100, "neither gzip nor tar: it begins with b'PK"),
        (POINTER, "model.tar.gz is a Git LFS pointer"),
        (gzip.compress(b"not a tar at all" * 100), "no tar, or a damaged one"),
    ],
)
async def test_bad_archive(tmp_path: Path, content: bytes, says: str) -> None:
    """Field case B06."""
    with pytest.raises(UnsupportedArtifact) as caught:
        await of_archive(
            tmp_path, content, limits=ArchiveLimits(unpacked_bytes=1_000_000 if content != BOMB else 1 << 30, members=200)
        )
    message = str(caught.value)
    assert says in message
    assert message.startswith(f"archive file://{tmp_path}/model.tar.gz: ")
    assert "\n" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["model.tar.gz"], "nothing was written"


async def test_empty_archive(tmp_path: Path) -> None:
    with pytest.raises(EmptySource, match="0 files"):
        await of_archive(tmp_path, tar_gz({}))
    with pytest.raises(EmptySource, match="1 files, 0 of them of a model"):
        await of_archive(tmp_path, tar_gz({"code/inference.py": b"x"}))


async def test_a_large_archive_takes_little_memory(tmp_path: Path) -> None:
    """Weights pass through; what stays are their headers."""
    weights = safetensors({"w": ("F32", (16 << 20,))})
    content = gzip.compress(tar({**model(), "model.safetensors": weights}), compresslevel=1)
    (tmp_path / "model.tar.gz").write_bytes(content)
    del weights, content
    tracemalloc.start()
    try:
        manifest = await inspect(f"file://{tmp_path}/model.tar.gz", SourceOptions())
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    assert manifest.facts.parameter_count == 16 << 20


async def test_archives_in_folders_are_named(tmp_path: Path) -> None:
    write(tmp_path, {"model.tar.gz": tar_gz(model())})
    with pytest.raises(UnsupportedArtifact, match=r"to register an archive, name it: …/model\.tar\.gz"):
        await inspect(f"file://{tmp_path}/", SourceOptions())


@pytest.mark.parametrize(
    ("name", "hint", "says"),
    [
        ("folder/", SourceHint.ARCHIVE, "an archive was expected"),
        ("folder", SourceHint.OBJECT, "one was expected"),
    ],
)
async def test_hint_that_is_wrong(tmp_path: Path, name: str, hint: SourceHint, says: str) -> None:
    write(tmp_path / "folder", model())
    with pytest.raises(InvalidInput, match=says):
        await inspect(f"file://{tmp_path}/{name}", SourceOptions(), hint=hint)


async def test_archive_of_any_name_by_hint(tmp_path: Path) -> None:
    manifest = await of_archive(tmp_path, tar_gz(model()), "model", hint=SourceHint.ARCHIVE)
    assert manifest.archive is not None
    with pytest.raises(UnsupportedArtifact, match="neither gzip nor tar"):
        await of_archive(tmp_path, gguf(), "model", hint=SourceHint.ARCHIVE)


async def test_what_the_operator_allows(tmp_path: Path) -> None:
    """With his permission pickles and code are taken; the notes and the engines' refusals say what they are."""
    files = {
        **without(model(auto_map={"AutoModel": "modeling_x.X"}), "model.safetensors"),
        "pytorch_model.bin": b"x",
        "modeling_x.py": b"",
    }
    manifest = await of_folder(tmp_path, files, allow_pickles=True, allow_remote_code=True)
    assert manifest.format is ModelFormat.PICKLE
    assert {"pytorch_model.bin", "modeling_x.py"} <= {ref.path for ref in manifest.objects}
    assert EngineKind.VLLM not in manifest.refusals


async def test_a_caller_who_leaves_ends_the_reading(tmp_path: Path) -> None:
    (tmp_path / "model.tar").write_bytes(tar(model()))
    source = open_source(f"file://{tmp_path}/model.tar", SourceOptions())
    (ref,) = await source.list()
    stop = threading.Event()
    stop.set()
    with pytest.raises(ReadCancelled):
        await asyncio.to_thread(read_archive, source, ref, "here", ArchiveLimits(), stop)


async def test_errors_are_of_our_own_tree(tmp_path: Path) -> None:
    """Whatever a config holds, the answer is a manifest or one of our own errors."""
    values: tuple[Any, ...] = (None, True, -1, 1e300, "x" * 100_000, [], [[]], {"a": None}, 1 << 70)
    for value in values:
        folder = tmp_path / str(abs(hash(str(value)[:50])))
        content = json.dumps(dict.fromkeys([*CONFIG, "text_config", "quantization_config", "layer_types"], value)).encode()
        try:
            manifest = await of_folder(folder, {**model(), "config.json": content})
        except StandbyError:
            continue
        assert len(manifest.facts.architecture) <= 200
