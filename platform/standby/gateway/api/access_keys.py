"""Pairs of keys for AWS's clients: made, listed, ended and revoked by their tenant or an administrator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from pydantic import Field
from starlette.responses import Response

from standby.bus.copies import updated, visible
from standby.bus.tables import Entry
from standby.domain.access import ALL_SCOPES, AccessKey, Scope
from standby.domain.errors import Conflict, NotFound, RevisionConflict
from standby.domain.priority import Priority
from standby.domain.values import Value
from standby.gateway.api.context import ApiContext, ApiRoute, Call, missing
from standby.gateway.api.key_limits import check_scopes, expiry, priority_for
from standby.gateway.api.responses import json_response, read_body
from standby.gateway.keys import TENANT_HEADER, acting_tenant
from standby.sagemaker.auth.access_keys import SESSION, is_key_id, issue

_CAS_ATTEMPTS: Final = 8
_DEFAULT_SESSION_S: Final = 3600.0
# A session's key that has ended is shown for a while, then forgotten: they are made by the hundred.
_FORGOTTEN_AFTER_S: Final = 3600.0
_FORGOTTEN_AT_ONCE: Final = 20


class AccessKeyBody(Value):
    """Body of a creation; ``session`` makes a temporary pair with a token; ``tenant`` defaults to whom the caller acts for."""

    name: str
    tenant: str | None = None
    scopes: tuple[Scope, ...] | None = None
    expires_in_s: float | None = Field(default=None, gt=0)
    priority: Priority | None = Field(default=None, description="the most urgent one that its requests may have")
    session: bool = False


class ExpiryBody(Value):
    """Body of a change: the key ends so many seconds from now; None: never."""

    expires_in_s: float | None = Field(ge=0)


async def create(call: Call) -> Response:
    """Make a pair: 201 with the secret (and the token), shown this once. Raises InvalidInput, Forbidden, Unavailable."""
    body = await read_body(call.request, AccessKeyBody)
    context, now = call.context, call.context.now()
    tenant = call.tenant if body.tenant is None else acting_tenant(call.key, body.tenant)
    lasts = _DEFAULT_SESSION_S if body.session and body.expires_in_s is None else body.expires_in_s
    record, pair = issue(
        tenant=tenant,
        name=body.name,
        sealing=context.sealing_for("access keys"),
        now=now,
        session=body.session,
        scopes=check_scopes(call.key, _handed_on(call) if body.scopes is None else body.scopes),
        expires_at=expiry(call.key, lasts, now, session_since=now if body.session else None),
        priority=priority_for(call.key, body.priority),
    )
    call.about(record.id)
    revision = await context.tables.access_keys.create(record.id, record)
    if body.session:
        await _forget_ended(context, tenant)
    await visible(context.copies.access_keys, record.id, revision)
    shown = {"secret_access_key": pair.secret, "session_token": pair.token}
    return json_response({**access_key_view(record, context.region), **shown}, 201)


async def list_access_keys(call: Call) -> Response:
    """The tenant's pairs, revoked ones included; an administrator who acts for no tenant sees all. Never a secret."""
    everybody = call.is_admin and TENANT_HEADER not in call.request.headers
    records = [entry.value for entry in call.context.copies.access_keys.entries.values()]
    mine = sorted((one for one in records if everybody or one.tenant == call.tenant), key=lambda one: one.created_at)
    return json_response({"access_keys": [access_key_view(one, call.context.region) for one in mine]})


async def show(call: Call) -> Response:
    """One pair, without its secret. Raises NotFound."""
    return json_response(access_key_view((await _find(call)).value, call.context.region))


async def revoke(call: Call) -> Response:
    """Revoke a pair; revoking it again changes nothing. Raises NotFound."""

    def revoked(record: AccessKey) -> AccessKey:
        return record if record.revoked_at is not None else record.model_copy(update={"revoked_at": call.context.now()})

    return await _change(call, revoked)


async def expire(call: Call) -> Response:
    """Change when a pair ends. Raises NotFound, InvalidInput, Forbidden."""
    body = await read_body(call.request, ExpiryBody)
    now = call.context.now()

    def ending(record: AccessKey) -> AccessKey:
        since = record.created_at if record.id.startswith(SESSION) else None
        return record.model_copy(update={"expires_at": expiry(call.key, body.expires_in_s, now, session_since=since)})

    return await _change(call, ending)


def access_key_view(record: AccessKey, region: str) -> dict[str, Any]:
    """Return a pair as its owner sees it: never what is sealed."""
    return {
        "access_key_id": record.id,
        "tenant": record.tenant,
        "name": record.name,
        "session": record.id.startswith(SESSION),
        "scopes": record.scopes,
        "priority": record.priority,
        "region": region,
        "sealed_with": record.key_version,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "revoked_at": record.revoked_at,
    }


def _handed_on(call: Call) -> tuple[Scope, ...]:
    return tuple(scope for scope in ALL_SCOPES if scope in call.key.scopes)


async def _find(call: Call) -> Entry[AccessKey]:
    identity = str(call.request.path_params["id"])
    entry = await call.context.tables.access_keys.get(identity) if is_key_id(identity) else None
    if entry is None or (entry.value.tenant != call.tenant and not call.is_admin):
        raise missing(NotFound, "key", identity)
    return entry


async def _change(call: Call, changed: Callable[[AccessKey], AccessKey]) -> Response:
    context = call.context
    for _ in range(_CAS_ATTEMPTS):
        entry = await _find(call)
        record = changed(entry.value)
        if record == entry.value or await updated(context.copies.access_keys, context.tables.access_keys, entry, record):
            return json_response(access_key_view(record, context.region))
    raise Conflict(f"the key changed {_CAS_ATTEMPTS} times while it was being changed", remedy="try again in a moment")


async def _forget_ended(context: ApiContext, tenant: str) -> None:
    """Remove a few of the tenant's session keys that ended long ago, so that their number stays what is in use."""
    before = context.now() - _FORGOTTEN_AFTER_S
    ended = [
        entry
        for entry in context.copies.access_keys.entries.values()
        if entry.value.tenant == tenant
        and entry.value.id.startswith(SESSION)
        and entry.value.expires_at is not None
        and entry.value.expires_at < before
    ]
    removals = (context.tables.access_keys.delete(entry.key, entry.revision) for entry in ended[:_FORGOTTEN_AT_ONCE])
    # Somebody else changed or removed it first: then it is not ours to remove.
    for result in await asyncio.gather(*removals, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, RevisionConflict):
            raise result


ROUTES: Final = (
    ApiRoute("POST", "/api/v1/access-keys", create, audit="access-keys.create"),
    ApiRoute("GET", "/api/v1/access-keys", list_access_keys),
    ApiRoute("GET", "/api/v1/access-keys/{id}", show),
    ApiRoute("PATCH", "/api/v1/access-keys/{id}", expire, audit="access-keys.expire"),
    ApiRoute("DELETE", "/api/v1/access-keys/{id}", revoke, audit="access-keys.revoke"),
)
