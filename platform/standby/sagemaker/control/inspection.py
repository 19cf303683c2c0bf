"""The look at the artifact of one model of AWS's clients; what comes of it is a model of ours, or a reason."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from standby.artifacts.credentials import Credentials
from standby.artifacts.data_source import SourceHint, from_s3_data_source
from standby.artifacts.inspection import ServedElsewhere
from standby.artifacts.stored_keys import unseal_keys
from standby.domain.aws import AwsResource
from standby.domain.engine_choice import check_options, choose_engine
from standby.domain.errors import EmptySource, InvalidInput, SourceUnreachable, UnsupportedArtifact
from standby.domain.model import EngineKind, Manifest, Model, SourceOptions
from standby.domain.names import check_name, key
from standby.host.sealing import SealingKey
from standby.sagemaker.control.environment import Wanted, engine_options, read_environment, with_properties
from standby.sagemaker.control.images import container_of
from standby.sagemaker.control.records import Records


class Inspect(Protocol):
    """The shape of standby.artifacts.inspection.inspect."""

    def __call__(
        self, uri: str, options: SourceOptions, *, credentials: Credentials | None = None, hint: SourceHint | None = None
    ) -> Awaitable[Manifest]:
        """Return the manifest of what lies at ``uri`` now."""


class Place(NamedTuple):
    """Where the bytes lie."""

    uri: str
    hint: SourceHint | None
    options: SourceOptions


@dataclass(frozen=True, slots=True)
class Inspector:
    """Looks at artifacts with the platform's rights, or with keys that the tenant has stored and named."""

    records: Records
    inspect: Inspect
    sealing: SealingKey | None = None

    async def look(self, resource: AwsResource) -> tuple[Model, tuple[str, ...]]:
        """Return the model that can be served, and what was noticed. Raises the artifact's errors, InvalidInput."""
        container = container_of(resource.request)
        environment, image = dict(container.get("Environment") or {}), str(container.get("Image") or "")
        wanted = read_environment(environment, image)
        place = place_of(container, wanted)
        if place is None:
            raise _nowhere(wanted)
        try:
            manifest = await self._manifest(resource.tenant, place)
            properties = manifest.properties
        except ServedElsewhere as error:
            properties = error.properties
            elsewhere = _elsewhere(read_environment(with_properties(environment, properties), image), place)
            if elsewhere is None:
                raise
            manifest = await self._manifest(resource.tenant, elsewhere)
        if properties:
            wanted = read_environment(with_properties(environment, properties), image)
        engine, notes = _engine(wanted, manifest)
        options, more = engine_options(wanted, engine)
        check_options(engine, wanted.options, (entry.value for entry in self.records.copies.nodes.entries.values()))
        model = Model(
            tenant=resource.tenant,
            name=resource.name,
            manifest=manifest,
            engine=engine,
            engine_options=options,
            created_at=resource.created_at,
        )
        return model, (*wanted.notes, *notes, *more, *manifest.notes)

    async def _manifest(self, tenant: str, place: Place) -> Manifest:
        keys = await self._keys(tenant, place.options.credentials)
        return await self.inspect(place.uri, place.options, credentials=keys, hint=place.hint)

    async def _keys(self, tenant: str, name: str | None) -> Credentials | None:
        if name is None:
            return None
        entry = await self.records.tables.credentials.get(key(tenant, name))
        if entry is None:
            raise SourceUnreachable(
                f"there are no stored credentials {name!r}", remedy=f"store them: `standby credentials create {name}`"
            )
        return unseal_keys(entry.value, tenant, name, self.sealing)


def place_of(container: Mapping[str, Any], wanted: Wanted) -> Place | None:
    """Return where the container's model lies; None where it names nothing. Raises InvalidInput."""
    options = SourceOptions()
    if wanted.credentials is not None:
        options = SourceOptions(credentials=check_name("credential", wanted.credentials))
    if container.get("ModelDataUrl") is not None or container.get("ModelDataSource") is not None:
        uri, hint = from_s3_data_source(container)
        return Place(uri, hint, options)
    if wanted.source_uri is not None:
        return Place(wanted.source_uri, None, options)
    return None


def _engine(wanted: Wanted, manifest: Manifest) -> tuple[EngineKind, tuple[str, ...]]:
    hint = wanted.hint
    if wanted.engine is None and hint is not None and hint not in manifest.refusals:
        return hint, ()
    engine = choose_engine(wanted.engine, manifest)
    if engine in manifest.refusals:
        reasons = "; ".join(f"{kind.value}: {reason}" for kind, reason in manifest.refusals.items())
        raise UnsupportedArtifact(f"no engine can serve {manifest.source_uri}: {reasons}", remedy="upload it in another form")
    if wanted.engine is None and hint is not None:
        return engine, (f"{hint.value} cannot serve it, {engine.value} does: {manifest.refusals[hint]}",)
    return engine, ()


def _nowhere(wanted: Wanted) -> EmptySource:
    remedy = "give ModelDataUrl, ModelDataSource, or HF_MODEL_ID=s3://bucket/prefix/"
    return EmptySource("the model names no artifact", remedy="; ".join((*wanted.notes, remedy)))


def _elsewhere(wanted: Wanted, place: Place) -> Place | None:
    """Return where the settings beside an artifact say that the model lies; None where they do not."""
    return None if wanted.source_uri is None else Place(wanted.source_uri, None, place.options)


def check_container(container: Mapping[str, Any]) -> Wanted:
    """Return what the container asks for, after everything that can be told without a look at its bytes was checked.

    Raises InvalidInput.
    """
    wanted = read_environment(container.get("Environment") or {}, str(container.get("Image") or ""))
    place_of(container, wanted)
    if container.get("Mode") == "MultiModel":
        raise InvalidInput("Mode MultiModel is not there", remedy="make one model, and one endpoint, of each artifact")
    for field in ("ModelPackageName", "AdditionalModelDataSources", "InferenceSpecificationName"):
        if container.get(field):
            raise InvalidInput(f"{field} is not there", remedy="name the artifact: ModelDataUrl or ModelDataSource")
    return wanted
