"""Where a registration says that bytes lie, with which rights they may be read, and what is found there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from standby.artifacts.credentials import Credentials
from standby.artifacts.data_source import SourceHint, from_s3_data_source
from standby.artifacts.stored_keys import unseal_keys
from standby.domain.errors import Forbidden, InvalidInput, NotFound
from standby.domain.model import Manifest, SourceOptions
from standby.domain.names import check_name, key
from standby.domain.values import Value
from standby.gateway.api.context import Call, missing


class SourceBody(Value):
    """One place: ``source_uri``, or as SageMaker says it, ``ModelDataUrl`` or ``ModelDataSource``."""

    source_uri: str | None = None
    model_data_url: str | None = Field(default=None, alias="ModelDataUrl")
    model_data_source: Mapping[str, Any] | None = Field(default=None, alias="ModelDataSource")
    source: SourceOptions | None = None

    @model_validator(mode="after")
    def _one_place(self) -> SourceBody:
        given = [item for item in (self.source_uri, self.model_data_url, self.model_data_source) if item is not None]
        if len(given) != 1:
            msg = f"give exactly one of source_uri, ModelDataUrl and ModelDataSource ({len(given)} given)"
            raise ValueError(msg)
        return self


@dataclass(frozen=True, slots=True)
class Place:
    """A place in our own words."""

    uri: str
    options: SourceOptions
    hint: SourceHint | None = None


def place_of(body: SourceBody, default: SourceOptions) -> Place:
    """Return the place that ``body`` names; ``default`` is how it is reached where it does not say. Raises InvalidInput."""
    options = default if body.source is None else body.source
    if body.source_uri is not None:
        return Place(body.source_uri, options)
    data = {"ModelDataUrl": body.model_data_url, "ModelDataSource": body.model_data_source}
    uri, hint = from_s3_data_source(data)
    return Place(uri, options, hint)


def check_place(call: Call, place: Place) -> None:
    """Refuse places by which a tenant would read with the platform's rights. Raises Forbidden, InvalidInput.

    ``file://`` reads the nodes' own disks, and another store's address is called from inside. A tenant's own keys change
    nothing about the latter: it is the address that is reached from here, not what it answers.
    """
    options = place.options
    if options.credentials is not None:
        check_name("credential", options.credentials)
        if options.anonymous or not place.uri.startswith("s3://"):
            raise InvalidInput(
                f"source.credentials {options.credentials!r} have no use for "
                f"{'an anonymous source' if options.anonymous else place.uri[:80]!r}",
                remedy="leave them out, or name an s3:// source that is not anonymous",
            )
    if call.is_admin or call.context.open_sources:
        return
    if not place.uri.startswith("s3://"):
        raise Forbidden(f"source {place.uri[:80]!r} needs an administrator's key", remedy="upload the model to S3")
    if options.endpoint_url is not None:
        raise Forbidden(
            f"source.endpoint_url {options.endpoint_url[:80]!r} needs an administrator's key",
            remedy="leave it out: the platform's own store is used",
        )


async def inspect_place(call: Call, place: Place) -> Manifest:
    """Return the manifest of what lies at ``place``. Raises NotFound for credentials, and the inspection's errors."""
    keys = await _stored_keys(call, place.options.credentials)
    return await call.context.inspect(place.uri, place.options, credentials=keys, hint=place.hint)


async def require_stored(call: Call, name: str | None) -> None:
    """Raise NotFound where the tenant has stored no credentials of that name."""
    if name is not None and await call.context.tables.credentials.get(key(call.tenant, name)) is None:
        raise missing(NotFound, "credential", name)


async def _stored_keys(call: Call, name: str | None) -> Credentials | None:
    if name is None:
        return None
    entry = await call.context.tables.credentials.get(key(call.tenant, name))
    if entry is None:
        raise missing(NotFound, "credential", name)
    return unseal_keys(entry.value, call.tenant, name, call.context.sealing)
