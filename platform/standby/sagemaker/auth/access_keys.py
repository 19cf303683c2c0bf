"""Pairs of keys for AWS's clients: made, sealed, opened. Pure but for the random numbers."""

from __future__ import annotations

import base64
import json
import re
import secrets
from typing import Final, NamedTuple

from standby.domain.access import ALL_SCOPES, AccessKey, Scope
from standby.domain.errors import InvalidInput
from standby.domain.names import check_tenant
from standby.domain.priority import Priority
from standby.host.sealing import SealingKey, Unsealable

STANDING: Final = "SBKA"
SESSION: Final = "SBIA"
# Sixteen characters of base32 are 80 bits: two keys never meet, and an id is no secret.
_ID: Final = re.compile(rf"({STANDING}|{SESSION})[A-Z2-7]{{16}}")
# IAM's rule for names of users, since the name stands in the caller's ARN.
_NAME: Final = re.compile(r"[A-Za-z0-9_+=,.@-]{1,64}")
_ID_BYTES: Final = 10
_SECRET_BYTES: Final = 30
_TOKEN_BYTES: Final = 48


class Pair(NamedTuple):
    """What the client gets, once; ``token`` None for standing keys."""

    secret: str
    token: str | None


class Opened(NamedTuple):
    """The same as bytes, as signatures are checked with it."""

    secret: bytes
    token: bytes | None


def is_key_id(text: str) -> bool:
    """Return whether ``text`` can be the id of an access key."""
    return _ID.fullmatch(text) is not None


def issue(
    *,
    tenant: str,
    name: str,
    sealing: SealingKey,
    now: float,
    session: bool = False,
    scopes: tuple[Scope, ...] = ALL_SCOPES,
    expires_at: float | None = None,
    priority: Priority | None = None,
) -> tuple[AccessKey, Pair]:
    """Return a new key's record and the pair itself, which is shown once. Raises InvalidInput for a wrong tenant or name."""
    if _NAME.fullmatch(name) is None:
        raise InvalidInput(
            f"key name {name[:64]!r} is not legal: 1 to 64 letters, digits and _+=,.@-",
            remedy="choose a name that says who uses the key, e.g. 'ci'",
        )
    identity = (SESSION if session else STANDING) + base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode()
    pair = Pair(secrets.token_urlsafe(_SECRET_BYTES), secrets.token_urlsafe(_TOKEN_BYTES) if session else None)
    record = AccessKey(
        id=identity,
        tenant=check_tenant(tenant),
        name=name,
        sealed=_sealed(pair, tenant, identity, sealing),
        key_version=sealing.version,
        scopes=scopes,
        created_at=now,
        expires_at=expires_at,
        priority=priority,
    )
    return record, pair


def unseal(record: AccessKey, identity: str, sealing: SealingKey) -> Opened | None:
    """Return the pair, or None where it cannot be opened: sealed with a key that is not here, changed, or moved.

    ``identity`` is the id under which the record was found, not the one that it states.
    """
    opener = sealing.of_version(record.key_version)
    if opener is None:
        return None
    try:
        secret, token = json.loads(opener.unseal(record.sealed, _bound_to(record.tenant, identity, record.key_version)))
    except (Unsealable, ValueError):
        return None
    return Opened(secret.encode(), None if token is None else token.encode())


def reseal(record: AccessKey, sealing: SealingKey) -> AccessKey | None:
    """Return the record sealed with the current key, or None where it cannot be opened."""
    opened = unseal(record, record.id, sealing)
    if opened is None:
        return None
    pair = Pair(opened.secret.decode(), None if opened.token is None else opened.token.decode())
    sealed = _sealed(pair, record.tenant, record.id, sealing)
    return record.model_copy(update={"sealed": sealed, "key_version": sealing.version})


def _sealed(pair: Pair, tenant: str, identity: str, sealing: SealingKey) -> str:
    return sealing.seal(json.dumps([pair.secret, pair.token]).encode(), _bound_to(tenant, identity, sealing.version))


def _bound_to(tenant: str, identity: str, version: str) -> str:
    # The first word keeps a record of another table from being taken for an access key.
    return f"access-key/{tenant}/{identity}/{version}"
