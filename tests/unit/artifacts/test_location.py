"""URIs and object paths: what is legal, and what could leave the artifact's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from standby.artifacts.location import archive_name, checked_path, parse_file, parse_s3, scheme_of
from standby.artifacts.s3 import endpoint_of, open_store
from standby.artifacts.sources import open_source
from standby.domain.errors import InvalidInput, SourceUnreachable, UnsupportedArtifact
from standby.domain.model import SourceOptions


@pytest.mark.parametrize("uri", ["s3://bucket/team/m7", "s3://bucket/team/m7/"])
def test_prefix_always_ends_in_a_slash(uri: str) -> None:
    assert parse_s3(uri).prefix == "team/m7/"


@pytest.mark.parametrize(
    ("uri", "folder"), [("s3://bkt/m", False), ("s3://bkt/m/", True), ("s3://bkt", True), ("s3://bkt/", True)]
)
def test_only_a_uri_without_slash_can_name_one_object(uri: str, folder: bool) -> None:
    assert parse_s3(uri).folder is folder


@pytest.mark.parametrize(
    "uri", ["s3://", "s3:///key", "s3://UPPER/x", "s3://b/x", "s3://bucket/a//b", "s3://bucket/../x", "s3://bucket/a\nb"]
)
def test_illegal_s3_uri(uri: str) -> None:
    with pytest.raises(InvalidInput):
        parse_s3(uri)


@pytest.mark.parametrize("uri", ["file://host/x", "file://relative", "file://"])
def test_illegal_file_uri(uri: str) -> None:
    with pytest.raises(InvalidInput, match="absolute path"):
        parse_file(uri)


def test_file_uri_is_decoded() -> None:
    assert parse_file("file:///data/my%20model.gguf") == Path("/data/my model.gguf")


@pytest.mark.parametrize("uri", ["http://x/y", "gs://b/x", "/data/x", "", "s3:/b/x"])
def test_unknown_scheme(uri: str) -> None:
    with pytest.raises(InvalidInput, match="neither s3:// nor file://"):
        scheme_of(uri)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "a/../../x", "a/./b", "a//b", "", "a/", "..", "a\\..\\b", "a\0b", "a\nb", "x" * 256, "ü" * 128],
)
def test_path_that_could_escape(path: str) -> None:
    with pytest.raises(UnsupportedArtifact):
        checked_path(path)


@pytest.mark.parametrize("path", ["model.gguf", "sub/model.gguf", "..model", "a b+é.gguf", "%2e%2e/x"])
def test_path_that_stays(path: str) -> None:
    assert checked_path(path) == path


def test_endpoint_of_the_options_comes_first() -> None:
    env = {"AWS_ENDPOINT_URL": "http://c", "AWS_ENDPOINT_URL_S3": "http://b/"}
    assert endpoint_of(SourceOptions(endpoint_url="http://a/"), env) == "http://a"
    assert endpoint_of(SourceOptions(), env) == "http://b"
    assert endpoint_of(SourceOptions(), {"AWS_ENDPOINT_URL": "http://c"}) == "http://c"
    assert endpoint_of(SourceOptions(), {}) is None


async def test_missing_credentials_are_named_at_once() -> None:
    options = SourceOptions(endpoint_url="http://127.0.0.1:9")
    with pytest.raises(SourceUnreachable, match="AWS_ACCESS_KEY_ID is not set"):
        await open_source("s3://bucket/x", options, environment={}).list()


def test_anonymous_needs_no_credentials() -> None:
    options = SourceOptions(endpoint_url="http://127.0.0.1:9", anonymous=True)
    assert open_source("s3://bucket/x", options, environment={}).where == "bucket 'bucket', prefix 'x/'"


def test_unusable_endpoint_url() -> None:
    options = SourceOptions(endpoint_url="not a url", anonymous=True)
    with pytest.raises(InvalidInput, match="not a url"):
        open_source("s3://bucket/x", options, environment={})
    with pytest.raises(InvalidInput, match="not a url"):
        open_store("bucket", options, environment={})


@pytest.mark.parametrize(("path", "expected"), [("m.tar.gz", True), ("M.TGZ", True), ("m.tar", True), ("m.gz", False)])
def test_archives_are_known_by_name(path: str, expected: bool) -> None:
    assert archive_name(path) is expected
