"""A tenant's keys for a store: opened for the tenant and the name that they were stored under, or not at all."""

from __future__ import annotations

import pytest

from standby.artifacts.credentials import Credentials
from standby.artifacts.stored_keys import seal_keys, unseal_keys
from standby.domain.errors import SourceUnreachable
from standby.host.sealing import SealingKey

KEYS = Credentials("AKIA1", "the secret", "a token")
SEALING = SealingKey(bytes(32))
RECORD = seal_keys(KEYS, "111111111111", "mine", SEALING, now=5.0)


def test_keys_come_back_whole() -> None:
    assert unseal_keys(RECORD, "111111111111", "mine", SEALING) == KEYS
    assert RECORD.created_at == 5.0


def test_the_record_holds_nothing_in_the_clear() -> None:
    stored = RECORD.encode().decode() + repr(RECORD)
    for secret in ("AKIA1", "the secret", "a token"):
        assert secret not in stored


@pytest.mark.parametrize(("tenant", "name"), [("222222222222", "mine"), ("111111111111", "yours")])
def test_a_record_that_was_moved_does_not_open(tenant: str, name: str) -> None:
    """Whoever can write the table still cannot read another tenant's store: not even by claiming its fields."""
    moved = RECORD.model_copy(update={"tenant": tenant, "name": name})

    with pytest.raises(SourceUnreachable, match="changed or moved"):
        unseal_keys(moved, tenant, name, SEALING)


def test_each_reason_is_told_apart() -> None:
    other = SealingKey(bytes([7]) * 32)
    relabelled = RECORD.model_copy(update={"key_version": other.version})

    with pytest.raises(SourceUnreachable, match="no STANDBY_SECRETS_KEY"):
        unseal_keys(RECORD, "111111111111", "mine", None)
    with pytest.raises(SourceUnreachable, match=f"sealed with key {SEALING.version}, and this process has key {other.version}"):
        unseal_keys(RECORD, "111111111111", "mine", other)
    with pytest.raises(SourceUnreachable, match="changed or moved"):
        unseal_keys(relabelled, "111111111111", "mine", other)
