"""Whose request it is: Signature Version 4 by header or query, SageMaker's bearer tokens, and our own bearer keys.

A request may be repeated inside its window (± 5 min, or a presigned one's own life): AWS allows it, and SDKs repeat what
they have signed. What makes a repetition harmless is above this layer.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from standby.domain.access import ApiKey, Role
from standby.domain.errors import NotAuthenticated, StandbyError
from standby.sagemaker.auth import refusals
from standby.sagemaker.auth.caller import DEFAULT_REGION, Caller, user_arn
from standby.sagemaker.auth.canonical import (
    canonical_request,
    canonical_uri,
    normal_path,
    sha256_hex,
    signature,
    signing_key,
    string_to_sign,
)
from standby.sagemaker.auth.claim import Claim, Headers, once, read_claim
from standby.sagemaker.auth.token import HOST, PREFIX, read_token
from standby.sagemaker.auth.vault import Held, Vault
from standby.sagemaker.errors import AwsError

SKEW_S: Final = 300.0
_EMPTY_HASH: Final = sha256_hex(b"")
_CONTENT_HASH: Final = b"x-amz-content-sha256"
# Added by load balancers on the way; no client signs it.
_MAY_BE_UNSIGNED: Final = frozenset({b"x-amzn-trace-id"})


@dataclass(frozen=True)
class Authenticator:
    """``own_key`` checks a bearer key of ours and raises NotAuthenticated; ``staleness`` is the age in seconds of the copies
    of keys and accounts, beyond ``trust_s`` of which nobody is believed any more; ``refused`` hears of each refusal.
    """

    vault: Vault
    own_key: Callable[[str], ApiKey]
    staleness: Callable[[], float] = lambda: 0.0
    trust_s: float = float("inf")
    region: str = DEFAULT_REGION
    refused: Callable[[str, AwsError], None] = lambda _key_id, _error: None
    # What an unknown key is checked with, so that its refusal takes as long as another's.
    _nobodys: bytes = field(default_factory=lambda: secrets.token_bytes(30), repr=False)

    def authenticate(
        self,
        method: str,
        raw_path: bytes,
        raw_query: bytes,
        headers: Headers,
        body: bytes,
        *,
        now: float,
        service: str | None = "sagemaker",
    ) -> Caller:
        """Return who signed the request; ``headers`` with names in lower case, ``now`` in seconds since the epoch.

        ``service`` is the name that must have been signed for; None: any. Raises AwsError.
        """
        self._trusted()
        present = once(headers)
        claim = read_claim(present, raw_query)
        _check_time(claim, now)
        _check_service(claim, service)
        _check_signed(claim, present, raw_path)
        body_hash = sha256_hex(body) if body else _EMPTY_HASH
        if present.get(_CONTENT_HASH, body_hash) != body_hash:
            raise refusals.invalid("The value of 'x-amz-content-sha256' is not the SHA-256 of the payload; it must be signed.")
        canonical = canonical_request(
            method.encode(), canonical_uri(raw_path or b"/"), claim.query, present, claim.signed, body_hash
        )
        return self._prove(claim, canonical, now)

    def authenticate_bearer(self, token: str, now: float) -> Caller:
        """Return whose bearer token it is: one made of an access key's signature, or a key of ours. Raises AwsError."""
        self._trusted()
        if not token.startswith(PREFIX):
            return self._own(token)
        claim = read_token(token)
        _check_time(claim, now)
        _check_service(claim, "sagemaker")
        canonical = canonical_request(b"POST", b"/", claim.query, {b"host": HOST}, claim.signed, _EMPTY_HASH)
        return self._prove(claim, canonical, now)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _trusted(self) -> None:
        if self.staleness() > self.trust_s:
            raise refusals.cannot_check()

    def _prove(self, claim: Claim, canonical: bytes, now: float) -> Caller:
        """Return the caller if the signature is the key's. A revoked key, a wrong token and an unknown key are one refusal."""
        held = self.vault.find(claim.key_id)
        known = held is not None and _same_token(held.opened.token, claim.token)
        text = string_to_sign(claim.timestamp, claim.scope, canonical)
        if held is None or not known:
            _agrees(signing_key(self._nobodys, claim.date, claim.region, claim.service), text, claim)
            raise self._refusal("" if held is None else claim.key_id, refusals.unknown_client())
        key = held.signing_key(claim.date, claim.region, claim.service)
        if not _agrees(key, text, claim):
            raise self._refusal(claim.key_id, refusals.mismatch())
        held.remember(claim.date, claim.region, claim.service, key)
        if held.record.expires_at is not None and held.record.expires_at <= now:
            raise self._refusal(claim.key_id, refusals.expired_token())
        return _caller(held, claim.region)

    def _own(self, token: str) -> Caller:
        try:
            key = self.own_key(token)
        except NotAuthenticated:
            raise self._refusal("", refusals.unknown_client()) from None
        except StandbyError:
            raise refusals.cannot_check() from None
        admin = key.role is Role.ADMIN
        return Caller(key.tenant, key.id, key.scopes, user_arn(key.tenant, key.id), self.region, admin, key.priority)

    def _refusal(self, key_id: str, error: AwsError) -> AwsError:
        self.refused(key_id, error)
        return error


def _caller(held: Held, region: str) -> Caller:
    record = held.record
    arn = user_arn(record.tenant, record.name)
    return Caller(record.tenant, record.id, record.scopes, arn, region, priority=record.priority)


def _check_time(claim: Claim, now: float) -> None:
    end = claim.at + SKEW_S if claim.expires_s is None else claim.at + claim.expires_s
    if now > end:
        border = f"{_written(now - SKEW_S)} ({_written(now)} - 5 min.)" if claim.expires_s is None else _written(now)
        raise refusals.invalid(
            f"Signature expired: {_written(end if claim.expires_s else claim.at)} is now earlier than {border}"
        )
    if claim.at > now + SKEW_S:
        raise refusals.invalid(
            f"Signature not yet current: {claim.timestamp} is still later than {_written(now + SKEW_S)} "
            f"({_written(now)} + 5 min.)"
        )


def _check_service(claim: Claim, service: str | None) -> None:
    if service is not None and claim.service != service:
        raise refusals.invalid(f"Credential should be scoped to correct service: '{service}'.")


def _check_signed(claim: Claim, present: Mapping[bytes, bytes], raw_path: bytes) -> None:
    """Refuse where something that decides was left out of the signature, or where the path is signed as another one."""
    if b"host" not in claim.signed:
        raise refusals.invalid("'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.")
    signed = frozenset(claim.signed)
    for name in present:
        if name.startswith(b"x-amz") and name not in signed and name not in _MAY_BE_UNSIGNED:
            raise refusals.invalid(f"'{name.decode('latin-1')}' must be a 'SignedHeader' in the AWS Authorization.")
    if not signed <= present.keys() or normal_path(raw_path) != (raw_path or b"/"):
        raise refusals.mismatch()


def _same_token(expected: bytes | None, given: bytes | None) -> bool:
    return hmac.compare_digest(expected or b"", given or b"")


def _agrees(key: bytes, text: bytes, claim: Claim) -> bool:
    return hmac.compare_digest(signature(key, text), claim.signature)


def _written(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%SZ")
