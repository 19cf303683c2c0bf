"""Tenants' keys for their stores: kept sealed, shown by name only."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field, SecretStr
from starlette.responses import Response

from standby.artifacts.credentials import Credentials
from standby.artifacts.stored_keys import seal_keys
from standby.domain.access import StoredCredential
from standby.domain.errors import Conflict, NotFound, RevisionConflict
from standby.domain.names import check_name, key
from standby.domain.values import Value
from standby.gateway.api.context import ApiRoute, Call, missing
from standby.gateway.api.responses import json_response, read_body
from standby.gateway.api.usage import models_by_credentials

_LONGEST: Final = 8192


class CredentialBody(Value):
    """Body of a creation; ``replace`` puts other keys under the same name, for the models that use it too."""

    name: str
    access_key: SecretStr = Field(min_length=1, max_length=_LONGEST)
    secret_key: SecretStr = Field(min_length=1, max_length=_LONGEST)
    session_token: SecretStr | None = Field(default=None, min_length=1, max_length=_LONGEST)
    replace: bool = False

    def keys(self) -> Credentials:
        """Return the keys."""
        token = None if self.session_token is None else self.session_token.get_secret_value()
        return Credentials(self.access_key.get_secret_value(), self.secret_key.get_secret_value(), token)


async def create(call: Call) -> Response:
    """Store a pair of keys: 201; 200 where ``replace`` changed them. Raises Conflict where the name is taken."""
    body = await read_body(call.request, CredentialBody)
    check_name("credential", body.name)
    record = seal_keys(body.keys(), call.tenant, body.name, call.context.sealing_for("credentials"), call.context.now())
    table, record_key = call.context.tables.credentials, key(call.tenant, body.name)
    async with call.context.changing:
        stored = await table.get(record_key)
        if stored is not None and not body.replace:
            raise Conflict(
                f"credentials {body.name!r} are stored already", remedy="choose another name, or say replace (`--replace`)"
            )
        try:
            if stored is None:
                await table.create(record_key, record)
            else:
                await table.update(record_key, record, stored.revision)
        except RevisionConflict as error:
            raise Conflict(f"credentials {body.name!r} were changed at the same moment", remedy="try again") from error
        using = await models_by_credentials(call.context, call.tenant)
    return json_response(_view(record, using), 201 if stored is None else 200)


async def list_credentials(call: Call) -> Response:
    """The names of the tenant's credentials, and which models use them; never a key."""
    records = [entry.value for entry in (await call.context.tables.credentials.list(f"{call.tenant}.")).values()]
    using = await models_by_credentials(call.context, call.tenant)
    return json_response({"credentials": [_view(item, using) for item in sorted(records, key=lambda item: item.name)]})


async def delete(call: Call) -> Response:
    """Forget a pair of keys. Raises Conflict while a model uses it."""
    record_key = call.record_key(NotFound, "credential")
    table = call.context.tables.credentials
    async with call.context.changing:
        entry = await table.get(record_key)
        if entry is None:
            raise missing(NotFound, "credential", call.request.path_params["name"])
        name = entry.value.name
        users = (await models_by_credentials(call.context, call.tenant)).get(name, [])
        if users:
            raise Conflict(
                f"credentials {name!r} cannot be deleted: {len(users)} models use them ({', '.join(users[:5])})",
                remedy="delete these models first, or replace the keys (`standby credentials create --replace`)",
            )
        try:
            await table.delete(record_key, entry.revision)
        except RevisionConflict as error:
            raise Conflict(f"credentials {name!r} were changed at the same moment", remedy="try again") from error
    return json_response({"deleted": name})


def _view(record: StoredCredential, using: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "name": record.name,
        "tenant": record.tenant,
        "created_at": record.created_at,
        "used_by": using.get(record.name, []),
    }


ROUTES: Final = (
    ApiRoute("POST", "/api/v1/credentials", create),
    ApiRoute("GET", "/api/v1/credentials", list_credentials),
    ApiRoute("DELETE", "/api/v1/credentials/{name}", delete),
)
