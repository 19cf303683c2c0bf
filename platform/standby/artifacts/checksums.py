"""Whether the bytes that arrived are those that the store took in, where its ETag can tell."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

import httpx
import obstore
from obstore.exceptions import BaseError

from standby.artifacts.s3 import S3Source
from standby.artifacts.sources import Source
from standby.domain.errors import DigestMismatch
from standby.domain.model import ObjectRef

_MD5: Final = re.compile(r'"?([0-9a-f]{32})"?')
_LIMIT_S: Final = 10.0
_ENCRYPTION: Final = "x-amz-server-side-encryption"
_CUSTOMER_KEY: Final = "x-amz-server-side-encryption-customer-algorithm"


def md5_of(etag: str) -> str | None:
    """Return the MD5 (hex) that an ETag seems to be: not those of multipart uploads, which carry the number of parts."""
    found = _MD5.fullmatch(etag)
    return found.group(1) if found else None


async def check_etag(source: Source, ref: ObjectRef, md5: str) -> None:
    """Raise DigestMismatch when the ETag is an MD5 and ``md5`` is another one.

    The ETag of an object encrypted with a key of KMS or of the customer looks like an MD5 and is none; the store is asked
    only when they differ.
    """
    wanted = md5_of(ref.etag)
    if wanted is None or wanted == md5 or (isinstance(source, S3Source) and await _is_encrypted(source, ref)):
        return
    raise DigestMismatch(
        f"object {ref.key!r} in {source.where} arrived with MD5 {md5}, the store's own is {wanted}",
        remedy="retry; if it stays so, the object is damaged in the store: upload it again and register again",
    )


def says_encrypted(headers: httpx.Headers) -> bool:
    """True when a HEAD's answer tells of an encryption under which ETags are no MD5."""
    return headers.get(_ENCRYPTION, "AES256") != "AES256" or _CUSTOMER_KEY in headers


async def _is_encrypted(source: S3Source, ref: ObjectRef) -> bool:
    # obstore does not show this header, and its signed URL is how to ask with the same credentials.
    try:
        url = await obstore.sign_async(source.store, "HEAD", ref.key, timedelta(minutes=5))
        async with httpx.AsyncClient(trust_env=False, timeout=_LIMIT_S) as client:
            answer = await client.head(url)
    except (BaseError, httpx.HTTPError, OSError):
        return False
    return answer.is_success and says_encrypted(answer.headers)
