"""Who uses what: endpoints use models, models use stored credentials. Read from the tables, not from a copy."""

from __future__ import annotations

from standby.domain.errors import Conflict, InvalidInput
from standby.domain.model import Manifest, Model
from standby.domain.names import key
from standby.gateway.api.context import ApiContext, Call


async def endpoints_using(context: ApiContext, tenant: str, model: str) -> list[str]:
    """Return the names of the tenant's endpoints whose config names ``model``."""
    endpoints = await context.tables.endpoints.list(f"{tenant}.")
    configs = await context.tables.endpoint_configs.list(f"{tenant}.")
    used = {record_key for record_key, entry in configs.items() if any(item.model == model for item in entry.value.variants)}
    return sorted(entry.value.name for entry in endpoints.values() if key(tenant, entry.value.config) in used)


async def refuse_in_use(call: Call, model: str, what: str) -> None:
    """Raise Conflict while an endpoint uses ``model``; ``what`` says what cannot be done with it."""
    users = await endpoints_using(call.context, call.tenant, model)
    if users:
        raise Conflict(
            f"model {model!r} cannot be {what}: {len(users)} endpoints use it ({', '.join(users[:5])})",
            remedy="delete these endpoints first, or register the new version under another name",
        )


async def models_by_credentials(context: ApiContext, tenant: str) -> dict[str, list[str]]:
    """Return for each name of stored credentials the tenant's models that are read with them."""
    using: dict[str, list[str]] = {}
    for entry in (await context.tables.models.list(f"{tenant}.")).values():
        for name in credentials_of(entry.value):
            using.setdefault(name, []).append(entry.value.name)
    return {name: sorted(models) for name, models in using.items()}


def credentials_of(model: Model) -> frozenset[str]:
    """Return the names of the stored credentials that a model's bytes are read with."""
    sources = (manifest.source.credentials for manifest in (model.manifest, *model.weights.values()))
    return frozenset(name for name in sources if name is not None)


def require_weights(model: Model, weights: str) -> Manifest:
    """Return the model's other weights of that name. Raises InvalidInput naming the known ones."""
    manifest = model.weights.get(weights)
    if manifest is None:
        known = ", ".join(sorted(model.weights)) or "none, it was registered without others"
        raise InvalidInput(f"model {model.name!r} has no weights {weights[:80]!r}", remedy=f"known are: {known}")
    return manifest
