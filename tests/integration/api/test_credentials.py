"""Tenants' own keys for a store that the platform's keys cannot read: kept sealed, used by name, told to nobody."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from starlette.applications import Starlette

from standby.artifacts.inspection import inspect
from standby.gateway.api.routes import api_routes
from support.command import standby
from support.control_api import ONE, Control, control_api, http_server
from support.gguf_builder import gguf
from support.s3_server import S3Server, s3_server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[S3Server]:
    """A store of the tenant's own, with one model in it."""
    async with s3_server(tmp_path_factory.mktemp("store"), "private") as server:
        await server.upload("private", "m/model.gguf", gguf())
        yield server


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[Control]:
    """A gateway whose environment holds keys that the tenant's store does not know."""
    environment = {"AWS_ACCESS_KEY_ID": "platform", "AWS_SECRET_ACCESS_KEY": "platform"}
    async with control_api(tmp_path, environment=environment) as running:
        yield running


def keys_of(store: S3Server, **changes: object) -> dict[str, object]:
    return {"name": "mine", "access_key": store.access_key, "secret_key": store.secret_key, **changes}


def model_in(store: S3Server, credentials: str | None = "mine") -> dict[str, object]:
    source = {"endpoint_url": store.url, "region": store.region, "credentials": credentials}
    return {"name": "m", "source_uri": "s3://private/m/", "source": source}


async def test_stored_keys_read_what_the_platforms_cannot(control: Control, store: S3Server) -> None:
    without = await control.call("one", "POST", "/api/v1/models", model_in(store, None))
    stored = await control.call("one", "POST", "/api/v1/credentials", keys_of(store))
    registered = await control.call("one", "POST", "/api/v1/models", model_in(store))

    assert (without.status_code, without.json()["error"]["code"]) == (422, "source_unreachable")
    assert (stored.status_code, registered.status_code) == (201, 201), registered.text
    assert stored.json() == {"name": "mine", "tenant": ONE, "created_at": stored.json()["created_at"], "used_by": []}
    assert registered.json()["source"]["credentials"] == "mine"
    listed = (await control.call("one", "GET", "/api/v1/credentials")).json()["credentials"]
    assert [(item["name"], item["used_by"]) for item in listed] == [("mine", ["m"])]
    kept = b"".join(entry.value.encode() for entry in (await control.tables.credentials.list()).values())
    assert b"mine" in kept
    for secret in (store.access_key, store.secret_key):
        assert secret.encode() not in kept
        assert secret not in stored.text + registered.text


async def test_another_tenants_credentials_do_not_exist(control: Control, store: S3Server) -> None:
    await control.call("one", "POST", "/api/v1/credentials", keys_of(store))

    others = await control.call("two", "POST", "/api/v1/models", model_in(store))
    missing = await control.call("two", "POST", "/api/v1/models", model_in(store, "nothing"))

    assert others.status_code == missing.status_code == 404
    assert others.text.replace("mine", "nothing") == missing.text
    assert (await control.call("two", "GET", "/api/v1/credentials")).json() == {"credentials": []}
    assert (await control.call("two", "DELETE", "/api/v1/credentials/mine")).status_code == 404


async def test_a_record_that_was_moved_to_another_tenant_reads_nothing(control: Control, store: S3Server) -> None:
    """Who can write the table cannot make a tenant's keys another one's."""
    await control.call("one", "POST", "/api/v1/credentials", keys_of(store))
    entry = await control.tables.credentials.get(f"{ONE}.mine")
    assert entry is not None
    await control.tables.credentials.create("222222222222.mine", entry.value.model_copy(update={"tenant": "222222222222"}))

    refused = await control.call("two", "POST", "/api/v1/models", model_in(store))

    assert refused.status_code == 422
    assert "changed or moved" in refused.json()["error"]["message"]


async def test_credentials_in_use_are_replaced_and_not_deleted(control: Control, store: S3Server) -> None:
    await control.call("one", "POST", "/api/v1/credentials", keys_of(store))
    await control.call("one", "POST", "/api/v1/models", model_in(store))
    wrong = keys_of(store, secret_key="wrong")

    taken = await control.call("one", "POST", "/api/v1/credentials", wrong)
    in_use = await control.call("one", "DELETE", "/api/v1/credentials/mine")
    replaced = await control.call("one", "POST", "/api/v1/credentials", {**wrong, "replace": True})
    unreadable = await control.call("one", "POST", "/api/v1/models", model_in(store))
    await control.call("one", "DELETE", "/api/v1/models/m")
    deleted = await control.call("one", "DELETE", "/api/v1/credentials/mine")

    assert (taken.status_code, in_use.status_code) == (409, 409)
    assert "1 models use them (m)" in in_use.json()["error"]["message"]
    assert (replaced.status_code, replaced.json()["used_by"]) == (200, ["m"])
    assert (unreadable.status_code, unreadable.json()["error"]["code"]) == (422, "source_unreachable")
    assert (deleted.status_code, deleted.json()) == (200, {"deleted": "mine"})
    assert await control.tables.credentials.list() == {}


async def test_bad_input_never_repeats_a_secret(control: Control, store: S3Server) -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"secret_key": ["hush-hush"]}, "secret_key: Input should be a valid string"),
        ({"secret_key": "hush-hush" * 2000}, "secret_key: Value should have at most 8192 items"),
        ({"secret_keys": "hush-hush"}, "secret_keys: Extra inputs are not permitted"),
        ({"secret_key": ""}, "secret_key: Value should have at least 1 item"),
        ({"name": "a/b", "secret_key": "hush-hush"}, "credential name 'a/b' is not legal"),
    ]
    for changes, words in cases:
        answer = await control.call("one", "POST", "/api/v1/credentials", keys_of(store, **changes))
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["error"]["message"]
        assert "hush" not in answer.text


async def test_credentials_that_would_not_be_used_are_refused(control: Control, store: S3Server) -> None:
    anonymous = model_in(store)
    anonymous["source"] = {"credentials": "mine", "anonymous": True}
    for body in (anonymous, {"name": "m", "source_uri": "file:///m", "source": {"credentials": "mine"}}):
        answer = await control.call("one", "POST", "/api/v1/models", body)
        assert answer.status_code == 400
        assert "have no use" in answer.json()["error"]["message"]


async def test_own_keys_do_not_open_other_stores(control: Control, store: S3Server) -> None:
    """The address is called from inside, whoever's keys are used: still an administrator's, or the operator's, to allow."""
    await control.call("one", "POST", "/api/v1/credentials", keys_of(store))
    environment = {"AWS_ENDPOINT_URL_S3": store.url, "AWS_REGION": store.region}
    closed = dataclasses.replace(
        control.context, open_sources=False, inspect=functools.partial(inspect, environment=environment)
    )
    async with http_server(Starlette(routes=list(api_routes(closed)))) as url:
        there = dataclasses.replace(control, url=url)
        refused = await there.call("one", "POST", "/api/v1/models", model_in(store))
        own_bucket = {**model_in(store), "source": {"credentials": "mine"}}
        allowed = await there.call("one", "POST", "/api/v1/models", own_bucket)

    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert allowed.status_code == 201, allowed.text


async def test_without_a_sealing_key_nothing_is_kept(control: Control, store: S3Server) -> None:
    keyless = dataclasses.replace(control.context, sealing=None)
    async with http_server(Starlette(routes=list(api_routes(keyless)))) as url:
        answer = await dataclasses.replace(control, url=url).call("one", "POST", "/api/v1/credentials", keys_of(store))

    assert answer.status_code == 503
    assert "STANDBY_SECRETS_KEY" in answer.json()["error"]["message"]
    assert await control.tables.credentials.list() == {}


async def test_the_command_takes_the_secret_from_where_nobody_sees_it(
    control: Control, store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = store.secret_key
    (tmp_path / "secret").write_text(f"{secret}\n")
    create = ("credentials", "create", "--access-key", store.access_key)

    by_file = await standby(control, *create, "mine", "--secret-key-file", str(tmp_path / "secret"))
    by_stdin = await standby(control, *create, "other", "--secret-key-file", "-", stdin=secret.encode())
    monkeypatch.setenv("STANDBY_STORE_SECRET_KEY", secret)
    by_variable = await standby(control, *create, "mine", "--replace", "--json")
    place = ("s3://private/m/", "--endpoint-url", store.url, "--region", store.region)
    registered = await standby(control, "models", "register", "m", *place, "--credentials", "mine")
    listed = await standby(control, "credentials", "list")
    refused = await standby(control, "credentials", "delete", "mine")
    deleted = await standby(control, "credentials", "delete", "other")

    assert by_file.stdout == "credentials mine are stored; use them with --credentials mine\n", by_file.output
    assert (by_stdin.exit_code, by_variable.exit_code) == (0, 0)
    assert registered.exit_code == 0, registered.output
    assert "read with      credentials mine" in registered.stdout
    assert [line.split()[0] for line in listed.stdout.splitlines() if line.startswith(("mine", "other"))] == ["mine", "other"]
    assert (refused.exit_code, deleted.stdout) == (5, "credentials other are deleted\n")
    for answer in (by_file, by_stdin, by_variable, registered, listed, refused):
        assert secret not in answer.output
        assert store.access_key not in answer.output
