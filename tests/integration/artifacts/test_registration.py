"""Registration against a real S3 server: what is taken, and what is refused in which words."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from standby.artifacts.inspection import inspect
from standby.domain.errors import EmptySource, SourceUnreachable, StandbyError, UnsupportedArtifact
from standby.domain.model import Manifest, ModelFormat, SourceOptions
from support.archive_builder import wrapped
from support.gguf_builder import gguf
from support.real_model import real_model_path
from support.s3_server import S3Server, put_raw
from support.safetensors_builder import model, safetensors

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHARDED = model(shards=2)


async def put(s3: S3Server, bucket: str, objects: Mapping[str, bytes]) -> None:
    for key, content in objects.items():
        await s3.upload(bucket, key, content)


async def registered(s3: S3Server, uri: str) -> Manifest:
    return await inspect(uri, s3.options)


async def refusal(s3: S3Server, uri: str, kind: type[StandbyError]) -> str:
    with pytest.raises(kind) as caught:
        await inspect(uri, s3.options)
    message = str(caught.value)
    assert "Debug source" not in message, "the store library's own text reached the user"
    assert "\n" not in message
    return message


async def test_real_model(s3: S3Server, bucket: str) -> None:
    await s3.upload(bucket, "smol/model.gguf", real_model_path())
    manifest = await registered(s3, f"s3://{bucket}/smol/")
    assert manifest.format is ModelFormat.GGUF
    assert manifest.total_bytes == real_model_path().stat().st_size
    assert manifest.facts.parameter_count == 134_515_008
    assert manifest.objects[0].etag
    assert manifest == await registered(s3, f"s3://{bucket}/smol/"), "the same bytes are the same version"


async def test_mistyped_prefix(s3: S3Server, bucket: str) -> None:
    """Field case B01 a: refused at registration, naming bucket, prefix and "0 objects"."""
    await put(s3, bucket, {"team/llm/model.gguf": gguf()})
    message = await refusal(s3, f"s3://{bucket}/team/llm-typo/", EmptySource)
    assert bucket in message
    assert "'team/llm-typo/'" in message
    assert "0 objects" in message


@pytest.mark.parametrize("suffix", ["", "/"])
async def test_neighbour_is_never_taken(s3: S3Server, bucket: str, suffix: str) -> None:
    """Field case B01 b: m7-instruct/ begins like m7 and is another model."""
    await put(s3, bucket, {"m7/model.gguf": gguf(), "m7-instruct/model.gguf": gguf(seed=1), "m7.gguf": gguf(seed=2)})
    manifest = await registered(s3, f"s3://{bucket}/m7{suffix}")
    assert [ref.key for ref in manifest.objects] == ["m7/model.gguf"]


async def test_only_the_neighbour_is_there(s3: S3Server, bucket: str) -> None:
    await put(s3, bucket, {"m7-instruct/model.gguf": gguf()})
    assert "0 objects" in await refusal(s3, f"s3://{bucket}/m7", EmptySource)


async def test_one_object(s3: S3Server, bucket: str) -> None:
    """Field case B01 c: the object itself, as a one-file model; with a slash it is an empty prefix."""
    await put(s3, bucket, {"team/model.gguf": gguf(), "team/other.gguf": gguf(seed=1)})
    manifest = await registered(s3, f"s3://{bucket}/team/model.gguf")
    assert [(ref.key, ref.path) for ref in manifest.objects] == [("team/model.gguf", "model.gguf")]
    assert "0 objects" in await refusal(s3, f"s3://{bucket}/team/model.gguf/", EmptySource)


async def test_one_safetensors_object_is_no_model(s3: S3Server, bucket: str) -> None:
    """Field case B01 c: refused whole, never half."""
    await put(s3, bucket, {"m/model.safetensors": safetensors(), "m/config.json": b"{}"})
    assert "without config.json" in await refusal(s3, f"s3://{bucket}/m/model.safetensors", UnsupportedArtifact)


async def test_only_empty_objects(s3: S3Server, bucket: str) -> None:
    await put(s3, bucket, {"m/model.gguf": b""})
    assert "1 objects, every one of 0 bytes" in await refusal(s3, f"s3://{bucket}/m/", EmptySource)


async def test_folder_markers_are_skipped(s3: S3Server, bucket: str) -> None:
    """Consoles create zero-byte objects whose keys end in a slash."""
    await put(s3, bucket, {"m/config.json": b"{}", "m/model.safetensors": safetensors()})
    await put_raw(s3, bucket, "m/notes.txt/")
    await put_raw(s3, bucket, "m/")
    await put_raw(s3, bucket, "m/model.safetensors.index.json/")
    manifest = await registered(s3, f"s3://{bucket}/m/")
    assert [ref.path for ref in manifest.objects] == ["config.json", "model.safetensors"]


async def test_several_gguf_objects(s3: S3Server, bucket: str) -> None:
    await put(s3, bucket, {"m/q4.gguf": gguf(), "m/q8.gguf": gguf(seed=1)})
    message = await refusal(s3, f"s3://{bucket}/m/", UnsupportedArtifact)
    assert "q4.gguf, q8.gguf" in message
    assert "register one object" in message


@pytest.mark.parametrize(
    ("content", "says"),
    [(gguf()[:-1], "truncated GGUF"), (b"PK\x03\x04" * 20, "not a GGUF file"), (gguf()[:100], "truncated GGUF")],
)
async def test_broken_gguf(s3: S3Server, bucket: str, content: bytes, says: str) -> None:
    await put(s3, bucket, {"m/model.gguf": content})
    message = await refusal(s3, f"s3://{bucket}/m/", UnsupportedArtifact)
    assert says in message
    assert "model.gguf" in message


async def test_pickles_are_refused(s3: S3Server, bucket: str) -> None:
    """Field case B06: loading them would run a tenant's code."""
    await put(s3, bucket, {"m/pytorch_model.bin": b"x", "m/config.json": b"{}"})
    assert "runs whatever code" in await refusal(s3, f"s3://{bucket}/m/", UnsupportedArtifact)


async def test_indexed_safetensors(s3: S3Server, bucket: str) -> None:
    """A stray shard that the index does not name is not taken."""
    await put(s3, bucket, {**wrapped("m", SHARDED), "m/consolidated.safetensors": b"y" * 64})
    manifest = await registered(s3, f"s3://{bucket}/m/")
    assert manifest.format is ModelFormat.SAFETENSORS
    assert [ref.path for ref in manifest.objects] == [
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert manifest.facts.architecture == "LlamaForCausalLM"
    assert (manifest.facts.context_length, manifest.facts.quantisation) == (4096, "bfloat16")
    assert manifest.facts.has_tokenizer
    assert manifest.notes == ("left out consolidated.safetensors: no part of the model",)


async def test_missing_shard_is_named(s3: S3Server, bucket: str) -> None:
    """Field case B03 at registration."""
    await put(s3, bucket, wrapped("m", {path: body for path, body in SHARDED.items() if "00002-of" not in path}))
    assert "model-00002-of-00002.safetensors" in await refusal(s3, f"s3://{bucket}/m/", UnsupportedArtifact)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}', b"", b"[" * 100_000])
async def test_broken_index(s3: S3Server, bucket: str, content: bytes) -> None:
    await put(s3, bucket, wrapped("m", {**SHARDED, "model.safetensors.index.json": content}))
    await refusal(s3, f"s3://{bucket}/m/", UnsupportedArtifact)


async def test_key_that_is_no_path(s3: S3Server, bucket: str) -> None:
    """A key with a line break would become a file name with one; it is refused by name."""
    await put(s3, bucket, {"m/model.gguf": gguf()})
    await put_raw(s3, bucket, "m/a\nb")
    assert "no legal path" in await refusal(s3, f"s3://{bucket}/m/", UnsupportedArtifact)


async def test_missing_bucket(s3: S3Server, bucket: str) -> None:
    message = await refusal(s3, "s3://no-such-bucket/m/", SourceUnreachable)
    assert "'no-such-bucket'" in message
    assert "HTTP 404 NoSuchBucket" in message
    assert "check the bucket's name" in message


async def test_wrong_key(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-value")
    message = await refusal(s3, f"s3://{bucket}/m/", SourceUnreachable)
    assert "HTTP 403" in message
    assert "AWS_SECRET_ACCESS_KEY" in message
    assert "wrong-secret-value" not in message


async def test_nobody_listens(bucket: str) -> None:
    options = SourceOptions(endpoint_url="http://127.0.0.1:1")
    with pytest.raises(SourceUnreachable, match=r"http://127.0.0.1:1: connection refused; check the endpoint"):
        await inspect(f"s3://{bucket}/m/", options)


async def test_endpoint_of_the_environment(s3: S3Server, bucket: str) -> None:
    await put(s3, bucket, {"m/model.gguf": gguf()})
    assert (await inspect(f"s3://{bucket}/m/", SourceOptions())).facts.name == "Tiny"
