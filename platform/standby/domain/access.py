"""Tenants, their bearer keys and keys for stores, and the controllers' lease."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Final

from pydantic import Field

from standby.domain.priority import Priority
from standby.domain.values import Record, Value


class Role(StrEnum):
    """What a key may do: a tenant sees its own names, an administrator makes keys and sees nodes."""

    ADMIN = "admin"
    TENANT = "tenant"


class Scope(StrEnum):
    """What a key may be used for."""

    CONTROL = "control"
    INVOKE = "invoke"


ALL_SCOPES: Final = (Scope.CONTROL, Scope.INVOKE)


def may_shadow(*, admin: bool, scopes: Collection[Scope], by_tenants: bool) -> bool:
    """Whether a key may mark requests as a test, which is served and left out of the metering.

    Administrators' keys may. Those of tenants, who would be served for nothing, only where the deployment says so
    (``by_tenants``), and only if they may manage endpoints as well.
    """
    return admin or (by_tenants and Scope.CONTROL in scopes)


class ApiKey(Record):
    """A bearer key as it is stored: never the secret, only its digest."""

    id: str
    tenant: str
    name: str
    role: Role = Role.TENANT
    digest: str = Field(description="HMAC-SHA256 of the secret with the deployment's pepper, hex")
    created_at: float
    revoked_at: float | None = None
    expires_at: float | None = None
    scopes: tuple[Scope, ...] = ALL_SCOPES
    priority: Priority | None = Field(default=None, description="of its requests, and the most urgent one they may ask for")


class Quotas(Value):
    """What one tenant may have at most."""

    endpoints: int = Field(default=1000, ge=0)
    concurrency: int = Field(default=1000, ge=0, description="sum of MaxConcurrency over all serverless endpoints")
    memory_mb_per_endpoint: int = Field(default=6144, ge=1024, description="of one serverless endpoint")
    memory_mb: int | None = Field(default=None, ge=0, description="sum over all endpoints; None: no limit")


class Tenant(Record):
    """One account; the default one exists without a record."""

    id: str
    name: str = ""
    quotas: Quotas = Quotas()
    created_at: float
    disabled_at: float | None = Field(default=None, description="no key of it is accepted any more")


class AccessKey(Record):
    """A pair of keys for AWS clients; the secret must stay readable to check signatures, so it is sealed, not hashed."""

    id: str = Field(description="AWS's form: 20 characters, SBKA… for standing keys, SBIA… for those with a session token")
    tenant: str
    name: str
    sealed: str = Field(description="secret (and session token) as JSON, AES-256-GCM, bound to tenant and key id")
    key_version: str = Field(description="which sealing key it was")
    scopes: tuple[Scope, ...] = ALL_SCOPES
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    priority: Priority | None = Field(default=None, description="of its requests, and the most urgent one they may ask for")


class StoredCredential(Record):
    """A tenant's keys for a store of models, sealed; without the deployment's sealing key they are noise."""

    tenant: str
    name: str
    sealed: str = Field(description="base64: nonce, ciphertext and tag of AES-256-GCM, bound to tenant, name and key version")
    key_version: str = Field(description="which sealing key it was")
    created_at: float


class Lease(Record):
    """Leadership of the controllers; ``epoch`` fences everything the holder writes."""

    holder: str
    epoch: int = Field(ge=1)
    beat: int = Field(default=0, ge=0)
