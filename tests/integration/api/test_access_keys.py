"""Tenants and their keys through the control API: scopes, ends, revocation, quotas, rotation, audit; no secret anywhere."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

from starlette.applications import Starlette

from standby.domain.access import Scope
from standby.domain.names import DEFAULT_TENANT
from standby.gateway import keys
from standby.gateway.api.routes import api_routes
from standby.host.sealing import SealingKey
from support.command import standby
from support.control_api import ONE, PEPPER, TWO, Control, http_server
from support.waiting import until


async def make(control: Control, who: str = "one", **body: object) -> dict[str, Any]:
    answer = await control.call(who, "POST", "/api/v1/access-keys", {"name": "ci", **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def bearer(control: Control, who: str, **how: Any) -> None:
    """Give ``who`` a bearer key of tenant one."""
    record, secret = keys.issue(tenant=ONE, name=who, pepper=PEPPER, now=time.time(), **how)
    await control.tables.keys.create(record.id, record)
    control.keys[who] = secret
    await until(lambda: record.id in control.context.copies.keys.entries)


async def audited(control: Control, count: int, who: str = "admin") -> list[dict[str, Any]]:
    """What ``who`` is told, once all of it is sent and at least ``count`` are stored: sent is not stored."""
    await control.context.events.close()

    async def stored() -> bool:
        return len(await control.context.events.recent(1000, kind="audit")) >= count

    await until(stored, f"{count} audit events are stored")
    answer = await control.call(who, "GET", "/api/v1/events?kind=audit&replay=1000&follow=0")
    return [json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data:")]


async def test_a_pair_is_made_listed_ended_and_revoked(control: Control) -> None:
    made = await make(control, scopes=["invoke"], expires_in_s=60)
    identity = made["access_key_id"]

    assert (made["tenant"], made["scopes"], made["session_token"]) == (ONE, ["invoke"], None)
    assert (len(identity), identity[:4], len(made["secret_access_key"])) == (20, "SBKA", 40)
    listed = await control.call("one", "GET", "/api/v1/access-keys")
    assert [item["access_key_id"] for item in listed.json()["access_keys"]] == [identity]
    assert made["secret_access_key"] not in listed.text
    longer = await control.call("one", "PATCH", f"/api/v1/access-keys/{identity}", {"expires_in_s": None})
    assert longer.json()["expires_at"] is None
    ended = await control.call("one", "PATCH", f"/api/v1/access-keys/{identity}", {"expires_in_s": 0})
    assert ended.json()["expires_at"] <= time.time()
    revoked = await control.call("one", "DELETE", f"/api/v1/access-keys/{identity}")
    again = await control.call("one", "DELETE", f"/api/v1/access-keys/{identity}")
    assert revoked.json() == again.json()
    assert revoked.json()["revoked_at"] is not None


async def test_a_session_lasts_twelve_hours_at_most(control: Control) -> None:
    usual = await make(control, session=True)
    assert (usual["access_key_id"][:4], usual["expires_at"] - usual["created_at"]) == ("SBIA", 3600)
    assert usual["session_token"]
    for body in ({"expires_in_s": 12 * 3600 + 1}, {"expires_in_s": -1}):
        answer = await control.call("one", "POST", "/api/v1/access-keys", {"name": "ci", "session": True, **body})
        assert answer.status_code == 400, answer.text
    path = f"/api/v1/access-keys/{usual['access_key_id']}"
    assert (await control.call("one", "PATCH", path, {"expires_in_s": None})).status_code == 400
    assert (await control.call("one", "PATCH", path, {"expires_in_s": 30})).status_code == 200


async def test_sessions_that_ended_long_ago_are_forgotten(control: Control) -> None:
    first = await make(control, session=True)
    entry = await control.tables.access_keys.get(first["access_key_id"])
    assert entry is not None
    old = entry.value.model_copy(update={"expires_at": time.time() - 7200})
    revision = await control.tables.access_keys.update(entry.key, old, entry.revision)
    await until(lambda: control.context.copies.access_keys.entries[entry.key].revision == revision)

    await make(control, session=True)

    await until(lambda: first["access_key_id"] not in control.context.copies.access_keys.entries)


async def test_a_key_hands_on_no_more_than_it_has(control: Control) -> None:
    await bearer(control, "short", expires_at=time.time() + 100)
    await bearer(control, "invoker", scopes=(Scope.INVOKE,))
    await bearer(control, "manager", scopes=(Scope.CONTROL,))

    refused = [
        await control.call("short", "POST", "/api/v1/access-keys", {"name": "ci"}),
        await control.call("short", "POST", "/api/v1/access-keys", {"name": "ci", "expires_in_s": 200}),
        await control.call("invoker", "POST", "/api/v1/access-keys", {"name": "ci"}),
        await control.call("manager", "POST", "/api/v1/access-keys", {"name": "ci", "scopes": ["invoke"]}),
        await control.call("one", "POST", "/api/v1/access-keys", {"name": "ci", "tenant": TWO}),
    ]

    assert [answer.status_code for answer in refused] == [403] * len(refused)
    assert (await make(control, "short", expires_in_s=50))["expires_at"] is not None
    assert (await make(control, "manager"))["scopes"] == ["control"]
    assert (await make(control, "admin", tenant=TWO))["tenant"] == TWO


async def test_a_bearer_key_that_ended_is_refused(control: Control) -> None:
    made = await control.call("admin", "POST", "/api/v1/keys", {"name": "x", "expires_in_s": 0.05, "scopes": ["control"]})
    control.keys["x"] = made.json()["api_key"]
    ends = made.json()["expires_at"]

    await until(lambda: time.time() > ends)

    assert (await control.call("x", "GET", "/api/v1/models")).status_code == 401


async def test_another_tenants_pair_is_one_that_does_not_exist(control: Control) -> None:
    theirs = (await make(control, "two"))["access_key_id"]

    for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"expires_in_s": 1})):
        others = await control.call("one", method, f"/api/v1/access-keys/{theirs}", body)
        missing = await control.call("one", method, "/api/v1/access-keys/SBKAAAAAAAAAAAAAAAAA", body)
        assert others.status_code == missing.status_code == 404
        assert others.text.replace(theirs, "SBKAAAAAAAAAAAAAAAAA") == missing.text
    assert (await control.call("one", "GET", "/api/v1/access-keys")).json() == {"access_keys": []}
    assert (await control.call("admin", "DELETE", f"/api/v1/access-keys/{theirs}")).status_code == 200


async def test_a_tenant_comes_changes_and_is_disabled(control: Control) -> None:
    body = {"id": TWO, "name": "team", "quotas": {"endpoints": 3}}
    made = await control.call("admin", "POST", "/api/v1/tenants", body)
    assert (made.status_code, made.json()["quotas"]["endpoints"], made.json()["quotas"]["concurrency"]) == (201, 3, 1000)
    assert (await control.call("admin", "POST", "/api/v1/tenants", body)).status_code == 409

    changed = await control.call("admin", "PATCH", f"/api/v1/tenants/{TWO}", {"quotas": {"memory_mb": 4096}})
    assert (changed.json()["quotas"]["endpoints"], changed.json()["quotas"]["memory_mb"]) == (3, 4096)
    assert (await control.call("two", "GET", f"/api/v1/tenants/{TWO}")).json() == changed.json()
    assert (await control.call("one", "GET", f"/api/v1/tenants/{TWO}")).status_code == 404
    listed = (await control.call("admin", "GET", "/api/v1/tenants")).json()["tenants"]
    assert [one["id"] for one in listed] == [DEFAULT_TENANT, TWO]

    await control.call("admin", "PATCH", f"/api/v1/tenants/{TWO}", {"disabled": True})
    assert (await control.call("two", "GET", "/api/v1/models")).status_code == 401
    await control.call("admin", "PATCH", f"/api/v1/tenants/{TWO}", {"disabled": False})
    assert (await control.call("two", "GET", "/api/v1/models")).status_code == 200
    own = await control.call("admin", "PATCH", f"/api/v1/tenants/{ONE}", {"disabled": True})
    assert own.status_code == 409


async def test_the_default_tenant_can_be_given_quotas(control: Control) -> None:
    changed = await control.call("admin", "PATCH", f"/api/v1/tenants/{DEFAULT_TENANT}", {"quotas": {"endpoints": 1}})
    missing = await control.call("admin", "PATCH", "/api/v1/tenants/987654321098", {"quotas": {"endpoints": 1}})

    assert (changed.status_code, changed.json()["quotas"]["endpoints"]) == (200, 1)
    assert missing.status_code == 404


async def test_changes_and_refusals_are_audited_for_administrators_only(control: Control) -> None:
    made = await make(control)
    await control.call("one", "POST", "/api/v1/tenants", {"id": TWO})
    await control.call("admin", "DELETE", f"/api/v1/access-keys/{made['access_key_id']}")

    events = await audited(control, 3)

    told = [(event["action"], event["outcome"], event["reason"], event["target"]) for event in events]
    assert told == [
        ("access-keys.create", "done", "", made["access_key_id"]),
        ("tenants.create", "refused", "forbidden", ""),
        ("access-keys.revoke", "done", "", made["access_key_id"]),
    ]
    assert {event["who"] for event in events} == {control.keys[who].split("-")[2] for who in ("one", "admin")}
    assert made["secret_access_key"] not in json.dumps(events)
    assert await audited(control, 3, "one") == []
    unknown = await control.call("one", "GET", "/api/v1/events?kind=nothing")
    assert unknown.status_code == 400


async def test_after_a_rotation_everything_is_sealed_again(control: Control) -> None:
    """First every gateway gets the new key with the old one behind it; then all is sealed again; then the old one goes."""
    made = await make(control)
    body = {"name": "store", "access_key": "a", "secret_key": "b"}
    assert (await control.call("one", "POST", "/api/v1/credentials", body)).status_code == 201
    fresh = SealingKey(bytes([9]) * 32, [SealingKey(bytes(32))])
    app = Starlette(routes=api_routes(dataclasses.replace(control.context, sealing=fresh)))
    async with http_server(app) as url:
        rotated = dataclasses.replace(control, url=url)
        lost = await control.tables.access_keys.get(made["access_key_id"])
        assert lost is not None
        alien = lost.value.model_copy(update={"id": "SBKAAAAAAAAAAAAAAAAA", "key_version": "00000000"})
        await control.tables.access_keys.create(alien.id, alien)

        answer = (await rotated.call("admin", "POST", "/api/v1/access-keys/reseal")).json()

        assert answer == {"key_version": fresh.version, "resealed": 2, "not_opened": ["access-key SBKAAAAAAAAAAAAAAAAA"]}
        again = (await rotated.call("admin", "POST", "/api/v1/access-keys/reseal")).json()
        assert again["resealed"] == 0
    versions = {entry.value.key_version for entry in (await control.tables.credentials.list()).values()}
    assert versions == {fresh.version}


async def test_no_secret_is_in_any_table_or_event(control: Control) -> None:
    """Field case B44: what is stored and what is told holds digests and sealed texts only."""
    standing, session = await make(control), await make(control, session=True)
    key = (await control.call("admin", "POST", "/api/v1/keys", {"name": "k"})).json()["api_key"]
    secrets = [
        standing["secret_access_key"],
        session["secret_access_key"],
        session["session_token"],
        key.rpartition("-")[2],
    ]

    dump = b""
    for field in dataclasses.fields(control.tables):
        stored = await getattr(control.tables, field.name).list()
        dump += b"".join(entry.value.encode() for entry in stored.values())
    told = json.dumps(await audited(control, 3)).encode()

    assert standing["access_key_id"].encode() in dump
    for secret in secrets:
        assert secret.encode() not in dump + told


async def test_the_command_line_makes_and_ends_keys_and_tenants(control: Control) -> None:
    async def run(*words: str, who: str = "admin") -> Any:
        return await standby(control, *words, who=who)

    tenant = await run("tenants", "create", TWO, "--name", "team", "--endpoints", "7")
    pair = await run("keys", "create", "ci", "--aws", "--tenant", TWO, "--scope", "invoke", "--expires", "30d", "--json")
    session = await run("keys", "create", "ci", "--aws", "--session", who="one")
    identity = json.loads(pair.stdout)["access_key_id"]
    listed = await run("keys", "list", "--aws")
    ended = await run("keys", "expire", identity, "--in", "1h")
    revoked = await run("keys", "revoke", identity)
    resealed = await run("keys", "reseal")
    wrong = await run("keys", "create", "x", "--session")
    disabled = await run("tenants", "disable", TWO)
    await audited(control, 6)
    events = await run("events", "--kind", "audit")
    refused = await run("tenants", "list", who="one")

    assert "at most 7" in tenant.stdout
    assert "session token" in session.stdout
    assert identity in listed.stdout
    assert ended.stdout.startswith(f"key {identity} ends at 20")
    assert revoked.stdout == f"key {identity} (ci) is revoked\n"
    assert resealed.stdout.startswith("0 sealed again with key ")
    assert wrong.exit_code == 2
    assert "disabled" in disabled.stdout
    assert "action=tenants.create" in events.stdout
    assert f"target={identity}" in events.stdout
    assert refused.exit_code == 6
