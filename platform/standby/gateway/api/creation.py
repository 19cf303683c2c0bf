"""The creation of an endpoint: config first, then the endpoint, then a second look for what another gateway did meanwhile."""

from __future__ import annotations

import re
import uuid
from typing import Final

from pydantic import Field, model_validator

from standby.bus.copies import visible
from standby.bus.tables import Entry
from standby.domain.endpoint import DEFAULT_VARIANT, Backend, Endpoint, EndpointConfig, EndpointStatus, ScalePolicy, Variant
from standby.domain.errors import Conflict, InvalidInput, ModelNotFound, QuotaExceeded, RevisionConflict, UnsupportedArtifact
from standby.domain.events import EndpointChanged
from standby.domain.names import check_name, check_served_name, key
from standby.domain.traffic import QueueMode, TrafficPolicy
from standby.domain.values import Value
from standby.gateway.api.context import ApiContext, Call, missing
from standby.gateway.api.quotas import require_quota
from standby.gateway.api.responses import read_body
from standby.gateway.api.servable import check_servable

_CONFIG_ATTEMPTS: Final = 8
MOST_VARIANTS: Final = 10
MOST_BACKENDS: Final = 4


class VariantBody(Value):
    """One variant; without a policy of its own it takes the endpoint's."""

    name: str = DEFAULT_VARIANT
    model: str
    weights: str | None = None
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, ge=128)
    concurrency_limit: int | None = Field(default=None, ge=1, le=200)
    backends: tuple[Backend, ...] = Field(default=(), max_length=MOST_BACKENDS)
    policy: ScalePolicy | None = None

    @model_validator(mode="after")
    def _backends_fit(self) -> VariantBody:
        _check_backends(self.backends, self.weights)
        return self


class EndpointBody(Value):
    """Body of a creation: ``model``, with one of its named ``weights`` or several ``backends`` if wanted; or ``variants``."""

    name: str
    model: str | None = None
    weights: str | None = None
    variants: tuple[VariantBody, ...] = ()
    served_name: str | None = None
    memory_mb: int | None = Field(default=None, ge=128)
    concurrency_limit: int | None = Field(default=None, ge=1, le=200)
    backends: tuple[Backend, ...] = Field(default=(), max_length=MOST_BACKENDS)
    policy: ScalePolicy = ScalePolicy()
    traffic: TrafficPolicy = TrafficPolicy()

    @model_validator(mode="after")
    def _one_of_two(self) -> EndpointBody:
        if (self.model is None) == (not self.variants):
            msg = "give either 'model' or 'variants'"
            raise ValueError(msg)
        if self.weights is not None and self.model is None:
            msg = "give 'weights' inside the variant"
            raise ValueError(msg)
        if self.backends and self.model is None:
            msg = "give 'backends' inside the variant"
            raise ValueError(msg)
        _check_backends(self.backends, self.weights)
        if "queue" in self.traffic.model_fields_set and self.traffic.queue is QueueMode.ADAPTIVE:
            _require_target(self.traffic)
        names = [item.name for item in self.variants]
        if len(set(names)) != len(names):
            msg = f"variants: the names {sorted(names)} are not all different"
            raise ValueError(msg)
        if len(self.variants) > MOST_VARIANTS:
            msg = f"variants: {len(names)} given, an endpoint serves at most {MOST_VARIANTS}"
            raise ValueError(msg)
        if self.variants and sum(item.weight for item in self.variants) <= 0:
            msg = "variants: the weights sum to 0, so none would get a request"
            raise ValueError(msg)
        return self

    def resolved(self) -> tuple[Variant, ...]:
        """Return the variants as they are stored."""
        if self.model is not None:
            return (
                Variant(
                    model=self.model,
                    weights=self.weights,
                    memory_mb=self.memory_mb,
                    concurrency_limit=self.concurrency_limit,
                    backends=self.backends,
                    policy=self.policy,
                ),
            )
        return tuple(
            Variant(
                name=item.name,
                model=item.model,
                weights=item.weights,
                weight=item.weight,
                memory_mb=item.memory_mb or self.memory_mb,
                concurrency_limit=item.concurrency_limit or self.concurrency_limit,
                backends=item.backends,
                policy=item.policy or self.policy,
            )
            for item in self.variants
        )


def _check_backends(backends: tuple[Backend, ...], weights: str | None) -> None:
    """Raise ValueError, with the field and the limit, for backends that cannot be together."""
    if not backends:
        return
    if weights is not None:
        msg = f"weights: {weights!r} cannot be for all backends; give 'weights' inside each backend"
        raise ValueError(msg)
    labels = [backend.label for backend in backends]
    doubles = sorted({label for label in labels if labels.count(label) > 1})
    if doubles:
        msg = f"backends: {', '.join(doubles)} given more than once; give each a 'name' of its own"
        raise ValueError(msg)
    for backend in backends:
        if backend.max_instances is not None and backend.min_ready > backend.max_instances:
            msg = f"backends.{backend.label}: min_ready {backend.min_ready} is above max_instances {backend.max_instances}"
            raise ValueError(msg)


def _require_target(traffic: TrafficPolicy) -> None:
    if traffic.latency_target is None:
        msg = "traffic.queue: 'adaptive' needs traffic.latency_target, which it keeps; give one, or choose 'static'"
        raise ValueError(msg)


async def create(call: Call) -> Endpoint:
    """Create the endpoint that the request's body describes.

    Raises InvalidInput, ModelNotFound, UnsupportedArtifact where no engine can serve the model, QuotaExceeded,
    and Conflict where the name or the served name is taken.
    """
    body = await read_body(call.request, EndpointBody)
    check_name("endpoint", body.name)
    served_name = check_served_name(body.name if body.served_name is None else body.served_name)
    variants = body.resolved()
    for variant in variants:
        check_name("variant", variant.name)
        for backend in variant.backends:
            if backend.name:
                check_name("backend", backend.name)
    async with call.context.changing:
        await _check_models(call, variants)
        await _check_names_free(call, body.name, served_name)
        require_quota(call, body.name, variants)
        number = await _store_config(call, body.name, variants, body.traffic)
        endpoint = await _store_endpoint(call, body.name, served_name, number)
    await announce(call.context, endpoint)
    return endpoint


async def announce(context: ApiContext, endpoint: Endpoint) -> None:
    """Publish the endpoint's status in this gateway's name; best effort, as all events are."""
    await context.events.publish(
        EndpointChanged(
            id=uuid.uuid4().hex,
            at=context.now(),
            source=context.source,
            tenant=endpoint.tenant,
            endpoint=endpoint.name,
            status=endpoint.status.value,
        )
    )


async def _check_models(call: Call, variants: tuple[Variant, ...]) -> None:
    for variant in variants:
        check_name("model", variant.model)
        entry = await call.context.tables.models.get(key(call.tenant, variant.model))
        if entry is None:
            raise missing(ModelNotFound, "model", variant.model)
        check_servable(entry.value, variant, (node.value for node in call.context.copies.nodes.entries.values()))


async def _check_names_free(call: Call, name: str, served_name: str, *, except_for: int | None = None) -> None:
    """Raise Conflict where another endpoint has one of the names; ``except_for`` is the revision of the caller's own."""
    for entry in (await call.context.tables.endpoints.list(f"{call.tenant}.")).values():
        other = entry.value
        if entry.revision == except_for:
            continue
        going = " and is being deleted" if other.status is EndpointStatus.DELETING else ""
        if other.name == name:
            raise Conflict(
                f"endpoint {name!r} exists already{going}", remedy="choose another name, or delete it and wait until it is gone"
            )
        if other.served_name == served_name:
            raise Conflict(
                f"served name {served_name!r} is taken by endpoint {other.name!r}, which exists{going}",
                remedy="choose another one (`--served-name`), or delete that endpoint and wait until it is gone",
            )


async def _store_config(call: Call, name: str, variants: tuple[Variant, ...], traffic: TrafficPolicy) -> int:
    """Store the immutable config ``<name>-<n>`` under the next free number and return the number."""
    configs = call.context.tables.endpoint_configs
    number = 1 + max(_config_numbers(name, await configs.list(key(call.tenant, f"{name}-"))), default=0)
    for candidate in range(number, number + _CONFIG_ATTEMPTS):
        config_name = f"{name}-{candidate}"
        config = EndpointConfig(
            tenant=call.tenant, name=config_name, variants=variants, traffic=traffic, created_at=call.context.now()
        )
        try:
            revision = await configs.create(key(call.tenant, config_name), config)
        except RevisionConflict:
            continue
        await visible(call.context.copies.endpoint_configs, key(call.tenant, config_name), revision)
        return candidate
    raise Conflict(f"endpoint {name!r} is being created by others at the same moment", remedy="try again in a moment")


async def _store_endpoint(call: Call, name: str, served_name: str, number: int) -> Endpoint:
    now = call.context.now()
    endpoint = Endpoint(
        tenant=call.tenant,
        name=name,
        config=f"{name}-{number}",
        served_name=served_name,
        status=EndpointStatus.IN_SERVICE,
        created_at=now,
        updated_at=now,
        # Configs are kept until their successor exists, so that an endpoint that is created again has a higher
        # generation than the one that failed before.
        generation=number,
    )
    table = call.context.tables.endpoints
    record_key = key(call.tenant, name)
    config_key = key(call.tenant, endpoint.config)
    try:
        revision = await table.create(record_key, endpoint)
    except RevisionConflict as error:
        await call.context.tables.endpoint_configs.delete(config_key)
        raise Conflict(f"endpoint {name!r} exists already", remedy="choose another name") from error
    await visible(call.context.copies.endpoints, record_key, revision)
    try:
        # Another gateway may have passed the same checks at the same moment. Whoever sees the other withdraws; both
        # may, never neither.
        await _check_names_free(call, name, served_name, except_for=revision)
        stored = await _stored_variants(call, config_key)
        await _check_models(call, stored)
        require_quota(call, name, stored)
    except (Conflict, ModelNotFound, InvalidInput, QuotaExceeded, UnsupportedArtifact):
        await table.delete(record_key, revision)
        await call.context.tables.endpoint_configs.delete(config_key)
        raise
    await _remove_older_configs(call, name, number)
    return endpoint


async def _stored_variants(call: Call, config_key: str) -> tuple[Variant, ...]:
    entry = await call.context.tables.endpoint_configs.get(config_key)
    return () if entry is None else entry.value.variants


async def _remove_older_configs(call: Call, name: str, number: int) -> None:
    configs = call.context.tables.endpoint_configs
    for old in _config_numbers(name, await configs.list(key(call.tenant, f"{name}-"))):
        if old < number:
            await configs.delete(key(call.tenant, f"{name}-{old}"))


def _config_numbers(name: str, configs: dict[str, Entry[EndpointConfig]]) -> list[int]:
    # The prefix also lists configs of an endpoint `name-…`: only a bare number after the last hyphen is ours.
    matches = (re.fullmatch(re.escape(name) + r"-(\d+)", entry.value.name) for entry in configs.values())
    return [int(match.group(1)) for match in matches if match is not None]
