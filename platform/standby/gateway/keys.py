"""Bearer keys: ``sk-standby-<key id>-<secret>``; only an HMAC of the whole key is ever stored."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol, TypeVar

from standby.domain.access import ALL_SCOPES, ApiKey, Role, Scope, Tenant
from standby.domain.errors import Forbidden, InvalidInput, NotAuthenticated, Unavailable
from standby.domain.names import check_tenant
from standby.domain.priority import Priority
from standby.wire.headers import TENANT

R_co = TypeVar("R_co", covariant=True)

# Recognisable, so that secret scanners and people see what they are looking at.
PREFIX: Final = "sk-standby-"
TENANT_HEADER: Final = TENANT.decode()
MAX_KEY_LENGTH: Final = 256
MAX_KEY_NAME: Final = 64

_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32
_BEARER: Final = b"bearer "
_MOST_PROOFS: Final = 4096


class _Entry(Protocol[R_co]):
    @property
    def value(self) -> R_co: ...


class _Copy(Protocol[R_co]):
    @property
    def entries(self) -> Mapping[str, _Entry[R_co]]: ...


class Proofs:
    """Which ``Authorization`` headers have been found to hold a key, so that its HMAC is not computed for each request.

    A proof says that this very header is the key of this id whose digest is this one, and nothing else: whether there is
    such a key now, with that digest, not expired, not revoked and no disabled tenant's, is asked of the ring each time. No
    secret is kept: a header is known by its BLAKE2b under a key that only this process has, which is as hard to invert or to
    hit as the HMAC itself. Only what proved right is kept, so that strangers fill nothing; beyond 4096 it begins anew.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._proved: dict[bytes, tuple[str, str]] = {}

    def find(self, authorization_header: bytes) -> tuple[bytes, tuple[str, str] | None]:
        """Return what a header is known by, and the id and the digest of the key in it where it was proved."""
        mark = hashlib.blake2b(authorization_header, digest_size=32, key=self._key).digest()
        return mark, self._proved.get(mark)

    def add(self, mark: bytes, identity: str, digest: str) -> None:
        """Keep a proof."""
        if len(self._proved) >= _MOST_PROOFS:
            self._proved.clear()
        self._proved[mark] = (identity, digest)


class KeyRing(Mapping[str, ApiKey]):
    """The keys by id that are neither expired nor a disabled tenant's, read through watched copies of the tables.

    A revocation counts as soon as the copy has it. ``staleness`` is the copies' age in seconds: beyond ``trust_s`` a
    look-up raises Unavailable, since a gateway that is cut off does not hear of revocations (field case B44).
    """

    def __init__(
        self,
        copy: _Copy[ApiKey],
        tenants: _Copy[Tenant] | None = None,
        *,
        now: Callable[[], float] = time.time,
        staleness: Callable[[], float] = lambda: 0.0,
        trust_s: float = math.inf,
    ) -> None:
        self._copy = copy
        self._tenants = tenants
        self._now = now
        self._staleness = staleness
        self._trust_s = trust_s

    def __getitem__(self, identity: str) -> ApiKey:
        if self._staleness() > self._trust_s:
            raise Unavailable(
                f"this gateway cannot check keys: it has not heard from the control plane for more than {self._trust_s:g} s",
                remedy="try again, or another gateway",
                retry_after_s=1.0,
            )
        found = self._copy.entries[identity].value
        if found.expires_at is not None and found.expires_at <= self._now():
            raise KeyError(identity)
        account = None if self._tenants is None else self._tenants.entries.get(found.tenant)
        if account is not None and account.value.disabled_at is not None:
            raise KeyError(identity)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._copy.entries)

    def __len__(self) -> int:
        return len(self._copy.entries)


def generate() -> str:
    """Return a new key: a 64-bit id and a 256-bit secret, both in hex."""
    return f"{PREFIX}{secrets.token_hex(_ID_BYTES)}-{secrets.token_hex(_SECRET_BYTES)}"


def key_id(secret: str) -> str:
    """Return the id inside a full key. Raises InvalidInput where it has not the form of one."""
    identity, _, rest = secret.removeprefix(PREFIX).partition("-")
    if not secret.startswith(PREFIX) or not identity.isalnum() or not rest or len(secret) > MAX_KEY_LENGTH:
        raise InvalidInput(
            f"this is no standby key: it has not the form {PREFIX}<id>-<secret> of at most {MAX_KEY_LENGTH} characters",
            remedy="make one with `standby keys create`",
        )
    return identity


def digest(secret: str, pepper: bytes) -> str:
    """Return HMAC-SHA256 of the full key with the deployment's pepper, in hex.

    A plain HMAC is enough: 256 random bits cannot be guessed, so a slow hash would only cost the data path.
    """
    return hmac.digest(pepper, secret.encode(), hashlib.sha256).hex()


def record(
    secret: str,
    *,
    tenant: str,
    name: str,
    role: Role,
    pepper: bytes,
    now: float,
    scopes: tuple[Scope, ...] = ALL_SCOPES,
    expires_at: float | None = None,
    priority: Priority | None = None,
) -> ApiKey:
    """Return what is stored of a full key. Raises InvalidInput for a wrong key, tenant or name."""
    if not name or len(name) > MAX_KEY_NAME or not name.isprintable():
        raise InvalidInput(
            f"key name {name[:MAX_KEY_NAME]!r} is not legal: 1 to {MAX_KEY_NAME} printable characters",
            remedy="choose a name that says who uses the key",
        )
    return ApiKey(
        id=key_id(secret),
        tenant=check_tenant(tenant),
        name=name,
        role=role,
        digest=digest(secret, pepper),
        created_at=now,
        expires_at=expires_at,
        scopes=scopes,
        priority=priority,
    )


def issue(
    *,
    tenant: str,
    name: str,
    pepper: bytes,
    now: float,
    role: Role = Role.TENANT,
    scopes: tuple[Scope, ...] = ALL_SCOPES,
    expires_at: float | None = None,
    priority: Priority | None = None,
) -> tuple[ApiKey, str]:
    """Return a new key's record and the key itself, which is shown once and never stored.

    Raises InvalidInput for a wrong tenant or name.
    """
    secret = generate()
    made = record(
        secret,
        tenant=tenant,
        name=name,
        role=role,
        pepper=pepper,
        now=now,
        scopes=scopes,
        expires_at=expires_at,
        priority=priority,
    )
    return made, secret


def authenticate(
    authorization_header: bytes | None,
    keys: Mapping[str, ApiKey],
    pepper: bytes,
    scope: Scope | None = None,
    proofs: Proofs | None = None,
) -> ApiKey:
    """Return the key that ``Authorization: Bearer …`` names; ``keys`` by key id. ``proofs`` are of this ``pepper``.

    Raises NotAuthenticated, with the same words whether the header is missing or malformed, or the key unknown, wrong,
    expired or revoked; Forbidden where the key is not for ``scope``.
    """
    if authorization_header is None or len(authorization_header) > MAX_KEY_LENGTH:
        raise _refusal()
    mark, proof = (b"", None) if proofs is None else proofs.find(authorization_header)
    identity, shown = _shown(authorization_header, pepper) if proof is None else proof
    try:
        found = keys[identity]
    except KeyError:
        raise _refusal() from None
    if found.revoked_at is not None or not hmac.compare_digest(shown, found.digest):
        raise _refusal()
    if proof is None and proofs is not None:
        proofs.add(mark, identity, shown)
    if scope is not None and scope not in found.scopes:
        raise Forbidden(f"this key is not for {scope.value}", remedy=f"use a key with the scope {scope.value}")
    return found


def _shown(authorization_header: bytes, pepper: bytes) -> tuple[str, str]:
    """Return the id and the digest of the key that a header shows. Raises NotAuthenticated."""
    if authorization_header[:7].lower() != _BEARER:
        raise _refusal()
    secret = authorization_header[7:].strip()
    try:
        identity, _, _rest = secret.decode("ascii").removeprefix(PREFIX).partition("-")
    except UnicodeDecodeError:
        raise _refusal() from None
    return identity, hmac.digest(pepper, secret, hashlib.sha256).hex()


def acting_tenant(key: ApiKey, named: str | None) -> str:
    """Return the tenant for which a key acts: its own, or for an administrator the one named in ``x-standby-tenant``.

    Raises Forbidden where a tenant names another one, InvalidInput where the name is no account id.
    """
    if named is None or named == key.tenant:
        return key.tenant
    if key.role is not Role.ADMIN:
        raise Forbidden(f"this key may not act for another tenant by {TENANT_HEADER}", remedy="leave the header out")
    return check_tenant(named)


def _refusal() -> NotAuthenticated:
    return NotAuthenticated(
        "the API key is missing or not valid",
        remedy="send 'Authorization: Bearer sk-standby-…' with a key that is not revoked",
    )
