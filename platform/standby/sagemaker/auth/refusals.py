"""Refusals in AWS's words: each says what is wrong with the signature, none repeats it or says more of a key than AWS does."""

from __future__ import annotations

from typing import Final

from standby.sagemaker.errors import AwsError

_MISMATCH: Final = (
    "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and "
    "signing method. Consult the service documentation for details."
)
_SHOWN: Final = 80


def missing_token() -> AwsError:
    """There is no signature at all."""
    return AwsError("MissingAuthenticationTokenException", "Missing Authentication Token", 403)


def unknown_client() -> AwsError:
    """The key is unknown, revoked, its account disabled, or the session token another one: never told apart."""
    return AwsError("UnrecognizedClientException", "The security token included in the request is invalid.", 403)


def expired_token() -> AwsError:
    """The signature is right, and the key's time is over."""
    return AwsError("ExpiredTokenException", "The security token included in the request is expired", 403)


def mismatch() -> AwsError:
    """Something that was signed is not what arrived, or another secret signed it."""
    return AwsError("InvalidSignatureException", _MISMATCH, 403)


def invalid(message: str) -> AwsError:
    """A rule about signatures is broken, whatever the secret."""
    return AwsError("InvalidSignatureException", message, 403)


def incomplete(message: str) -> AwsError:
    """The signature lacks a part, or has one too many."""
    return AwsError("IncompleteSignature", message, 403)


def denied(arn: str, action: str, resource: str) -> AwsError:
    """The caller is known and may not do this."""
    return AwsError(
        "AccessDeniedException",
        f"User: {arn} is not authorized to perform: {action} on resource: {resource} because no identity-based policy "
        f"allows the {action} action",
    )


def cannot_check() -> AwsError:
    """This gateway's copy of the keys is too old to trust."""
    return AwsError("ServiceUnavailable", "This gateway cannot check keys now: it has lost its control plane. Try again.", 503)


def shown(text: str) -> str:
    """Return what a caller sent as a message may repeat it: short, and without what would break a line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SHOWN])
