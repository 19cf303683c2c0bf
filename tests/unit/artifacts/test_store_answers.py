"""Stores that refuse, redirect or are overloaded: what the user reads, and what is tried again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from standby.artifacts.credentials import Credentials
from standby.artifacts.inspection import inspect
from standby.artifacts.sources import open_source
from standby.domain.errors import SourceUnreachable, StandbyError, UnsupportedArtifact
from standby.domain.model import ObjectRef, SourceOptions
from support.scripted_http import Answer, Asked, ScriptedServer, refusal, scripted_server

KEYS = Credentials("AKEXAMPLE", "not-to-be-shown", "token-not-to-be-shown")
EMPTY = Answer(
    200, b'<?xml version="1.0"?><ListBucketResult><Name>bkt</Name><IsTruncated>false</IsTruncated></ListBucketResult>'
)


def listing(key: str, size: int = 10) -> Answer:
    more = "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>"
    entry = f"<Contents><Key>{key}</Key>{more}<Size>{size}</Size></Contents>"
    return Answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{entry}</ListBucketResult>".encode())


async def refused(server: ScriptedServer, uri: str = "s3://bkt/m/", **options: object) -> str:
    with pytest.raises(StandbyError) as caught:
        await inspect(uri, SourceOptions.model_validate({"endpoint_url": server.url, **options}), credentials=KEYS)
    message = str(caught.value)
    assert "\n" not in message
    assert "not-to-be-shown" not in message
    assert "'bkt'" in message
    return message


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (refusal(403, "AccessDenied"), "HTTP 403 AccessDenied; check the stored keys, that they may list and read there"),
        (refusal(403, "InvalidAccessKeyId"), "HTTP 403 InvalidAccessKeyId; check the stored keys"),
        (refusal(403, "RequestTimeTooSkewed"), "HTTP 403 RequestTimeTooSkewed; set this machine's clock right"),
        (refusal(400, "ExpiredToken"), "HTTP 400 ExpiredToken; renew the temporary keys"),
        (refusal(404, "NoSuchBucket"), "HTTP 404 NoSuchBucket; check the bucket's name and the endpoint URL"),
        (Answer(404), "HTTP 404; check the bucket's name"),
        (refusal(405, "MethodNotAllowed"), "HTTP 405 MethodNotAllowed; check the URI"),
        (refusal(301, "PermanentRedirect"), "HTTP 301; the bucket lies in another region than us-east-1"),
    ],
)
async def test_refusal_in_words(answer: Answer, says: str) -> None:
    with scripted_server(lambda _: answer) as server:
        assert says in await refused(server)
        assert len([asked for asked in server.asked if asked.method == "GET"]) == 1, "a refusal is not tried again"


async def test_public_bucket_that_is_not() -> None:
    with scripted_server(lambda _: refusal(403, "AccessDenied")) as server:
        assert "check that the bucket is public" in await refused(server, anonymous=True)
        assert not any(asked.authorization for asked in server.asked)


def in_region(region: str, header: bool, answer: Answer) -> Callable[[Asked], Answer]:
    """A store whose bucket lies in ``region``: it refuses signatures for another one, as Amazon does."""

    def respond(asked: Asked) -> Answer:
        if not asked.authorization:
            return Answer(301 if header else 403, headers={"x-amz-bucket-region": region} if header else {})
        if f"/{region}/s3/" in asked.authorization:
            return answer
        more = "" if header else f"<Region>{region}</Region>"
        return refusal(400, "AuthorizationHeaderMalformed", more)

    return respond


@pytest.mark.parametrize("header", [True, False])
async def test_wrong_region_is_followed_once(header: bool) -> None:
    """The region of the answer, in its body or in the header of a probe, is used and told to whoever reads the manifest."""
    with scripted_server(in_region("eu-west-1", header, EMPTY)) as server:
        options = SourceOptions(endpoint_url=server.url)
        source = open_source("s3://bkt/m/", options, credentials=KEYS)
        assert await source.list() == []
        assert source.options.region == "eu-west-1"
        assert await source.list() == []


async def test_wrong_region_that_stays_wrong() -> None:
    always = refusal(301, "PermanentRedirect", x_amz_bucket_region="eu-west-1")
    with scripted_server(lambda _: always) as server:
        message = await refused(server)
    assert "HTTP 301; the bucket lies in region eu-west-1: use that region's endpoint URL, or none" in message
    assert len(server.asked) < 8


async def test_region_in_an_answer_is_a_name_and_nothing_else() -> None:
    def respond(asked: Asked) -> Answer:
        return refusal(400, "AuthorizationHeaderMalformed", "<Region>evil.example/</Region>", x_amz_bucket_region="a/b")

    with scripted_server(respond) as server:
        assert "HTTP 400 AuthorizationHeaderMalformed" in await refused(server)


async def test_endless_redirect() -> None:
    def respond(asked: Asked) -> Answer:
        return Answer(307, headers={"location": asked.path})

    with scripted_server(respond) as server:
        assert "another region" in await refused(server)


async def test_overloaded_store_is_asked_again() -> None:
    """503 SlowDown twice, then the answer."""
    left = [refusal(503, "SlowDown"), refusal(503, "SlowDown")]
    with scripted_server(lambda _: left.pop() if left else EMPTY) as server:
        assert await open_source("s3://bkt/m/", SourceOptions(endpoint_url=server.url), credentials=KEYS).list() == []
        assert len(server.asked) == 3


async def test_overloaded_store_is_not_asked_for_ever() -> None:
    with scripted_server(lambda _: refusal(503, "SlowDown")) as server:
        assert "HTTP 503 SlowDown; the store asks for fewer requests" in await refused(server)
        assert 3 <= len(server.asked) <= 6


async def test_object_may_be_read_where_the_bucket_may_not_be_listed() -> None:
    def respond(asked: Asked) -> Answer:
        if asked.method == "HEAD" and asked.path == "/bkt/m.gguf":
            return Answer(200, headers={"etag": '"e"', "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"})
        return refusal(403, "AccessDenied")

    with scripted_server(respond) as server:
        options = SourceOptions(endpoint_url=server.url)
        found = await open_source("s3://bkt/m.gguf", options, credentials=KEYS).list()
        assert [(ref.key, ref.etag) for ref in found] == [("m.gguf", '"e"')]
        assert "HTTP 403" in await refused(server, "s3://bkt/other.gguf")


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("m/../../agent.conf", "m/../../agent.conf"),
        ("m//x", "m//x"),
        ("m/./x", "m/./x"),
        ("m/a\\b", repr("a\\b")),
        ("m/a&#10;b", "m/a b"),
        ("m/" + "x" * 256, "xxx"),
    ],
)
async def test_illegal_keys_are_refused_by_name(key: str, named: str) -> None:
    with scripted_server(lambda _: listing(key)) as server:
        options = SourceOptions(endpoint_url=server.url)
        with pytest.raises(UnsupportedArtifact, match="rename the object") as caught:
            await open_source("s3://bkt/m/", options, credentials=KEYS).list()
        assert "object" in str(caught.value)
        assert named in str(caught.value)


async def test_object_deleted_between_list_and_read() -> None:
    with scripted_server(lambda _: refusal(404, "NoSuchKey")) as server:
        source = open_source("s3://bkt/m/", SourceOptions(endpoint_url=server.url), credentials=KEYS)
        ref = ObjectRef(key="m/a", path="a", size=4, etag='"e"')
        with pytest.raises(StandbyError, match=r"'m/a': it is gone .*; register again"):
            await source.read(ref, 0, 4)
        with pytest.raises(StandbyError, match=r"'m/a': it is gone .*; register again"):
            source.read_blocking(ref, 0, 4)


async def test_given_keys_are_used_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    with scripted_server(lambda _: EMPTY) as server:
        await open_source("s3://bkt/m/", SourceOptions(endpoint_url=server.url), credentials=KEYS).list()
        assert "Credential=AKEXAMPLE/" in server.asked[0].authorization


def test_stored_credentials_are_never_replaced_by_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant whose keys are gone must not read with the operator's."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OPERATOR")
    with pytest.raises(SourceUnreachable, match="'mine', which were not opened here"):
        open_source("s3://bkt/m/", SourceOptions(credentials="mine"))


async def test_profile_is_found_as_the_sdk_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keys and region of a named profile, with nothing in the environment but its name."""
    folder = tmp_path_factory.mktemp("aws")
    (folder / "config").write_text("[profile models]\nregion = eu-central-1\n")
    (folder / "credentials").write_text("[models]\naws_access_key_id = PROFILEKEY\naws_secret_access_key = s\n")
    clear(monkeypatch)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "models")
    with scripted_server(lambda _: EMPTY) as server:
        await open_source("s3://bkt/m/", SourceOptions(endpoint_url=server.url)).list()
        assert "Credential=PROFILEKEY/" in server.asked[0].authorization
        assert "/eu-central-1/s3/" in server.asked[0].authorization


async def test_container_role(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary keys from a container's agent, which are asked for once and not for every request."""
    clear(monkeypatch)
    keys = b'{"AccessKeyId": "ROLEKEY", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}'
    with scripted_server(lambda _: Answer(200, keys)) as agent, scripted_server(lambda _: EMPTY) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{agent.url}/keys")
        source = open_source("s3://bkt/m/", SourceOptions(endpoint_url=server.url))
        await source.list()
        await source.list()
        assert len(agent.asked) == 1
        assert "Credential=ROLEKEY/" in server.asked[0].authorization


async def test_profile_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    clear(monkeypatch)
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(SourceUnreachable, match="no-such-profile"):
        await open_source("s3://bkt/m/", SourceOptions(endpoint_url="http://127.0.0.1:9")).list()


def clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys in the environment, and no files of the person who runs the tests."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent/config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials")
