"""The real model as safetensors on its whole way: registered from a real store, fetched, unpacked, mapped."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
from safetensors import safe_open
from tokenizers import Tokenizer

from standby.artifacts.inspection import inspect
from standby.domain.model import Compression, EngineKind, Manifest, ModelFormat, SourceOptions
from standby.warm_pool.cache import ArtifactCache
from support.real_model import real_model_path
from support.s3_server import S3Server
from support.safetensors_twin import twin_archive, twin_folder

TEXT = "<|im_start|>user\nName 2 capitals: Paris, Łódź.<|im_end|>\n"

pytestmark = pytest.mark.drill


@pytest_asyncio.fixture(loop_scope="session")
async def twin_bucket(s3: S3Server, bucket: str) -> AsyncIterator[str]:
    """A bucket that gives its hundreds of megabytes back."""
    yield bucket
    for page in s3.store(bucket).list():
        for item in page:
            await s3.delete(bucket, item["path"])


async def upload(s3: S3Server, bucket: str, folder: Path) -> str:
    for path in folder.iterdir():
        await s3.upload(bucket, f"twin/{path.name}", path)
    return f"s3://{bucket}/twin/"


def digests_of(folder: Path) -> Mapping[str, str]:
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in folder.rglob("*") if path.is_file()}


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def assert_the_real_model(manifest: Manifest) -> None:
    """What registration says of the twin is what it says of the GGUF that the twin was made of."""
    origin = (await inspect(f"file://{real_model_path()}", SourceOptions())).facts
    facts = manifest.facts
    assert manifest.format is ModelFormat.SAFETENSORS
    assert facts.architecture == "LlamaForCausalLM"
    # The GGUF has no output matrix of its own either: both count the shared one once.
    assert (facts.parameter_count, facts.tensor_count) == (origin.parameter_count, 272) == (134_515_008, 272)
    assert (facts.context_length, facts.kv_bytes_per_token) == (origin.context_length, origin.kv_bytes_per_token)
    assert facts.dtypes == ("BF16",)
    assert facts.has_chat_template
    assert facts.has_tokenizer
    assert set(manifest.refusals) == {EngineKind.LLAMA_CPP}


async def assert_arrives_whole(manifest: Manifest, original: Path, root: Path) -> Path:
    """The files in the node's cache are the uploaded ones, byte for byte; returns their folder."""
    cache = ArtifactCache(root, 1 << 40)
    await cache.open()
    seen: list[int] = []
    folder = await cache.ensure(manifest, lambda done, _total: seen.append(done))
    assert digests_of(folder) == digests_of(original) == cache.sha256(manifest.digest)
    assert seen == sorted(seen)
    await cache.close()
    return folder


@pytest.mark.parametrize("shards", [1, 4])
async def test_folder_of_the_real_model(s3: S3Server, twin_bucket: str, tmp_path: Path, shards: int) -> None:
    original = twin_folder(shards)
    manifest = await inspect(await upload(s3, twin_bucket, original), s3.options)
    await assert_the_real_model(manifest)
    assert len([ref for ref in manifest.objects if ref.path.endswith(".safetensors")]) == shards
    await assert_arrives_whole(manifest, original, tmp_path / "cache")


async def test_archive_of_the_real_model(s3: S3Server, twin_bucket: str, tmp_path: Path) -> None:
    await s3.upload(twin_bucket, "model.tar.gz", twin_archive("model.tar.gz"))
    manifest = await inspect(f"s3://{twin_bucket}/model.tar.gz", s3.options)
    await assert_the_real_model(manifest)
    assert manifest.archive is not None
    assert manifest.archive.compression is Compression.GZIP
    await assert_arrives_whole(manifest, twin_folder(), tmp_path / "cache")


def test_the_twin_is_what_other_readers_expect() -> None:
    """The format's own library reads the weights, and the tokenizer brings back every text, special tokens as one each."""
    with safe_open(twin_folder() / "model.safetensors", framework="numpy") as weights:
        assert len(weights.keys()) == 272
        assert weights.get_slice("model.layers.29.self_attn.k_proj.weight").get_shape() == [192, 576]
    tokenizer = Tokenizer.from_file(str(twin_folder() / "tokenizer.json"))
    encoded = tokenizer.encode(TEXT)
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == TEXT
    assert encoded.tokens[0] == "<|im_start|>"
    assert tokenizer.get_vocab_size() == 49_152
