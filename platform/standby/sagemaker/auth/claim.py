"""What a request says of itself: which key signed it, when, and what of it. Nothing is believed yet. Pure."""

from __future__ import annotations

import calendar
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from standby.sagemaker.auth import refusals
from standby.sagemaker.auth.canonical import ALGORITHM, TERMINATOR, canonical_query, query_pairs

Headers = Sequence[tuple[bytes, bytes]]

MAX_PRESIGN_S: Final = 7 * 86_400
_LIFETIME: Final = re.compile(r"[1-9][0-9]{0,5}")
_TIMESTAMP: Final = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z", re.ASCII)
_ONCE: Final = frozenset({b"host", b"authorization", b"content-type", b"content-length", b"content-encoding", b"date"})
_SIGNATURE: Final = b"X-Amz-Signature"
_HEADER_PARTS: Final = ("Credential", "Signature", "SignedHeaders")
_QUERY_PARTS: Final = ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders")
_TOKEN_PARAMETER: Final = "X-Amz-Security-Token"  # noqa: S105 - the parameter's name


@dataclass(frozen=True, slots=True)
class Claim:
    """``signed`` are names of headers; ``query`` is in canonical form; ``expires_s`` is set for presigned requests."""

    key_id: str
    date: str
    region: str
    service: str
    timestamp: str
    at: float
    signed: tuple[bytes, ...]
    signature: bytes
    token: bytes | None
    query: bytes
    expires_s: int | None = None

    @property
    def scope(self) -> str:
        """The credential scope, without the key."""
        return f"{self.date}/{self.region}/{self.service}/{TERMINATOR}"


def once(headers: Headers) -> dict[bytes, bytes]:
    """Return the headers by name. Raises AwsError where one comes twice that is signed or decides something.

    Two parsers may take different ones of a pair: what was checked must be what is used.
    """
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in found:
            if name in _ONCE or name.startswith(b"x-amz"):
                raise refusals.invalid(f"The header '{name.decode('latin-1')}' must not be sent more than once.")
            # Not one that we read; if it was signed, the comma makes it what the caller signed.
            found[name] += b"," + value
        else:
            found[name] = value
    return found


def read_claim(headers: Mapping[bytes, bytes], raw_query: bytes) -> Claim:
    """Return the request's claim, from its ``Authorization`` header or its query. Raises AwsError."""
    presigned = _SIGNATURE in raw_query
    authorization = headers.get(b"authorization")
    if authorization is None:
        if not presigned:
            raise refusals.missing_token()
        return query_claim(raw_query)
    if presigned:
        raise refusals.incomplete("Only one of the header 'Authorization' and the parameter 'X-Amz-Signature' is allowed.")
    return _header_claim(authorization, headers, raw_query)


def query_claim(raw_query: bytes, appended: Mapping[str, str] | None = None) -> Claim:
    """Return the claim of a presigned query; ``appended`` are parameters that were added after signing. Raises AwsError."""
    parameters: dict[str, str] = {}
    signed_pairs = []
    after = {} if appended is None else appended
    for name, value in query_pairs(raw_query):
        plain = _decoded(name)
        if plain in parameters:
            raise refusals.incomplete(f"The parameter '{refusals.shown(plain)}' must not be sent more than once.")
        parameters[plain] = _decoded(value)
        if plain in after:
            if parameters[plain] != after[plain]:
                raise refusals.incomplete(f"The parameter '{plain}' must be '{after[plain]}'.")
        elif name != _SIGNATURE:
            signed_pairs.append((name, value))
    _all_there(parameters, (*_QUERY_PARTS, "X-Amz-Signature"), "AWS query-string parameters must include")
    if parameters["X-Amz-Algorithm"].encode() != ALGORITHM:
        raise refusals.incomplete(f"Unsupported AWS 'algorithm': '{refusals.shown(parameters['X-Amz-Algorithm'])}'.")
    token = parameters.get(_TOKEN_PARAMETER)
    return _claim(
        credential=parameters["X-Amz-Credential"],
        timestamp=parameters["X-Amz-Date"],
        signed=parameters["X-Amz-SignedHeaders"],
        signature=parameters["X-Amz-Signature"],
        token=None if token is None else token.encode(),
        query=canonical_query(signed_pairs),
        expires_s=_lifetime(parameters["X-Amz-Expires"]),
    )


def _header_claim(authorization: bytes, headers: Mapping[bytes, bytes], raw_query: bytes) -> Claim:
    algorithm, _, rest = authorization.strip().partition(b" ")
    if algorithm != ALGORITHM:
        raise refusals.incomplete(f"Unsupported AWS 'algorithm': '{refusals.shown(algorithm.decode('latin-1'))}'.")
    parts: dict[str, str] = {}
    for piece in rest.decode("latin-1").split(","):
        name, equals, value = piece.strip().partition("=")
        if not equals or name in parts or name not in _HEADER_PARTS:
            raise refusals.incomplete(
                "The Authorization header holds something else than Credential, SignedHeaders, Signature."
            )
        parts[name] = value
    _all_there(parts, _HEADER_PARTS, "Authorization header requires")
    date = headers.get(b"x-amz-date")
    if date is None:
        raise refusals.incomplete("Authorization header requires existence of a 'X-Amz-Date' header.")
    return _claim(
        credential=parts["Credential"],
        timestamp=date.decode("latin-1"),
        signed=parts["SignedHeaders"],
        signature=parts["Signature"],
        token=headers.get(b"x-amz-security-token"),
        query=canonical_query(query_pairs(raw_query)) if raw_query else b"",
        expires_s=None,
    )


def _claim(
    *, credential: str, timestamp: str, signed: str, signature: str, token: bytes | None, query: bytes, expires_s: int | None
) -> Claim:
    scope = credential.split("/")
    if len(scope) != 5:
        raise refusals.incomplete(
            "Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term, "
            f"got '{refusals.shown(credential)}'"
        )
    key_id, date, region, service, terminator = scope
    if terminator != TERMINATOR:
        raise refusals.invalid(
            f"Credential should be scoped with a valid terminator: '{TERMINATOR}', not '{refusals.shown(terminator)}'."
        )
    names = tuple(name.encode("latin-1", "replace") for name in signed.split(";"))
    if list(names) != sorted(set(names)) or signed != signed.lower():
        raise refusals.incomplete("SignedHeaders must be in lower case, in order, and each of them once.")
    at = _seconds(timestamp)
    if date != timestamp[:8]:
        raise refusals.invalid(
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
            f"'{refusals.shown(date)}' != '{timestamp[:8]}', from '{timestamp}'."
        )
    return Claim(
        key_id, date, region, service, timestamp, at, names, signature.encode("latin-1", "replace"), token, query, expires_s
    )


def _seconds(timestamp: str) -> float:
    match = _TIMESTAMP.fullmatch(timestamp)
    if match is None:
        raise refusals.incomplete(
            f"Date must be in ISO-8601 'basic format'. Got '{refusals.shown(timestamp)}'. "
            "See http://en.wikipedia.org/wiki/ISO_8601"
        )
    year, month, day, hour, minute, second = map(int, match.groups())
    if not (year >= 1970 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        raise refusals.incomplete(f"Date must be in ISO-8601 'basic format'. Got '{timestamp}'.")
    return float(calendar.timegm((year, month, day, hour, minute, second)))


def _lifetime(text: str) -> int:
    if _LIFETIME.fullmatch(text) is None or int(text) > MAX_PRESIGN_S:
        raise refusals.incomplete(f"X-Amz-Expires must be a number from 1 to {MAX_PRESIGN_S}.")
    return int(text)


def _all_there(parts: Mapping[str, str], names: Sequence[str], words: str) -> None:
    lacking = [name for name in names if not parts.get(name)]
    if lacking:
        raise refusals.incomplete(" ".join(f"{words} '{name}' parameter." for name in lacking))


def _decoded(text: bytes) -> str:
    try:
        return unquote_to_bytes(text.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise refusals.incomplete("The query string is not UTF-8.") from None
