"""Tenants: made, shown and disabled by administrators, with their quotas; each sees itself."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field
from starlette.responses import Response

from standby.bus.copies import visible
from standby.bus.tables import Entry
from standby.domain.access import Quotas, Tenant
from standby.domain.errors import Conflict, InvalidInput, NotFound, RevisionConflict
from standby.domain.names import DEFAULT_TENANT, check_tenant
from standby.domain.values import Value
from standby.gateway.api.context import ApiRoute, Call, missing
from standby.gateway.api.responses import json_response, read_body

_CAS_ATTEMPTS: Final = 8
_LONGEST_NAME: Final = 64


class QuotasBody(Value):
    """Quotas to change; what is left out stays. ``memory_mb`` 0: no limit."""

    endpoints: int | None = Field(default=None, ge=0)
    concurrency: int | None = Field(default=None, ge=0)
    memory_mb_per_endpoint: int | None = Field(default=None, ge=1024)
    memory_mb: int | None = Field(default=None, ge=0)

    def over(self, quotas: Quotas) -> Quotas:
        """Return ``quotas`` with these changes."""
        changes: dict[str, int | None] = self.model_dump(exclude_none=True)
        if self.memory_mb == 0:
            changes["memory_mb"] = None
        return quotas.model_copy(update=changes)


class TenantBody(Value):
    """Body of a creation."""

    id: str
    name: str = Field(default="", max_length=_LONGEST_NAME)
    quotas: QuotasBody = QuotasBody()


class ChangeBody(Value):
    """Body of a change; what is left out stays."""

    name: str | None = Field(default=None, max_length=_LONGEST_NAME)
    quotas: QuotasBody = QuotasBody()
    disabled: bool | None = None


async def create(call: Call) -> Response:
    """Make a tenant: 201. Raises InvalidInput, and Conflict where it is there already."""
    body = await read_body(call.request, TenantBody)
    context = call.context
    call.about(body.id)
    record = Tenant(
        id=check_tenant(body.id), name=_named(body.name), quotas=body.quotas.over(Quotas()), created_at=context.now()
    )
    if record.id == DEFAULT_TENANT:
        raise Conflict(f"tenant {record.id} is always there", remedy="change it with `standby tenants set`")
    try:
        revision = await context.tables.tenants.create(record.id, record)
    except RevisionConflict as error:
        raise Conflict(f"tenant {record.id} is there already", remedy="change it with `standby tenants set`") from error
    await visible(context.copies.tenants, record.id, revision)
    return json_response(_view(record), 201)


async def list_tenants(call: Call) -> Response:
    """All tenants, the one that exists without a record included."""
    records = {key: entry.value for key, entry in call.context.copies.tenants.entries.items()}
    records.setdefault(DEFAULT_TENANT, _default())
    return json_response({"tenants": [_view(records[key]) for key in sorted(records)]})


async def show(call: Call) -> Response:
    """One tenant, to itself or an administrator. Raises NotFound."""
    identity = str(call.request.path_params["id"])
    if not call.is_admin and identity != call.tenant:
        raise missing(NotFound, "tenant", identity)
    entry = call.context.copies.tenants.entries.get(identity)
    if entry is not None:
        return json_response(_view(entry.value))
    if identity in {DEFAULT_TENANT, call.tenant}:
        return json_response(_view(_default().model_copy(update={"id": identity})))
    raise missing(NotFound, "tenant", identity)


async def change(call: Call) -> Response:
    """Change name and quotas, disable or enable. Raises NotFound, and Conflict for disabling the caller's own."""
    body = await read_body(call.request, ChangeBody)
    identity = str(call.request.path_params["id"])
    if body.disabled and identity == call.key.tenant:
        raise Conflict(f"tenant {identity} is your own: nobody could enable it again", remedy="use another tenant's key")
    table = call.context.tables.tenants
    for _ in range(_CAS_ATTEMPTS):
        entry = await _stored(call, identity)
        record = _changed(_default() if entry is None else entry.value, body, call.context.now())
        try:
            if entry is None:
                revision = await table.create(identity, record)
            else:
                revision = await table.update(identity, record, entry.revision)
        except RevisionConflict:
            continue
        await visible(call.context.copies.tenants, identity, revision)
        return json_response(_view(record))
    raise Conflict(
        f"tenant {identity} changed {_CAS_ATTEMPTS} times while it was being changed", remedy="try again in a moment"
    )


async def _stored(call: Call, identity: str) -> Entry[Tenant] | None:
    """Return the record; None for the default tenant without one. Raises NotFound."""
    legal = identity.isascii() and identity.isdigit()
    entry = await call.context.tables.tenants.get(identity) if legal else None
    if entry is None and identity != DEFAULT_TENANT:
        raise missing(NotFound, "tenant", identity)
    return entry


def _changed(record: Tenant, body: ChangeBody, now: float) -> Tenant:
    disabled_at = record.disabled_at
    if body.disabled is not None:
        disabled_at = (disabled_at or now) if body.disabled else None
    name = record.name if body.name is None else _named(body.name)
    return record.model_copy(update={"name": name, "quotas": body.quotas.over(record.quotas), "disabled_at": disabled_at})


def _named(name: str) -> str:
    if name and not name.isprintable():
        raise InvalidInput(f"tenant name {name!r} is not printable", remedy="choose a name that people can read")
    return name


def _default() -> Tenant:
    return Tenant(id=DEFAULT_TENANT, name="default", created_at=0.0)


def _view(record: Tenant) -> dict[str, Any]:
    return record.model_dump(exclude={"schema_version"})


ROUTES: Final = (
    ApiRoute("POST", "/api/v1/tenants", create, admin=True, audit="tenants.create"),
    ApiRoute("GET", "/api/v1/tenants", list_tenants, admin=True),
    ApiRoute("GET", "/api/v1/tenants/{id}", show),
    ApiRoute("PATCH", "/api/v1/tenants/{id}", change, admin=True, audit="tenants.change"),
)
