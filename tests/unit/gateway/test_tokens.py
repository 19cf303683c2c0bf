"""Counting prompts with a model's own tokenizer: where it lies, when it is read, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gguf
import pytest
from tokenizers import Tokenizer

from standby.artifacts.bpe import bpe_tokenizer
from standby.artifacts.credentials import Credentials
from standby.artifacts.files import FileSource
from standby.artifacts.inspection import inspect
from standby.bus.tables import Table
from standby.domain.access import StoredCredential
from standby.domain.ask import Ask
from standby.domain.model import Archive, Compression, Manifest, Member, Model, ObjectRef, SourceOptions
from standby.gateway import tokens
from standby.gateway.hybrid import TokenCount
from standby.gateway.tokens import PromptTokens, place_of
from support.builders import a_manifest, a_model
from support.gguf_builder import gguf as a_gguf
from support.real_model import real_model_path
from support.twin_tokenizer import write_tokenizer
from support.waiting import until

TEXTS = (
    "",
    "Name the capital of France.",
    "12345 apples, 3.14159 - don't!\n\n\tdef f(x):\n        return x ** 2\n",
    "Über die Brücke gingen 7 Zwerge… 東京タワーは333メートルです。 🙂🙃",
    "<|im_start|>user\nhello<|im_end|>\n",
)


class _Nothing:
    """No stored keys are asked for."""

    async def get(self, _key: str) -> None:
        raise AssertionError


def _counter(now: Callable[[], float] = lambda: 0.0) -> PromptTokens:
    return PromptTokens(cast("Table[StoredCredential]", _Nothing()), None, now)


def _ask(text: str) -> Ask:
    return Ask(prompt_bytes=len(text.encode()), prompt=lambda: text)


async def _real_model(**changes: Any) -> Model:
    return a_model(manifest=await inspect(real_model_path().as_uri(), SourceOptions()), **changes)


async def _loaded(counting: PromptTokens, model: Model) -> Callable[[Ask], TokenCount | None]:
    """Return what counts once the tokenizer is there."""
    counter = counting.counter(model)
    assert counter is not None
    counter(_ask("anything"))
    await until(lambda: not counting._loading)
    return counter


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model's tokenizer as the Hugging Face layout has it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(gguf.GGUFReader(real_model_path()), folder, context_length=2048)
    return folder


async def test_a_gguf_counts_as_its_tokenizer_json_does(files: Path) -> None:
    reference = Tokenizer.from_file(str(files / "tokenizer.json"))
    counting = _counter()
    counter = await _loaded(counting, await _real_model())
    for text in TEXTS:
        assert counter(_ask(text)) == TokenCount(len(reference.encode(text, add_special_tokens=False).ids), estimated=False)


async def test_the_tokenizer_of_any_of_the_weights_will_do(files: Path) -> None:
    """A tokenizer.json is read as it is; the model's own weights need not have one."""
    listed = await FileSource(files, SourceOptions()).list()
    ref = next(one for one in listed if one.path == "tokenizer.json")
    other = Manifest(source_uri=f"{files.as_uri()}/", format=a_manifest().format, objects=(ref,))
    model = a_model(manifest=a_manifest(), weights={"bf16": other})
    counting = _counter()
    counter = await _loaded(counting, model)
    assert counter(_ask("Name the capital of France.")) == TokenCount(6, estimated=False)


async def test_it_is_read_once_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Manifest] = []
    real = tokens.read_tokenizer

    def read(manifest: Manifest, ref: ObjectRef, keys: Credentials | None) -> Tokenizer | None:
        reads.append(manifest)
        return real(manifest, ref, keys)

    monkeypatch.setattr(tokens, "read_tokenizer", read)
    counting = _counter()
    model = await _real_model()
    counters = [counting.counter(model) for _ in range(20)]
    assert [counter(_ask("hello")) for counter in counters if counter is not None] == [None] * 20
    await until(lambda: not counting._loading)
    assert all(counter(_ask("hello")) == TokenCount(1, False) for counter in counters if counter is not None)
    assert len(reads) == 1


async def test_a_count_is_kept_and_the_oldest_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    real = tokens.count

    def count(tokenizer: Tokenizer, text: str) -> TokenCount:
        counted.append(text)
        return real(tokenizer, text)

    monkeypatch.setattr(tokens, "count", count)
    monkeypatch.setattr(tokens, "KEPT_COUNTS", 2)
    counting = _counter()
    counter = await _loaded(counting, await _real_model())
    for text in ("a", "b", "a", "b", "c", "b", "a"):
        counter(_ask(text))
    assert counted == ["a", "b", "c", "a"]


async def test_a_long_prompt_is_counted_at_its_beginning() -> None:
    counting = _counter()
    counter = await _loaded(counting, await _real_model())
    whole, part = "one two three four " * 10_000, "one two three four " * 1000
    short = counter(_ask(part))
    long = counter(_ask(whole))
    assert short is not None
    assert long is not None
    assert (short.estimated, long.estimated) == (False, True)
    assert long.tokens == pytest.approx(short.tokens * 10, rel=0.01)


async def test_what_cannot_be_read_is_estimated_and_asked_for_again(tmp_path: Path) -> None:
    now = 0.0
    counting = _counter(lambda: now)
    path = tmp_path / "model.gguf"
    path.write_bytes(a_gguf())
    model = a_model(manifest=await inspect(path.as_uri(), SourceOptions()))
    content = path.read_bytes()
    path.unlink()
    counter = await _loaded(counting, model)
    assert counter(_ask("hello")) is None
    assert not counting._loading
    path.write_bytes(content)
    now = tokens.RETRY_S + 1
    assert counter(_ask("hello")) is None
    assert counting._loading
    await counting.stop()


async def test_the_least_used_tokenizer_leaves_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    monkeypatch.setattr(tokens, "KEPT_BYTES", 100)
    counting = _counter()
    real = await _loaded(counting, await _real_model())
    listed = await FileSource(files, SourceOptions()).list()
    ref = next(one for one in listed if one.path == "tokenizer.json")
    other = Manifest(source_uri=f"{files.as_uri()}/", format=a_manifest().format, objects=(ref,))
    assert (await _loaded(counting, a_model(manifest=other)))(_ask("hello")) == TokenCount(1, False)
    assert real(_ask("hello")) is None
    await counting.stop()


@pytest.mark.parametrize("content", [b"{}", json.dumps({"model": 1}).encode(), b"\xff" * 100])
async def test_a_broken_tokenizer_json_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    (ref,) = await FileSource(tmp_path, SourceOptions()).list()
    manifest = Manifest(source_uri=f"{tmp_path.as_uri()}/", format=a_manifest().format, objects=(ref,))
    assert tokens.read_tokenizer(manifest, ref, None) is None


async def _of_json(folder: Path, content: dict[str, Any]) -> Model:
    (folder / "tokenizer.json").write_text(json.dumps(content))
    listed = await FileSource(folder, SourceOptions()).list()
    return a_model(manifest=Manifest(source_uri=f"{folder.as_uri()}/", format=a_manifest().format, objects=tuple(listed)))


_BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "merges": [], "unk_token": "[UNK]"}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _replaced(by: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": "a"}, "content": by}


async def test_a_tokenizer_that_fails_at_a_text_is_not_asked_again(tmp_path: Path) -> None:
    """It has no token for what it does not know."""
    model = await _of_json(tmp_path, {"model": {**_BPE, "vocab": {"a": 0}}})
    counting = _counter()
    counter = await _loaded(counting, model)
    assert counter(_ask("aa")) == TokenCount(2, False)
    assert counter(_ask("unheard of")) is None
    assert counter(_ask("aa again")) is None
    assert not counting._loading


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"pre_tokenizer": _split(r"\p{N}{1,3}")}, True),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [_split(r"\p{N}"), {"type": "WhitespaceSplit"}]}}, True),
        ({"pre_tokenizer": _split("(a+)+$")}, False),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [_split("(a+)+$")]}}, False),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}, _replaced("b")]}}, True),
        ({"normalizer": _replaced("b" * 20_000)}, False),
        ({"normalizer": {"type": "Sequence", "normalizers": [_replaced("a" * 10)] * 8}}, False),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}, False),
        ({"model": {**_BPE, "continuing_subword_prefix": "#" * 20_000}}, False),
    ],
)
async def test_only_what_grows_with_the_text_alone_counts(tmp_path: Path, changes: dict[str, Any], counts: bool) -> None:
    """A pattern could take minutes for a short text, and a replacement make gigabytes of it, in everybody's gateway."""
    counter = await _loaded(_counter(), await _of_json(tmp_path, {"model": _BPE, **changes}))
    assert (counter(_ask("bbb")) is not None) is counts


async def test_a_tokenizers_own_limits_do_not_count(tmp_path: Path) -> None:
    """Nor does its padding: both are for training."""
    limits = {
        "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "a",
        },
    }
    counter = await _loaded(_counter(), await _of_json(tmp_path, {"model": _BPE, **limits}))
    assert counter(_ask("abab")) == TokenCount(4, False)


async def test_a_gguf_whose_merges_make_no_token_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(a_gguf())
    model = a_model(manifest=await inspect(path.as_uri(), SourceOptions()))
    monkeypatch.setattr(tokens, "gguf_tokenizer", lambda _read, _size: bpe_tokenizer(["a"], ["x y"], [], split="gpt-2"))
    counting = _counter()
    counter = await _loaded(counting, model)
    assert counter(_ask("hello")) is None
    assert not counting._loading


async def test_a_request_that_waits_is_read_once() -> None:
    reads = 0

    def prompt() -> str:
        nonlocal reads
        reads += 1
        return "hello"

    ask = Ask(prompt_bytes=5, prompt=prompt)
    counter = await _loaded(_counter(), await _real_model())
    assert [counter(ask) for _ in range(3)] == [TokenCount(1, False)] * 3
    assert reads == 1


def test_neither_an_archive_nor_a_huge_file_is_read() -> None:
    archived = a_manifest(archive=Archive(compression=Compression.GZIP, members=(Member(path="tokenizer.json", size=9),)))
    assert place_of(a_model(manifest=archived)) is None
    huge = ObjectRef(key="m/tokenizer.json", path="tokenizer.json", size=tokens.MAX_TOKENIZER_BYTES + 1)
    assert place_of(a_model(manifest=a_manifest(objects=(huge,)))) is None
