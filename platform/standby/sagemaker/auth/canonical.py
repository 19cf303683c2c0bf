"""The canonical form of a request by Signature Version 4, from the bytes on the wire. Pure.

Source: "Create a signed AWS API request" in AWS's IAM user guide; checked against its published vectors and botocore.
"""

from __future__ import annotations

import hashlib
import hmac
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote_from_bytes

ALGORITHM: Final = b"AWS4-HMAC-SHA256"
TERMINATOR: Final = "aws4_request"

_PLAIN_PATH: Final = re.compile(rb"[A-Za-z0-9/_.~-]*")


def normal_path(path: bytes) -> bytes:
    """Return ``path`` without ``.``, ``..`` and empty segments, as every service but S3 signs it; a last slash stays."""
    if not path:
        return b"/"
    normal = posixpath.normpath(b"/" + path.lstrip(b"/"))
    return normal + b"/" if path.endswith((b"/", b"/.", b"/..")) and normal != b"/" else normal


def canonical_uri(path: bytes) -> bytes:
    """Return the path encoded once more than it is on the wire; ``path`` in normal form."""
    return path if _PLAIN_PATH.fullmatch(path) else quote_from_bytes(path, safe="/~").encode()


def canonical_query(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the pairs, still encoded, in the order in which they are signed."""
    return b"&".join(b"%b=%b" % pair for pair in sorted(pairs))


def query_pairs(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Return the names and values of a query string as they are on the wire."""
    if not raw:
        return []
    return [(name, value) for name, _, value in (piece.partition(b"=") for piece in raw.split(b"&"))]


def canonical_request(
    method: bytes, uri: bytes, query: bytes, headers: Mapping[bytes, bytes], signed: Sequence[bytes], body_hash: bytes
) -> bytes:
    """Return the text whose hash is signed; every name in ``signed`` is in ``headers``, in lower case."""
    lines = [b"%b:%b\n" % (name, b" ".join(headers[name].split())) for name in signed]
    return b"\n".join((method, uri, query, b"".join(lines), b";".join(signed), body_hash))


def string_to_sign(timestamp: str, scope: str, canonical: bytes) -> bytes:
    """Return what the signing key signs; ``timestamp`` as ``20260101T000000Z``, ``scope`` as date/region/service/terminator."""
    return b"%b\n%b\n%b\n%b" % (ALGORITHM, timestamp.encode(), scope.encode(), sha256_hex(canonical))


def signing_key(secret: bytes, date: str, region: str, service: str) -> bytes:
    """Return the key of one day, region and service."""
    key = b"AWS4" + secret
    for part in (date, region, service, TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def signature(key: bytes, text: bytes) -> bytes:
    """Return the signature, in hex."""
    return hmac.digest(key, text, "sha256").hex().encode()


def sha256_hex(data: bytes) -> bytes:
    """Return SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest().encode()
