"""Tenants, their bearer keys and keys for stores, and the controllers' lease."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from standby.domain.values import Record


class Role(StrEnum):
    """What a key may do: a tenant sees its own names, an administrator makes keys and sees nodes."""

    ADMIN = "admin"
    TENANT = "tenant"


class ApiKey(Record):
    """A bearer key as it is stored: never the secret, only its digest."""

    id: str
    tenant: str
    name: str
    role: Role = Role.TENANT
    digest: str = Field(description="HMAC-SHA256 of the secret with the deployment's pepper, hex")
    created_at: float
    revoked_at: float | None = None


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
