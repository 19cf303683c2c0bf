"""Models: registered from a source after everything that can be checked was checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import Field
from starlette.responses import Response

from standby.bus.tables import Entry
from standby.domain.errors import Conflict, Forbidden, InvalidInput, ModelNotFound, RevisionConflict
from standby.domain.model import EngineKind, Manifest, Model, ModelFormat, SourceOptions
from standby.domain.names import check_name, key
from standby.domain.node import Node
from standby.domain.values import Value
from standby.gateway.api.context import ApiContext, ApiRoute, Call, missing, visible
from standby.gateway.api.responses import json_response, read_body
from standby.gateway.api.views import model_view

# The first engine of each format is the default.
ENGINES: Final[Mapping[ModelFormat, tuple[EngineKind, ...]]] = {
    ModelFormat.GGUF: (EngineKind.LLAMA_CPP, EngineKind.FAKE),
    ModelFormat.SAFETENSORS: (EngineKind.VLLM, EngineKind.TENSORRT_LLM, EngineKind.FAKE),
}


class ModelBody(Value):
    """Body of a registration."""

    name: str
    source_uri: str
    source: SourceOptions = SourceOptions()
    engine: EngineKind | None = None
    engine_options: Mapping[str, str | int | float | bool] = Field(default_factory=dict)
    replace: bool = False


async def register(call: Call) -> Response:
    """Inspect the source and store the model: 201; 200 where exactly this version is registered already.

    ``replace`` puts another version under the same name, but only while no endpoint uses it: otherwise instances of two
    versions would answer under one name, depending on when each was started (field case B04). Raises Conflict, and the
    artifact errors of the inspection.
    """
    body = await read_body(call.request, ModelBody)
    check_name("model", body.name)
    check_source(call, body)
    manifest = await call.context.inspect(body.source_uri, body.source)
    engine = choose_engine(body.engine, manifest)
    check_options(engine, body.engine_options, (entry.value for entry in call.context.copies.nodes.entries.values()))
    model = Model(
        tenant=call.tenant,
        name=body.name,
        manifest=manifest,
        engine=engine,
        engine_options=body.engine_options,
        created_at=call.context.now(),
    )
    record_key = key(call.tenant, body.name)
    async with call.context.changing:
        stored = await call.context.tables.models.get(record_key)
        if stored is not None and same_version(stored.value, model):
            return json_response(model_view(stored.value, objects=True))
        revision = await _store(call, record_key, stored, model, replace=body.replace)
    await visible(call.context.copies.models, record_key, revision)
    return json_response(model_view(model, objects=True), 201 if stored is None else 200)


async def list_models(call: Call) -> Response:
    """All of the tenant's models, without their objects."""
    mine = (entry.value for entry in call.context.copies.models.entries.values() if entry.value.tenant == call.tenant)
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
        await _refuse_in_use(call, entry.value.name, "deleted")
        await call.context.tables.models.delete(record_key, entry.revision)
    await visible(call.context.copies.models, record_key, None)
    return json_response({"deleted": entry.value.name})


def check_source(call: Call, body: ModelBody) -> None:
    """Refuse sources by which a tenant would read with the platform's rights. Raises Forbidden.

    ``file://`` reads the nodes' own disks, and another store's address is called from inside with our credentials.
    """
    if call.is_admin or call.context.open_sources:
        return
    if not body.source_uri.startswith("s3://"):
        raise Forbidden(f"source {body.source_uri[:80]!r} needs an administrator's key", remedy="upload the model to S3")
    if body.source.endpoint_url is not None:
        raise Forbidden(
            f"source.endpoint_url {body.source.endpoint_url[:80]!r} needs an administrator's key",
            remedy="leave it out: the platform's own store is used",
        )


def choose_engine(wanted: EngineKind | None, manifest: Manifest) -> EngineKind:
    """Return the engine that will serve the manifest's format. Raises InvalidInput where ``wanted`` cannot."""
    able = ENGINES[manifest.format]
    if wanted is None:
        return able[0]
    if wanted not in able:
        names = ", ".join(engine for engine in able if engine is not EngineKind.FAKE)
        raise InvalidInput(
            f"engine {wanted.value!r} cannot serve a model of format {manifest.format.value!r}",
            remedy=f"choose one of: {names}",
        )
    return wanted


def check_options(engine: EngineKind, options: Iterable[str], nodes: Iterable[Node]) -> None:
    """Refuse an option that no node's engine knows: it would only be found out at the first start. Raises InvalidInput.

    While no node says what the engine takes, nothing can be checked.
    """
    known = {name for node in nodes for name in node.engine_options.get(engine, ())}
    unknown = sorted(set(options) - known) if known else []
    if unknown:
        raise InvalidInput(
            f"{engine.value} has no engine option {', '.join(repr(name[:60]) for name in unknown)}",
            remedy=f"known are: {', '.join(sorted(known))}",
        )


def same_version(stored: Model, wanted: Model) -> bool:
    """Return whether a registration would change nothing."""
    return (
        stored.manifest == wanted.manifest
        and stored.engine is wanted.engine
        and dict(stored.engine_options) == dict(wanted.engine_options)
    )


async def endpoints_using(context: ApiContext, tenant: str, model: str) -> list[str]:
    """Return the names of the tenant's endpoints whose config names ``model``; read from the tables, not from a copy."""
    endpoints = await context.tables.endpoints.list(f"{tenant}.")
    configs = await context.tables.endpoint_configs.list(f"{tenant}.")
    used = {record_key for record_key, entry in configs.items() if any(item.model == model for item in entry.value.variants)}
    return sorted(entry.value.name for entry in endpoints.values() if key(tenant, entry.value.config) in used)


async def _store(call: Call, record_key: str, stored: Entry[Model] | None, model: Model, *, replace: bool) -> int:
    models = call.context.tables.models
    try:
        if stored is None:
            return await models.create(record_key, model)
        if not replace:
            raise Conflict(
                f"model {model.name!r} is registered already, from {stored.value.manifest.source_uri!r} "
                f"as version {stored.value.manifest.digest[:12]} for {stored.value.engine.value}",
                remedy="choose another name, or say replace (`--replace`) while no endpoint uses it",
            )
        await _refuse_in_use(call, model.name, "replaced")
        return await models.update(record_key, model, stored.revision)
    except RevisionConflict as error:
        raise Conflict(
            f"model {model.name!r} was changed by somebody else at the same moment", remedy="look at it and try again"
        ) from error


async def _refuse_in_use(call: Call, model: str, what: str) -> None:
    users = await endpoints_using(call.context, call.tenant, model)
    if users:
        raise Conflict(
            f"model {model!r} cannot be {what}: {len(users)} endpoints use it ({', '.join(users[:5])})",
            remedy="delete these endpoints first, or register the new version under another name",
        )


ROUTES: Final = (
    ApiRoute("POST", "/api/v1/models", register),
    ApiRoute("GET", "/api/v1/models", list_models),
    ApiRoute("GET", "/api/v1/models/{name}", show),
    ApiRoute("DELETE", "/api/v1/models/{name}", delete),
)
