"""Models: registered, listed, shown, forgotten."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from standby.bus.copies import visible
from standby.domain.errors import ModelNotFound
from standby.domain.names import HIDDEN
from standby.gateway.api.context import ApiRoute, Call, missing
from standby.gateway.api.registration import register_model
from standby.gateway.api.responses import json_response
from standby.gateway.api.usage import refuse_in_use
from standby.gateway.api.views import model_view


async def register(call: Call) -> Response:
    """Inspect the source and store the model: 201; 200 where the name is registered already."""
    model, new = await register_model(call)
    return json_response(model_view(model, objects=True), 201 if new else 200)


async def list_models(call: Call) -> Response:
    """All of the tenant's models, without their objects."""
    models = (entry.value for entry in call.context.copies.models.entries.values() if HIDDEN not in entry.key)
    mine = (model for model in models if model.tenant == call.tenant)
    return json_response({"models": [model_view(model, objects=False) for model in sorted(mine, key=lambda item: item.name)]})


async def show(call: Call) -> Response:
    """One model with its manifest."""
    record_key = call.record_key(ModelNotFound, "model")
    entry = call.context.copies.models.entries.get(record_key)
    if entry is None:
        raise missing(ModelNotFound, "model", call.request.path_params["name"])
    return json_response(model_view(entry.value, objects=True))


async def delete(call: Call) -> Response:
    """Forget the model; its bytes in the store are not touched. Raises Conflict while an endpoint uses it."""
    record_key = call.record_key(ModelNotFound, "model")
    async with call.context.changing:
        entry = await call.context.tables.models.get(record_key)
        if entry is None:
            raise missing(ModelNotFound, "model", call.request.path_params["name"])
        await refuse_in_use(call, entry.value.name, "deleted")
        await call.context.tables.models.delete(record_key, entry.revision)
    await visible(call.context.copies.models, record_key, None)
    return json_response({"deleted": entry.value.name})


ROUTES: Final = (
    ApiRoute("POST", "/api/v1/models", register),
    ApiRoute("GET", "/api/v1/models", list_models),
    ApiRoute("GET", "/api/v1/models/{name}", show),
    ApiRoute("DELETE", "/api/v1/models/{name}", delete),
)
