"""Wiring of who may come in: the authenticator of AWS's clients over the directory's copies of keys and tenants."""

from __future__ import annotations

from typing import Final

from standby.domain.access import ApiKey
from standby.domain.errors import ConfigurationError
from standby.gateway.audit import Audit
from standby.gateway.directory import Directory
from standby.gateway.keys import authenticate
from standby.host.sealing import SealingKey
from standby.sagemaker.auth.authenticator import Authenticator
from standby.sagemaker.auth.vault import Vault

# A copy in good health is as old as its last listing, which may come a fifth later than planned, and once fail.
_LISTINGS: Final = 2.5


def authenticator_of(
    directory: Directory, sealing: SealingKey | None, pepper: bytes, audit: Audit, *, trust_s: float, region: str
) -> Authenticator:
    """Return the authenticator; from now on the directory's changes of access keys reach its opened secrets."""
    vault = Vault(directory.access_keys, directory.tenants, sealing)
    directory.on_access_key = vault.changed

    def own_key(token: str) -> ApiKey:
        return authenticate(b"Bearer " + token.encode("latin-1", "replace"), directory.keys, pepper)

    return Authenticator(vault, own_key, staleness=directory.key_age, trust_s=trust_s, region=region, refused=audit.refused)


def check_trust(trust_s: float, relist_interval_s: float) -> None:
    """Raises ConfigurationError where copies in good health would be too old to be trusted."""
    least = _LISTINGS * relist_interval_s
    if trust_s < least:
        raise ConfigurationError(
            f"STANDBY_KEY_TRUST_S is {trust_s:g}, and copies are confirmed every {relist_interval_s:g} s only",
            remedy=f"set it to {least:g} or more, or STANDBY_NATS_RELIST_INTERVAL to less",
        )
