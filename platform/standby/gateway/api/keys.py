"""Bearer keys: made, listed and revoked by administrators."""

from __future__ import annotations

from typing import Final

from pydantic import Field
from starlette.responses import Response

from standby.bus.copies import updated, visible
from standby.domain.access import ALL_SCOPES, Role, Scope
from standby.domain.errors import Conflict, NotFound
from standby.domain.priority import Priority
from standby.domain.values import Value
from standby.gateway.api.context import ApiRoute, Call, missing
from standby.gateway.api.key_limits import check_scopes, expiry, priority_for
from standby.gateway.api.responses import json_response, read_body
from standby.gateway.api.views import key_view
from standby.gateway.keys import issue

_CAS_ATTEMPTS: Final = 8


class KeyBody(Value):
    """Body of a key's creation; ``tenant`` defaults to the one the caller acts for."""

    name: str
    tenant: str | None = None
    role: Role = Role.TENANT
    scopes: tuple[Scope, ...] = ALL_SCOPES
    expires_in_s: float | None = Field(default=None, gt=0)
    priority: Priority | None = Field(default=None, description="the most urgent one that its requests may have")


async def create(call: Call) -> Response:
    """Make a key: 201 with the key itself, which is shown this once. Raises InvalidInput, Forbidden."""
    body = await read_body(call.request, KeyBody)
    context = call.context
    record, secret = issue(
        tenant=body.tenant if body.tenant is not None else call.tenant,
        name=body.name,
        role=body.role,
        pepper=context.pepper,
        now=context.now(),
        scopes=check_scopes(call.key, body.scopes),
        expires_at=expiry(call.key, body.expires_in_s, context.now()),
        priority=priority_for(call.key, body.priority),
    )
    call.about(record.id)
    revision = await context.tables.keys.create(record.id, record)
    await visible(context.copies.keys, record.id, revision)
    return json_response({**key_view(record), "api_key": secret}, 201)


async def list_keys(call: Call) -> Response:
    """All keys of all tenants, revoked ones included; never a secret."""
    keys = sorted((entry.value for entry in call.context.copies.keys.entries.values()), key=lambda item: item.created_at)
    return json_response({"keys": [key_view(item) for item in keys]})


async def revoke(call: Call) -> Response:
    """Revoke a key; revoking it again changes nothing. Raises NotFound, and Conflict for the last administrator's key."""
    identity = str(call.request.path_params["id"])
    table = call.context.tables.keys
    async with call.context.changing:
        for _ in range(_CAS_ATTEMPTS):
            entry = await table.get(identity) if identity.isalnum() and identity.isascii() else None
            if entry is None:
                raise missing(NotFound, "key", identity)
            if entry.value.revoked_at is not None:
                return json_response(key_view(entry.value))
            if entry.value.role is Role.ADMIN:
                await _refuse_last_admin(call, identity)
            revoked = entry.value.model_copy(update={"revoked_at": call.context.now()})
            if await updated(call.context.copies.keys, table, entry, revoked):
                return json_response(key_view(revoked))
    raise Conflict(f"key {identity!r} changed {_CAS_ATTEMPTS} times while it was being revoked", remedy="try again in a moment")


async def _refuse_last_admin(call: Call, identity: str) -> None:
    others = [
        entry
        for entry in (await call.context.tables.keys.list()).values()
        if entry.value.role is Role.ADMIN and entry.value.revoked_at is None and entry.value.id != identity
    ]
    if not others:
        raise Conflict(
            f"key {identity!r} is the last administrator's key", remedy="make another one first: `standby keys create --admin`"
        )


ROUTES: Final = (
    ApiRoute("POST", "/api/v1/keys", create, admin=True, audit="keys.create"),
    ApiRoute("GET", "/api/v1/keys", list_keys, admin=True),
    ApiRoute("DELETE", "/api/v1/keys/{id}", revoke, admin=True, audit="keys.revoke"),
)
