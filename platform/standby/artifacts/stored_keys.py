"""A tenant's keys for a store as they are kept: sealed, bound to tenant, name and sealing key. Pure."""

from __future__ import annotations

import json
from typing import Final

from standby.artifacts.credentials import Credentials
from standby.domain.access import StoredCredential
from standby.domain.errors import SourceUnreachable
from standby.host.sealing import SealingKey, Unsealable

_AGAIN: Final = "store them again: `standby credentials create NAME --replace`"


def seal_keys(keys: Credentials, tenant: str, name: str, sealing: SealingKey, now: float) -> StoredCredential:
    """Return the record that holds ``keys``; ``now`` in seconds since the epoch."""
    content = json.dumps([keys.access_key, keys.secret_key, keys.session_token]).encode()
    return StoredCredential(
        tenant=tenant,
        name=name,
        sealed=sealing.seal(content, _bound_to(tenant, name, sealing.version)),
        key_version=sealing.version,
        created_at=now,
    )


def unseal_keys(record: StoredCredential, tenant: str, name: str, sealing: SealingKey | None) -> Credentials:
    """Return the keys that ``tenant`` has stored as ``name``. Raises SourceUnreachable when they cannot be opened here.

    Tenant and name are the caller's, not the record's: a record that was copied to another name does not open.
    """
    what = f"the stored credentials {name!r}"
    if sealing is None:
        raise SourceUnreachable(
            f"{what} cannot be opened: this process has no STANDBY_SECRETS_KEY",
            remedy="set it to the same value on every gateway and node",
        )
    opener = sealing.of_version(record.key_version)
    if opener is None:
        raise SourceUnreachable(
            f"{what} were sealed with key {record.key_version}, and this process has key {sealing.version}",
            remedy=f"set STANDBY_SECRETS_KEY to the same value on every gateway and node, or {_AGAIN}",
        )
    try:
        access_key, secret_key, session_token = json.loads(
            opener.unseal(record.sealed, _bound_to(tenant, name, record.key_version))
        )
    except (Unsealable, ValueError):
        raise SourceUnreachable(f"{what} cannot be opened: what is stored was changed or moved", remedy=_AGAIN) from None
    return Credentials(access_key, secret_key, session_token)


def not_stored(name: str) -> SourceUnreachable:
    """Return the error for a model whose credentials are not there any more."""
    return SourceUnreachable(
        f"the stored credentials {name!r} do not exist any more",
        remedy=f"store them again: `standby credentials create {name}`",
    )


def _bound_to(tenant: str, name: str, version: str) -> str:
    return f"{tenant}/{name}/{version}"
