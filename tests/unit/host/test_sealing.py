"""Secrets at rest: what was changed, moved or sealed by another key does not open, and nothing of a key is told."""

from __future__ import annotations

import base64

import pytest

from standby.domain.errors import ConfigurationError
from standby.host.sealing import SealingKey, Unsealable, generate_key

ONE, TWO = SealingKey(bytes(32)), SealingKey(bytes([1]) * 32)


def test_what_was_sealed_opens_under_its_own_name_only() -> None:
    sealed = ONE.seal(b"secret", "tenant/name/v")

    assert ONE.unseal(sealed, "tenant/name/v") == b"secret"
    assert b"secret" not in base64.b64decode(sealed)
    for key, name in ((ONE, "tenant/other/v"), (TWO, "tenant/name/v")):
        with pytest.raises(Unsealable):
            key.unseal(sealed, name)


def test_the_same_secret_never_looks_the_same() -> None:
    assert ONE.seal(b"secret", "n") != ONE.seal(b"secret", "n")


@pytest.mark.parametrize("broken", ["", "!", "AAAA", base64.b64encode(bytes(40)).decode()])
def test_what_was_never_sealed_does_not_open(broken: str) -> None:
    with pytest.raises(Unsealable):
        ONE.unseal(broken, "n")


def test_every_changed_bit_is_noticed() -> None:
    raw = base64.b64decode(ONE.seal(b"s", "n"))
    for place in range(len(raw)):
        changed = bytes(byte ^ (1 if at == place else 0) for at, byte in enumerate(raw))
        with pytest.raises(Unsealable):
            ONE.unseal(base64.b64encode(changed).decode(), "n")


def test_a_generated_key_is_read_again() -> None:
    text = generate_key()

    assert SealingKey.parse(text).version == SealingKey.parse(f" {text.rstrip('=')}\n").version
    assert SealingKey.parse(text).version != SealingKey.parse(generate_key()).version


@pytest.mark.parametrize("text", ["", "topsecret", "topsecret!", base64.urlsafe_b64encode(b"topsecret").decode()])
def test_an_unfit_key_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError, match="STANDBY_SECRETS_KEY is not usable") as refused:
        SealingKey.parse(text)
    assert not text or text not in str(refused.value)
