"""Every kind of source with every layout of a model, against a real S3 server and a disk: one model, one answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from standby.artifacts.credentials import Credentials
from standby.artifacts.inspection import inspect
from standby.domain.errors import SourceUnreachable, UnsupportedArtifact
from standby.domain.model import Manifest, ModelFormat, SourceOptions
from support.archive_builder import entry, tar, tar_gz, wrapped
from support.flaky_proxy import Fault, flaky_proxy
from support.gguf_builder import KEYS, gguf
from support.s3_server import S3Server, put_raw
from support.safetensors_builder import model, safetensors

pytestmark = pytest.mark.asyncio(loop_scope="session")

Files = Mapping[str, bytes]

SPLIT = {
    "m-00001-of-00002.gguf": gguf({**KEYS, "split.count": 2, "split.no": 0, "split.tensors.count": 2}),
    "m-00002-of-00002.gguf": gguf({"split.count": 2, "split.no": 1, "split.tensors.count": 2}, name="blk.0"),
}
LAYOUTS: Mapping[str, tuple[ModelFormat, Files]] = {
    "one gguf": (ModelFormat.GGUF, {"model.gguf": gguf()}),
    "split gguf": (ModelFormat.GGUF, SPLIT),
    "one safetensors": (ModelFormat.SAFETENSORS, model()),
    "shards": (ModelFormat.SAFETENSORS, model(shards=3)),
}
LEFT_OUT = {"README.md": b"x", "modeling_x.py": b"x", "old/pytorch_model.bin": b"x"}


async def upload(s3: S3Server, bucket: str, files: Files) -> None:
    for key, content in files.items():
        await s3.upload(bucket, key, content)


async def place(kind: str, files: Files, s3: S3Server, bucket: str, folder: Path) -> str:
    """Put the files where a source of this kind has them and return its URI."""
    where, _, how = kind.partition(" ")
    name, content = packing(how, files)
    if where == "s3":
        await upload(s3, bucket, wrapped("team/m", content))
        return f"s3://{bucket}/team/m{name}"
    for path, body in content.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(body)
    return f"file://{folder}{name}"


def packing(how: str, files: Files) -> tuple[str, Files]:
    """What follows the folder's own name in the URI, and what lies in it."""
    match how:
        case "tar":
            return "/model.tar", {"model.tar": tar(files)}
        case "tar.gz":
            return "/model.tar.gz", {"model.tar.gz": tar_gz(files)}
        case "wrapped tgz":
            return "/model.tgz", {"model.tgz": tar_gz(wrapped("smol", files))}
        case _:
            return "/" if how == "folder" else "", files


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "kind",
    ["s3 folder", "s3 without slash", "s3 tar", "s3 tar.gz", "s3 wrapped tgz", "file folder", "file tar", "file wrapped tgz"],
)
async def test_one_model_from_everywhere(s3: S3Server, bucket: str, tmp_path: Path, kind: str, layout: str) -> None:
    """Files, facts and refusals do not depend on how the model was packed or where it lay."""
    form, files = LAYOUTS[layout]
    manifest = await inspect(await place(kind, {**files, **LEFT_OUT}, s3, bucket, tmp_path), s3.options)
    expected = await of_folder(tmp_path / "expected", files)
    assert manifest.format is form
    assert set(manifest.files) == set(expected.files)
    assert (manifest.facts, manifest.refusals) == (expected.facts, expected.refusals)
    assert any("modeling_x.py: nothing from a model is executed" in note for note in manifest.notes)
    assert (manifest.archive is not None) == kind.endswith(("tar", "gz"))
    assert ("unwrapped folder smol" in manifest.notes) == ("wrapped" in kind)
    assert all(ref.etag for ref in manifest.objects)


async def of_folder(folder: Path, files: Files) -> Manifest:
    folder.mkdir()
    for path, content in files.items():
        (folder / path).write_bytes(content)
    return await inspect(f"file://{folder}/", SourceOptions())


@pytest.mark.parametrize("name", ["with space", "ünïcödé", "a+b", "100%", "per%20cent", "q?x&y=z#h", "~'()*!,;"])
async def test_keys_that_need_escaping(s3: S3Server, bucket: str, name: str) -> None:
    """Each is listed, read by range and pinned under its own name."""
    await upload(s3, bucket, {f"{name}/{name}.gguf": gguf()})
    for uri in (f"s3://{bucket}/{name}/", f"s3://{bucket}/{name}/{name}.gguf"):
        manifest = await inspect(uri, s3.options)
        assert [(ref.key, ref.path) for ref in manifest.objects] == [(f"{name}/{name}.gguf", f"{name}.gguf")]
        assert manifest.facts.name == "Tiny"


async def test_versions_are_pinned(s3: S3Server, bucket: str) -> None:
    """In a bucket that keeps versions, the registered one stays readable when another was uploaded over it."""
    await versioned(s3, bucket)
    await upload(s3, bucket, {"m/model.gguf": gguf()})
    first = await inspect(f"s3://{bucket}/m/", s3.options)
    await upload(s3, bucket, {"m/model.gguf": gguf(seed=1)})
    second = await inspect(f"s3://{bucket}/m/", s3.options)
    assert first.objects[0].version_id
    assert first.objects[0].version_id != second.objects[0].version_id
    assert first.digest != second.digest


async def versioned(s3: S3Server, bucket: str) -> None:
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    await put_raw(s3, bucket, "", body, setting="versioning")


async def test_given_keys_win_over_those_of_the_environment(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await upload(s3, bucket, {"m/model.gguf": gguf()})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-else")
    with pytest.raises(SourceUnreachable, match="HTTP 403"):
        await inspect(f"s3://{bucket}/m/", s3.options)
    keys = Credentials(s3.access_key, s3.secret_key)
    assert (await inspect(f"s3://{bucket}/m/", s3.options, credentials=keys)).facts.name == "Tiny"
    with pytest.raises(SourceUnreachable, match=r"HTTP 403 \w+; check the stored keys") as caught:
        await inspect(f"s3://{bucket}/m/", s3.options, credentials=Credentials(s3.access_key, "wrong-secret"))
    assert "wrong-secret" not in str(caught.value)


async def test_anonymous_where_nobody_may(s3: S3Server, bucket: str) -> None:
    options = s3.options.model_copy(update={"anonymous": True})
    with pytest.raises(SourceUnreachable, match="check that the bucket is public"):
        await inspect(f"s3://{bucket}/m/", options)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"model.tar.gz": tar_gz({"../../agent.conf": b"x"})}, "holds '..' and could leave"),
        ({"model.tar.gz": tar_gz([entry("w", kind=b"2", link="/etc")])}, "member 'w' is a symbolic link"),
        ({"model.tar.gz": tar_gz(model())[:-20]}, "truncated gzip"),
        ({"model.tar": tar({**model(), "model.safetensors": safetensors()[:-1]})}, "model.safetensors: truncated safetensors"),
        ({"model.tar.gz": tar_gz({"model.bin": b"x", "config.json": b"{}"})}, "only pickled weights (model.bin)"),
    ],
)
async def test_bad_archive_in_a_store(s3: S3Server, bucket: str, files: Files, says: str) -> None:
    await upload(s3, bucket, wrapped("m", files))
    uri = f"s3://{bucket}/m/{next(iter(files))}"
    with pytest.raises(UnsupportedArtifact) as caught:
        await inspect(uri, s3.options)
    assert str(caught.value).startswith(f"archive {uri}: ")
    assert says in str(caught.value)


async def test_connection_cut_while_an_archive_passes(s3: S3Server, bucket: str) -> None:
    """One reset is not noticed; a store that resets for ever is named."""
    await upload(s3, bucket, {"m.tar.gz": tar_gz({**model(), "model.safetensors": safetensors({"w": ("F32", (1 << 18,))})})})
    async with flaky_proxy(s3.url) as proxy:
        options = s3.options.model_copy(update={"endpoint_url": proxy.url})
        proxy.break_after(300_000, Fault.RESET_ONCE)
        manifest = await inspect(f"s3://{bucket}/m.tar.gz", options)
        assert proxy.resets == 1
        assert manifest.facts.parameter_count == 1 << 18
        proxy.break_after(300_000, Fault.RESET_ALWAYS)
        with pytest.raises(SourceUnreachable, match=r"m\.tar\.gz'.*connection"):
            await inspect(f"s3://{bucket}/m.tar.gz", options)
