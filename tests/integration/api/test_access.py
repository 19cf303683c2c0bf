"""Who may do what: every route refuses without a key, and tenants see only their own names."""

from __future__ import annotations

from standby.gateway.api.routes import TABLE
from standby.gateway.keys import generate
from support.control_api import ONE, TWO, Control
from support.waiting import until

NAMED = [row for row in TABLE if "{name}" in row.path and not row.admin]


def concrete(path: str, name: str = "nothing") -> str:
    return path.replace("{name}", name).replace("{id}", name)


async def test_every_route_refuses_without_a_good_key(control: Control) -> None:
    """The table is walked, so that a route added later is checked too; unknown paths and methods do not differ."""
    requests = [(row.method, concrete(row.path)) for row in TABLE]
    requests += [("GET", "/api/v1/nothing"), ("PUT", "/api/v1/models"), ("OPTIONS", "/api/v1/keys"), ("GET", "/api/")]
    bodies = set()
    async with control.client(None) as client:
        for header in ({}, {"authorization": f"Bearer {generate()}"}, {"authorization": "Bearer \xff"}):
            raw = [(name.encode(), value.encode("latin-1")) for name, value in header.items()]
            for method, path in requests:
                answer = await client.request(method, path, headers=raw)
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"] == "Bearer"
                bodies.add(answer.content)
    assert len(bodies) == 1


async def test_tenants_are_refused_where_an_administrator_is_needed(control: Control) -> None:
    rows = [row for row in TABLE if row.admin]
    assert {row.path for row in rows} == {
        "/api/v1/nodes",
        "/api/v1/nodes/{name}/orders",
        "/api/v1/endpoints/{name}/profiles",
        "/api/v1/nodes/{name}/profiles/{id}",
        "/api/v1/keys",
        "/api/v1/keys/{id}",
        "/api/v1/access-keys/reseal",
        "/api/v1/tenants",
        "/api/v1/tenants/{id}",
        "/api/v1/cache",
        "/api/v1/cache/orders",
    }
    for row in rows:
        answer = await control.call("one", row.method, concrete(row.path))
        assert answer.status_code == 403, row
        assert answer.json()["error"]["code"] == "forbidden"
        # What is there and what is not are refused alike.
        assert (await control.call("one", row.method, concrete(row.path, "n1"))).content == answer.content


async def test_what_belongs_to_another_is_what_does_not_exist(control: Control) -> None:
    """Byte for byte the same answer but for the name itself."""
    await control.register("smol", who="two")
    await control.create("theirs", who="two")
    await control.register("theirs", who="two")

    for row in NAMED:
        others = await control.call("one", row.method, concrete(row.path, "theirs"))
        missing = await control.call("one", row.method, concrete(row.path, "missin"))

        assert others.status_code == missing.status_code == 404, row
        assert others.content.replace(b"theirs", b"missin") == missing.content
        for answer in (others, missing):
            answer.headers.pop("date")
        assert others.headers == missing.headers


async def test_lists_hold_only_the_tenants_own(control: Control) -> None:
    await control.register(who="two")
    await control.create(who="two")

    assert (await control.call("one", "GET", "/api/v1/models")).json() == {"models": []}
    assert (await control.call("one", "GET", "/api/v1/endpoints")).json() == {"endpoints": []}
    assert [m["name"] for m in (await control.call("two", "GET", "/api/v1/models")).json()["models"]] == ["smol"]
    status = (await control.call("one", "GET", "/api/v1/status")).json()
    assert (status["models"], status["endpoints"], status["tenant"]) == (0, {}, ONE)


async def test_one_name_may_be_used_by_two_tenants(control: Control) -> None:
    for who in ("one", "two"):
        await control.register(who=who)
        await control.create(who=who)

    assert (await control.call("one", "GET", "/api/v1/endpoints/chat")).json()["tenant"] == ONE
    assert (await control.call("two", "GET", "/api/v1/endpoints/chat")).json()["tenant"] == TWO


async def test_an_administrator_acts_for_a_tenant_by_header(control: Control) -> None:
    await control.register(who="two")

    as_two = await control.call("admin", "GET", "/api/v1/models/smol", x_standby_tenant=TWO)
    as_itself = await control.call("admin", "GET", "/api/v1/models/smol")
    as_nobody = await control.call("admin", "GET", "/api/v1/models", x_standby_tenant="../two")

    assert (as_two.status_code, as_itself.status_code, as_nobody.status_code) == (200, 404, 400)


async def test_a_tenant_may_not_act_for_another(control: Control) -> None:
    refused = await control.call("one", "GET", "/api/v1/models", x_standby_tenant=TWO)
    own = await control.call("one", "GET", "/api/v1/models", x_standby_tenant=ONE)

    assert (refused.status_code, own.status_code) == (403, 200)


async def test_a_key_is_made_used_listed_and_revoked(control: Control) -> None:
    made = await control.call("admin", "POST", "/api/v1/keys", {"name": "ci", "tenant": TWO})
    assert made.status_code == 201
    key = made.json()
    control.keys["ci"] = key["api_key"]

    # Usable by the very next request: the answer came only after this gateway's copy had the key.
    assert (await control.call("ci", "GET", "/api/v1/status")).json()["tenant"] == TWO
    listed = await control.call("admin", "GET", "/api/v1/keys")
    assert key["id"] in {item["id"] for item in listed.json()["keys"]}
    assert "digest" not in listed.text
    assert key["api_key"] not in listed.text

    revoked = await control.call("admin", "DELETE", f"/api/v1/keys/{key['id']}")
    assert revoked.json()["revoked_at"] is not None
    assert (await control.call("ci", "GET", "/api/v1/status")).status_code == 401
    again = await control.call("admin", "DELETE", f"/api/v1/keys/{key['id']}")
    assert again.json() == revoked.json()


async def test_the_last_administrators_key_cannot_be_revoked(control: Control) -> None:
    """Otherwise nobody could ever make a key again."""
    own = control.keys["admin"].split("-")[2]

    refused = await control.call("admin", "DELETE", f"/api/v1/keys/{own}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")

    second = (await control.call("admin", "POST", "/api/v1/keys", {"name": "second", "role": "admin"})).json()
    assert (await control.call("admin", "DELETE", f"/api/v1/keys/{own}")).status_code == 200
    control.keys["second"] = second["api_key"]
    assert (await control.call("second", "GET", "/api/v1/keys")).status_code == 200


async def test_a_key_revoked_elsewhere_is_refused_here(control: Control) -> None:
    """Another gateway's revocation reaches this one by the watched copy."""
    identity = control.keys["two"].split("-")[2]
    entry = await control.tables.keys.get(identity)
    assert entry is not None
    await control.tables.keys.update(identity, entry.value.model_copy(update={"revoked_at": 5.0}), entry.revision)
    await until(lambda: control.context.copies.keys.entries[identity].value.revoked_at is not None)

    assert (await control.call("two", "GET", "/api/v1/models")).status_code == 401


async def test_an_unknown_key_is_not_found(control: Control) -> None:
    for identity in ("nothing", "a.b", "a%20b", "%3E"):
        answer = await control.call("admin", "DELETE", f"/api/v1/keys/{identity}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
