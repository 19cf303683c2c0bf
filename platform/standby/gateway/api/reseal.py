"""After a rotation of the sealing key: everything that is stored sealed is sealed again with the current one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from standby.artifacts.stored_keys import seal_keys, unseal_keys
from standby.bus.tables import R, Table
from standby.domain.access import AccessKey, StoredCredential
from standby.domain.errors import RevisionConflict, SourceUnreachable
from standby.gateway.api.context import ApiRoute, Call
from standby.gateway.api.responses import json_response
from standby.host.sealing import SealingKey
from standby.sagemaker.auth import access_keys

_CAS_ATTEMPTS: Final = 8


async def reseal(call: Call) -> Response:
    """Seal all access keys and store credentials with the current key: how many were, and which cannot be opened here."""
    sealing, tables = call.context.sealing_for("access keys"), call.context.tables

    def access_key(record: AccessKey) -> AccessKey | None:
        return access_keys.reseal(record, sealing)

    def credential(record: StoredCredential) -> StoredCredential | None:
        return _credential(record, sealing)

    done: list[str] = []
    lost: list[str] = []
    for kind, outcome in (
        ("access-key", await _all(tables.access_keys, sealing, access_key)),
        ("credential", await _all(tables.credentials, sealing, credential)),
    ):
        done += [f"{kind} {name}" for name in outcome[0]]
        lost += [f"{kind} {name}" for name in outcome[1]]
    call.about(f"{len(done)} sealed again, {len(lost)} not")
    return json_response({"key_version": sealing.version, "resealed": len(done), "not_opened": sorted(lost)})


async def _all(table: Table[R], sealing: SealingKey, again: Callable[[R], R | None]) -> tuple[list[str], list[str]]:
    """Return which records were sealed again and which could not be opened; those of the current key are left alone."""
    done: list[str] = []
    lost: list[str] = []
    for name in await table.list():
        for _ in range(_CAS_ATTEMPTS):
            entry = await table.get(name)
            if entry is None or getattr(entry.value, "key_version", "") == sealing.version:
                break
            record = again(entry.value)
            if record is None:
                lost.append(name)
                break
            try:
                await table.update(name, record, entry.revision)
            except RevisionConflict:
                continue
            done.append(name)
            break
    return done, lost


def _credential(record: StoredCredential, sealing: SealingKey) -> StoredCredential | None:
    try:
        keys = unseal_keys(record, record.tenant, record.name, sealing)
    except SourceUnreachable:
        return None
    return seal_keys(keys, record.tenant, record.name, sealing, record.created_at)


ROUTES: Final = (ApiRoute("POST", "/api/v1/access-keys/reseal", reseal, admin=True, audit="access-keys.reseal"),)
