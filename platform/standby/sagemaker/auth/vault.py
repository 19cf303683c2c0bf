"""The opened secrets of the access keys: in memory only, and only while their records stand."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from standby.domain.access import AccessKey, Tenant
from standby.host.sealing import SealingKey
from standby.sagemaker.auth.access_keys import Opened, unseal
from standby.sagemaker.auth.canonical import signing_key

_log = logging.getLogger(__name__)

R_co = TypeVar("R_co", covariant=True)
# One key signs for a few services and regions, and at midnight for two days.
_MOST_SIGNING_KEYS: Final = 8


class Found(Protocol[R_co]):
    """A record in a copy."""

    @property
    def value(self) -> R_co:
        """The record."""


class Copy(Protocol[R_co]):
    """A watched local copy of a table, as standby.bus.mirror.Mirror is one."""

    @property
    def entries(self) -> Mapping[str, Found[R_co]]:
        """The records by key."""


@dataclass(slots=True)
class Held:
    """An opened key. ``signing`` holds keys that have verified a signature already, by date, region and service."""

    record: AccessKey
    opened: Opened = field(repr=False)
    signing: dict[tuple[str, str, str], bytes] = field(default_factory=dict, repr=False)

    def signing_key(self, date: str, region: str, service: str) -> bytes:
        """Return the signing key, from memory where one was remembered."""
        return self.signing.get((date, region, service)) or signing_key(self.opened.secret, date, region, service)

    def remember(self, date: str, region: str, service: str, key: bytes) -> None:
        """Keep a signing key that has proven itself: a stranger's made-up regions must not push it out."""
        where = (date, region, service)
        if where not in self.signing:
            while len(self.signing) >= _MOST_SIGNING_KEYS:
                del self.signing[next(iter(self.signing))]
            self.signing[where] = key


class Vault:
    """Opens keys when they are first used; call ``changed`` for each change of the table, which forgets what was opened."""

    def __init__(self, access_keys: Copy[AccessKey], tenants: Copy[Tenant], sealing: SealingKey | None) -> None:
        self._access_keys = access_keys
        self._tenants = tenants
        self._sealing = sealing
        self._held: dict[str, Held] = {}
        self._unopened: set[str] = set()

    def find(self, identity: str) -> Held | None:
        """Return the key if it exists, is not revoked, its account is not disabled, and it opens here; else None."""
        entry = self._access_keys.entries.get(identity)
        record = None if entry is None else entry.value
        if record is None or record.revoked_at is not None or self._disabled(record.tenant):
            self._held.pop(identity, None)
            return None
        held = self._held.get(identity)
        if held is None or held.record is not record:
            held = self._open(identity, record)
        return held

    def changed(self, identity: str) -> None:
        """Forget what was opened of a key; the next use opens the record that is there then."""
        self._held.pop(identity, None)
        self._unopened.discard(identity)

    def __len__(self) -> int:
        return len(self._held)

    def _disabled(self, tenant: str) -> bool:
        account = self._tenants.entries.get(tenant)
        return account is not None and account.value.disabled_at is not None

    def _open(self, identity: str, record: AccessKey) -> Held | None:
        opened = None if self._sealing is None else unseal(record, identity, self._sealing)
        if opened is None:
            if identity not in self._unopened:
                self._unopened.add(identity)
                _log.error(
                    "access key cannot be opened: it was moved, or sealed with a key that this gateway lacks",
                    extra={"key": identity, "sealed_with": record.key_version},
                )
            return None
        held = self._held[identity] = Held(record, opened)
        return held
