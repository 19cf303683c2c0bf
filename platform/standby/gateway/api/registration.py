"""Registration of a model and of its other weights: everything that can be checked is checked first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import Field

from standby.artifacts.variants import same_model
from standby.bus.copies import visible
from standby.bus.tables import Entry
from standby.domain.engine_choice import check_options, choose_engine
from standby.domain.errors import Conflict, InvalidInput, RevisionConflict
from standby.domain.model import EngineKind, Manifest, Model, SourceOptions
from standby.domain.names import check_name, key
from standby.gateway.api.context import Call
from standby.gateway.api.responses import read_body
from standby.gateway.api.sources import SourceBody, check_place, inspect_place, place_of, require_stored
from standby.gateway.api.usage import refuse_in_use

MAX_WEIGHTS: Final = 16


class ModelBody(SourceBody):
    """Body of a registration; other weights are reached as the model is, where they do not say how."""

    name: str
    engine: EngineKind | None = None
    engine_options: Mapping[str, str | int | float | bool] = Field(default_factory=dict)
    weights: Mapping[str, SourceBody] = Field(default_factory=dict, max_length=MAX_WEIGHTS)
    replace: bool = False


async def register_model(call: Call) -> tuple[Model, bool]:
    """Inspect the sources, store the model, return it and whether its name is new.

    The same version again changes nothing; one that only adds other weights is taken also while endpoints use the model.
    ``replace`` puts another version under the name, but only while no endpoint uses it: otherwise instances of two versions
    would answer under one name, depending on when each was started (field case B04). Raises InvalidInput, Forbidden,
    NotFound (credentials), Conflict, and the artifact errors of the inspection.
    """
    body = await read_body(call.request, ModelBody)
    check_name("model", body.name)
    model = await _inspected(call, body)
    record_key = key(call.tenant, body.name)
    async with call.context.changing:
        stored = await call.context.tables.models.get(record_key)
        if stored is not None and same_version(stored.value, model):
            return stored.value, False
        for manifest in (model.manifest, *model.weights.values()):
            await require_stored(call, manifest.source.credentials)
        revision = await _store(call, record_key, stored, model, replace=body.replace)
    await visible(call.context.copies.models, record_key, revision)
    return model, stored is None


async def _inspected(call: Call, body: ModelBody) -> Model:
    base = place_of(body, SourceOptions())
    others = {check_name("weights", name): place_of(other, base.options) for name, other in body.weights.items()}
    for place in (base, *others.values()):
        check_place(call, place)
    manifest = await inspect_place(call, base)
    engine = choose_engine(body.engine, manifest)
    check_options(engine, body.engine_options, (entry.value for entry in call.context.copies.nodes.entries.values()))
    weights = {name: await inspect_place(call, place) for name, place in others.items()}
    for name, other in weights.items():
        check_weights(name, manifest, other)
    return Model(
        tenant=call.tenant,
        name=body.name,
        manifest=manifest,
        engine=engine,
        engine_options=body.engine_options,
        weights=weights,
        created_at=call.context.now(),
    )


def check_weights(name: str, base: Manifest, other: Manifest) -> None:
    """Refuse weights of another model: a caller would get answers of two models under one name. Raises InvalidInput."""
    reason = same_model(base, other)
    if reason is not None:
        raise InvalidInput(
            f"weights {name!r} from {other.source_uri} are not of the same model as {base.source_uri}: {reason}",
            remedy="register them as a model of their own",
        )


def same_version(stored: Model, wanted: Model) -> bool:
    """Return whether a registration would change nothing."""
    return _same_base(stored, wanted) and dict(stored.weights) == dict(wanted.weights)


def only_adds(stored: Model, wanted: Model) -> bool:
    """Return whether a registration would only add weights, and so change nothing for whoever uses the model."""
    return _same_base(stored, wanted) and stored.weights.items() <= wanted.weights.items()


def _same_base(stored: Model, wanted: Model) -> bool:
    return (
        stored.manifest == wanted.manifest
        and stored.engine is wanted.engine
        and dict(stored.engine_options) == dict(wanted.engine_options)
    )


async def _store(call: Call, record_key: str, stored: Entry[Model] | None, model: Model, *, replace: bool) -> int:
    models = call.context.tables.models
    try:
        if stored is None:
            return await models.create(record_key, model)
        if not only_adds(stored.value, model):
            _require_replace(stored.value, replace=replace)
            await refuse_in_use(call, model.name, "replaced")
        return await models.update(record_key, model, stored.revision)
    except RevisionConflict as error:
        raise Conflict(
            f"model {model.name!r} was changed by somebody else at the same moment", remedy="look at it and try again"
        ) from error


def _require_replace(stored: Model, *, replace: bool) -> None:
    if replace:
        return
    others = f" with weights {', '.join(sorted(stored.weights))}" if stored.weights else ""
    raise Conflict(
        f"model {stored.name!r} is registered already, from {stored.manifest.source_uri!r} "
        f"as version {stored.manifest.digest[:12]} for {stored.engine.value}{others}",
        remedy="choose another name, or say replace (`--replace`) while no endpoint uses it",
    )
