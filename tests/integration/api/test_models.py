"""Registration: everything is checked first, and one name is one version."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from starlette.applications import Starlette

from standby.gateway.api.routes import api_routes
from support.control_api import Control, http_server
from support.real_model import real_model_path


async def test_a_model_is_registered_listed_shown_and_deleted(control: Control) -> None:
    model = await control.register()

    assert (model["engine"], model["format"], model["object_count"]) == ("llama_cpp", "gguf", 1)
    assert model["bytes"] == model["objects"][0]["size"] == real_model_path().stat().st_size
    assert model["facts"]["architecture"] == "llama"
    assert (await control.call("one", "GET", "/api/v1/models/smol")).json() == model
    listed = (await control.call("one", "GET", "/api/v1/models")).json()["models"]
    assert listed == [{name: value for name, value in model.items() if name not in {"objects", "members"}}]

    assert (await control.call("one", "DELETE", "/api/v1/models/smol")).json() == {"deleted": "smol"}
    assert (await control.call("one", "GET", "/api/v1/models/smol")).status_code == 404
    assert (await control.call("one", "DELETE", "/api/v1/models/smol")).status_code == 404


async def test_the_same_version_again_changes_nothing(control: Control) -> None:
    first = await control.register()
    again = await control.call("one", "POST", "/api/v1/models", {"name": "smol", "source_uri": first["source_uri"]})

    assert (again.status_code, again.json()) == (200, first)


async def test_another_version_needs_to_be_asked_for(control: Control, tmp_path: Path) -> None:
    first = await control.register()
    other = tmp_path / "other.gguf"
    shutil.copy(real_model_path(), other)
    body = {"name": "smol", "source_uri": other.as_uri()}

    refused = await control.call("one", "POST", "/api/v1/models", body)
    replaced = await control.call("one", "POST", "/api/v1/models", {**body, "replace": True})

    assert refused.status_code == 409
    assert first["digest"][:12] in refused.json()["error"]["message"]
    assert "--replace" in refused.json()["error"]["remedy"]
    assert replaced.status_code == 200
    assert replaced.json()["digest"] != first["digest"]


async def test_other_options_are_another_version(control: Control) -> None:
    first = await control.register()
    body = {"name": "smol", "source_uri": first["source_uri"], "engine_options": {"context_length": 512}}

    assert (await control.call("one", "POST", "/api/v1/models", body)).status_code == 409
    assert (await control.call("one", "POST", "/api/v1/models", {**body, "replace": True})).status_code == 200


async def test_a_model_in_use_is_neither_deleted_nor_replaced(control: Control) -> None:
    """Two versions under one name would answer differently by the moment an instance was started (field case B04)."""
    first = await control.register()
    await control.create()
    body = {"name": "smol", "source_uri": first["source_uri"], "engine_options": {"x": 1}, "replace": True}

    for answer in (
        await control.call("one", "DELETE", "/api/v1/models/smol"),
        await control.call("one", "POST", "/api/v1/models", body),
    ):
        assert answer.status_code == 409
        assert "1 endpoints use it (chat)" in answer.json()["error"]["message"]


async def test_an_empty_source_registers_nothing(control: Control, tmp_path: Path) -> None:
    """Field case B01: the message names the place and says 0 objects."""
    empty = tmp_path / "empty"
    empty.mkdir()

    answer = await control.call("one", "POST", "/api/v1/models", {"name": "typo", "source_uri": empty.as_uri()})

    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "empty_source")
    assert str(empty) in answer.json()["error"]["message"]
    assert "0 objects" in answer.json()["error"]["message"]
    assert (await control.call("one", "GET", "/api/v1/models/typo")).status_code == 404


BAD: list[tuple[dict[str, object], str]] = [
    ({"source_uri": "file:///x"}, "name: Field required"),
    ({"name": "m"}, "give exactly one of source_uri, ModelDataUrl and ModelDataSource (0 given)"),
    ({"name": "m", "source_uri": "s3://bucket/m/", "ModelDataUrl": "s3://bucket/m.tar.gz"}, "ModelDataSource (2 given)"),
    ({"name": "m", "ModelDataUrl": "s3://bucket/m/"}, "ends in '/', and names a gzip archive"),
    (
        {
            "name": "m",
            "ModelDataSource": {
                "S3DataSource": {"S3Uri": "s3://bucket/m/", "S3DataType": "S3Prefix", "CompressionType": "Gzip"}
            },
        },
        "is not possible",
    ),
    ({"name": "a/b", "source_uri": "file:///x"}, "model name 'a/b' is not legal"),
    ({"name": "m", "source_uri": "file:///x", "engine": "gpt"}, "engine: Input should be 'llama_cpp'"),
    (
        {"name": "m", "source_uri": "file:///x", "source": {"region": 5}},
        "source.region: Input should be a valid string (got '5')",
    ),
    ({"name": "m", "source_uri": "file:///x", "colour": 1}, "colour: Extra inputs are not permitted"),
    ({"name": "m", "source_uri": "ftp://x/y"}, "ftp"),
]


async def test_bad_input_names_the_field_and_the_rule(control: Control) -> None:
    for body, words in BAD:
        answer = await control.call("one", "POST", "/api/v1/models", body)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert words in error["message"]
        assert (error["code"], error["type"]) == ("invalid_request", "invalid_request_error")
        assert error["remedy"]
    assert await control.tables.models.list() == {}


async def test_an_engine_that_cannot_serve_the_format_is_refused(control: Control) -> None:
    body = {"name": "m", "source_uri": real_model_path().as_uri(), "engine": "vllm"}

    answer = await control.call("one", "POST", "/api/v1/models", body)

    assert answer.status_code == 400
    assert "engine 'vllm' cannot serve this model: the weights are gguf" in answer.json()["error"]["message"]
    assert answer.json()["error"]["remedy"] == "choose one of: llama_cpp"


async def test_what_is_no_json_object_is_refused(control: Control) -> None:
    cases = {b"{": "malformed_json", b"": "malformed_json", b"\xff": "malformed_json", b"[]": "invalid_request"}
    async with control.client() as client:
        for content, code in cases.items():
            answer = await client.post("/api/v1/models", content=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


async def test_a_large_body_is_refused_with_and_without_a_length(control: Control) -> None:
    async def chunks() -> object:
        for _ in range(20):
            yield b" " * 65_536

    async with control.client() as client:
        for content in (b" " * (1024 * 1024 + 1), chunks()):
            answer = await client.post("/api/v1/models", content=content)  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")
            assert "1048576 bytes" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("source_uri", "source"),
    [("file:///etc/", {}), ("s3://bucket/m/", {"endpoint_url": "http://127.0.0.1:1"})],
)
async def test_a_tenant_cannot_read_with_the_platforms_rights(
    control: Control, source_uri: str, source: dict[str, str]
) -> None:
    """A node's own disk, and other stores called from inside, are for administrators."""
    context = dataclasses.replace(control.context, open_sources=False)
    async with http_server(Starlette(routes=list(api_routes(context)))) as url:
        closed = dataclasses.replace(control, url=url)
        body = {"name": "smol", "source_uri": source_uri, "source": source}
        refused = await closed.call("one", "POST", "/api/v1/models", body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        tried = await closed.call("admin", "POST", "/api/v1/models", body)
        assert tried.status_code == 422, tried.text
