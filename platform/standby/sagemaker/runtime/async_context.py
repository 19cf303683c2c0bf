"""What asynchronous invocations need of the gateway that takes and carries them out."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from standby.artifacts.credentials import Credentials
from standby.artifacts.store_object import ObjectPlace, open_object
from standby.artifacts.stored_keys import not_stored, unseal_keys
from standby.bus.copies import Copy
from standby.bus.lanes import Lanes
from standby.bus.tables_set import Tables
from standby.domain.endpoint import Endpoint, EndpointConfig
from standby.domain.events import AnyEvent
from standby.domain.model import Model, SourceOptions
from standby.domain.names import key
from standby.host.sealing import SealingKey


class Served(NamedTuple):
    """An endpoint as it is now; ``options`` say how the store of its results is reached, and with whose keys."""

    endpoint: Endpoint
    config: EndpointConfig
    options: SourceOptions


@dataclass(frozen=True, slots=True)
class AsyncContext:
    """``now`` gives seconds since the epoch; ``body_bytes`` bounds an input and an answer.

    ``locations`` are where the platform's own keys may be used, ``{tenant}`` standing for the caller's account; with
    ``open_sources`` inputs may be fetched from any https address.
    """

    lanes: Lanes
    tables: Tables
    endpoints: Copy[Endpoint]
    configs: Copy[EndpointConfig]
    models: Copy[Model]
    publish: Callable[[AnyEvent], Awaitable[None]]
    source: str
    sealing: SealingKey | None = None
    region: str = "us-east-1"
    body_bytes: int = 16 * 1024 * 1024
    open_sources: bool = False
    locations: tuple[str, ...] = ()
    now: Callable[[], float] = time.time

    def served(self, tenant: str, name: str) -> Served | None:
        """Return the endpoint with its config, None where this process knows of none."""
        endpoint = self.endpoints.entries.get(key(tenant, name))
        if endpoint is None:
            return None
        config = self.configs.entries.get(key(tenant, endpoint.value.config))
        if config is None:
            return None
        return Served(endpoint.value, config.value, self._options(tenant, config.value))

    def all_served(self) -> Iterator[tuple[Endpoint, EndpointConfig]]:
        """Yield every tenant's endpoints with their configs."""
        for entry in list(self.endpoints.entries.values()):
            config = self.configs.entries.get(key(entry.value.tenant, entry.value.config))
            if config is not None:
                yield entry.value, config.value

    async def open(self, tenant: str, options: SourceOptions, uri: str) -> ObjectPlace:
        """Return an object's place, opened with the tenant's own keys where ``options`` name some.

        Raises InvalidInput, SourceUnreachable, BusUnavailable.
        """
        keys: Credentials | None = None
        if options.credentials is not None:
            entry = await self.tables.credentials.get(key(tenant, options.credentials))
            if entry is None:
                raise not_stored(options.credentials)
            keys = unseal_keys(entry.value, tenant, options.credentials, self.sealing)
        return open_object(uri, options, credentials=keys)

    def _options(self, tenant: str, config: EndpointConfig) -> SourceOptions:
        """The store of the first variant's model: its address, and the keys that the tenant has named for it."""
        model = self.models.entries.get(key(tenant, config.variants[0].model)) if config.variants else None
        if model is None or not model.value.manifest.source_uri.startswith("s3://"):
            return SourceOptions()
        # A public bucket's model says nothing of where results may be written.
        return model.value.manifest.source.model_copy(update={"anonymous": False})
