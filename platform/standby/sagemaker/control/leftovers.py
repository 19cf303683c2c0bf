"""Records that nobody refers to any more: endpoints' own copies of configs and models, and what was said of gone endpoints."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

from standby.bus.tables import Entry, R, Table
from standby.domain.aws import AwsKind, AwsResource
from standby.domain.endpoint import EndpointConfig
from standby.domain.errors import BusUnavailable, RevisionConflict, Unavailable
from standby.domain.model import Model
from standby.domain.names import HIDDEN, key
from standby.sagemaker.control.owned import has_owner, is_of, owner_of
from standby.sagemaker.control.records import Records

log = logging.getLogger(__name__)

# A record is written before what refers to it: only what was unreferred to in so many sweeps is left over.
SWEEPS: Final = 3
MOST_AT_ONCE: Final = 200

_Mark = tuple[str, str, int]


class Leftovers:
    """Remembers from sweep to sweep what looked left over; absence in a copy alone is never evidence."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._seen: dict[_Mark, int] = {}

    async def sweep(self) -> int:
        """Remove what has been left over for several sweeps; return how many. Raises BusUnavailable."""
        tables, seen = self._records.tables, dict[_Mark, int]()
        removed = await self._each(tables.endpoint_configs, self._configs(), self._config_is_left_over, seen)
        removed += await self._each(tables.models, self._models(), self._model_is_left_over, seen)
        removed += await self._each(tables.aws, self._resources(), self._resource_is_left_over, seen)
        self._seen = seen
        return removed

    async def _each(
        self,
        table: Table[R],
        entries: Iterable[Entry[R]],
        left_over: Callable[[Entry[R]], Awaitable[bool]],
        seen: dict[_Mark, int],
    ) -> int:
        removed = 0
        for entry in list(entries):
            mark = (table.bucket, entry.key, entry.revision)
            seen[mark] = self._seen.get(mark, 0) + 1
            if seen[mark] >= SWEEPS and removed < MOST_AT_ONCE and await _certain(left_over, entry):
                removed += await _remove(table, entry)
        return removed

    # ---- what looks left over in this process's own copies -----------------------------------------------------

    def _configs(self) -> Iterator[Entry[EndpointConfig]]:
        copies = self._records.copies
        for entry in copies.endpoint_configs.entries.values():
            if HIDDEN not in entry.key:
                continue
            owner = copies.endpoints.entries.get(entry.key.partition(HIDDEN)[0])
            if owner is None or entry.value.name not in (owner.value.config, owner.value.pending_config):
                yield entry

    def _models(self) -> Iterator[Entry[Model]]:
        copies = self._records.copies
        kept = [entry for entry in copies.models.entries.values() if HIDDEN in entry.key]
        if not kept:
            return
        used = self._used()
        yield from (entry for entry in kept if entry.key not in used)

    def _used(self) -> set[str]:
        """Return the keys of the hidden models that a config names."""
        return {
            key(entry.value.tenant, variant.model)
            for entry in self._records.copies.endpoint_configs.entries.values()
            for variant in entry.value.variants
            if HIDDEN in variant.model
        }

    def _resources(self) -> Iterator[Entry[AwsResource]]:
        copies = self._records.copies
        used: set[str] | None = None
        for entry in copies.aws.entries.values():
            said = entry.value
            where = key(said.tenant, said.name)
            if owner_of(said) is not None:
                if not has_owner(self._records, said):
                    yield entry
            elif said.kind is AwsKind.MODEL and HIDDEN in said.name and where not in copies.models.entries:
                # One that is still looked at, or could not be served, has no model of ours but a component that waits for it.
                used = self._used() if used is None else used
                if where not in used:
                    yield entry

    # ---- the owner's own record is asked for before anything is removed ----------------------------------------

    async def _config_is_left_over(self, entry: Entry[EndpointConfig]) -> bool:
        owner = await self._records.tables.endpoints.get(entry.key.partition(HIDDEN)[0])
        return owner is None or entry.value.name not in (owner.value.config, owner.value.pending_config)

    async def _model_is_left_over(self, entry: Entry[Model]) -> bool:
        return not await self._is_named(entry.value.tenant, entry.value.name)

    async def _is_named(self, tenant: str, model: str) -> bool:
        configs = await self._records.tables.endpoint_configs.snapshot(f"{tenant}.")
        named = (variant.model == model for one in configs.entries.values() for variant in one.value.variants)
        return bool(configs.unreadable) or any(named)

    async def _resource_is_left_over(self, entry: Entry[AwsResource]) -> bool:
        said, tables = entry.value, self._records.tables
        owner = owner_of(said)
        if owner is None:
            known = await tables.models.get(key(said.tenant, said.name))
            return known is None and not await self._is_named(said.tenant, said.name)
        found = await tables.endpoints.get(key(said.tenant, owner.endpoint))
        return not is_of(said, None if found is None else found.value)


async def _certain(left_over: Callable[[Entry[R]], Awaitable[bool]], entry: Entry[R]) -> bool:
    """Say whether nothing refers to it; what this version cannot read may."""
    try:
        return await left_over(entry)
    except BusUnavailable:
        raise
    except Unavailable as unreadable:
        log.warning("%s stays: %s", entry.key, unreadable)
        return False


async def _remove(table: Table[R], entry: Entry[R]) -> int:
    try:
        await table.delete(entry.key, entry.revision)
    except RevisionConflict:
        return 0
    log.info("removed %s/%s, to which nothing refers any more", table.bucket, entry.key)
    return 1
