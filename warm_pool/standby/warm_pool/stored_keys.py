"""Sources that are read with a tenant's stored keys: looked up when bytes are to be fetched, kept by nobody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from standby.artifacts.credentials import Credentials
from standby.artifacts.fetch import Opener
from standby.artifacts.sources import Source, open_source
from standby.artifacts.stored_keys import not_stored, unseal_keys
from standby.bus.tables import Table
from standby.domain.access import StoredCredential
from standby.domain.model import Manifest
from standby.domain.names import key
from standby.host.sealing import SealingKey

OpenerFor = Callable[[str, Manifest], Awaitable[Opener | None]]
"""``await opener_for(tenant, manifest)`` returns how the tenant's source is opened; None: as this process finds keys."""


class StoredKeys:
    """Opens stored keys with the node's own sealing key."""

    def __init__(self, table: Table[StoredCredential], sealing: SealingKey | None) -> None:
        self._table = table
        self._sealing = sealing

    async def opener_for(self, tenant: str, manifest: Manifest) -> Opener | None:
        """Return how the tenant's source is opened; None where the model names no stored keys.

        Raises SourceUnreachable where they are gone or cannot be opened here, BusUnavailable.
        """
        keys = await self.keys_for(tenant, manifest)
        if keys is None:
            return None

        def opened(wanted: Manifest) -> Source:
            return open_source(wanted.source_uri, wanted.source, credentials=keys)

        return opened

    async def keys_for(self, tenant: str, manifest: Manifest) -> Credentials | None:
        """Return the tenant's keys that the model names; None where it names none. Raises as ``opener_for``."""
        name = manifest.source.credentials
        if name is None:
            return None
        entry = await self._table.get(key(tenant, name))
        if entry is None:
            raise not_stored(name)
        return unseal_keys(entry.value, tenant, name, self._sealing)


async def as_found(_tenant: str, _manifest: Manifest) -> Opener | None:
    """Return None: every source is read with the keys that this process finds."""
    return None
