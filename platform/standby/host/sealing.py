"""Secrets at rest: sealed with a key of the deployment, each bound to the name it is kept under."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from standby.domain.errors import ConfigurationError

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_VERSION_DIGITS: Final = 8


class Unsealable(Exception):
    """The sealed text is not of this key and this name, or was changed."""


class SealingKey:
    """AES-256-GCM with one key. ``version`` names the key, so that a text sealed with another one is known as such.

    ``previous`` are the keys of before a rotation: they seal nothing any more, and still open what they have sealed.
    """

    def __init__(self, key: bytes, previous: Sequence[SealingKey] = ()) -> None:
        """Raises ConfigurationError unless ``key`` has 32 bytes."""
        if len(key) != KEY_BYTES:
            raise _unfit(f"it has {len(key)} bytes instead of {KEY_BYTES}")
        self._cipher = AESGCM(key)
        self.version = hashlib.sha256(b"standby sealing key\0" + key).hexdigest()[:_VERSION_DIGITS]
        self._previous = tuple(previous)

    @classmethod
    def parse(cls, text: str) -> SealingKey:
        """Return the key that ``text`` writes in URL-safe base64; further ones after white space are its previous ones.

        Raises ConfigurationError, which never repeats the text.
        """
        words = text.split()
        if not words:
            raise _unfit("it is empty")
        try:
            raw = [base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True) for word in words]
        except (binascii.Error, ValueError):
            raise _unfit("it is not URL-safe base64") from None
        return cls(raw[0], [cls(key) for key in raw[1:]])

    def of_version(self, version: str) -> SealingKey | None:
        """Return this key or the previous one that has this version, or None."""
        return next((key for key in (self, *self._previous) if key.version == version), None)

    def seal(self, secret: bytes, bound_to: str) -> str:
        """Return ``secret`` sealed, in base64; only ``unseal`` with the same ``bound_to`` opens it."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return base64.b64encode(nonce + self._cipher.encrypt(nonce, secret, bound_to.encode())).decode()

    def unseal(self, sealed: str, bound_to: str) -> bytes:
        """Return the secret. Raises Unsealable."""
        try:
            raw = base64.b64decode(sealed, validate=True)
            return self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], bound_to.encode())
        except (binascii.Error, ValueError, InvalidTag) as error:
            raise Unsealable(type(error).__name__) from None


def generate_key() -> str:
    """Return a new key as ``SealingKey.parse`` reads it."""
    return base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def _unfit(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"STANDBY_SECRETS_KEY is not usable: {why}",
        remedy="set it to 32 random bytes in URL-safe base64, the same on every gateway and node; older ones may follow it",
    )
