"""SageMaker's bearer tokens: a presigned POST to ``sagemaker.amazonaws.com``, in base64. Pure.

Clients make them offline from an access key (``sagemaker.core.token_generator``), for the OpenAI route, whose clients
know bearer keys only.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from standby.sagemaker.auth import refusals
from standby.sagemaker.auth.claim import Claim, query_claim

PREFIX: Final = "sagemaker-api-key-"
HOST: Final = b"sagemaker.amazonaws.com"
MAX_LIFE_S: Final = 43_200
MAX_LENGTH: Final = 8192

_ACTION: Final = (b"Action", b"CallWithBearerToken")
# Added behind the signature, to say how the token is made.
_VERSION: Final = {"Version": "1"}


def read_token(token: str) -> Claim:
    """Return what the token claims. Raises AwsError, whatever is in it."""
    if len(token) > MAX_LENGTH:
        raise refusals.unknown_client()
    try:
        url = base64.b64decode(token.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise refusals.unknown_client() from None
    where, _, query = url.partition(b"?")
    if where.removeprefix(b"https://").rstrip(b"/") != HOST or b"=".join(_ACTION) not in query.split(b"&"):
        raise refusals.unknown_client()
    claim = query_claim(query, appended=_VERSION)
    if claim.signed != (b"host",):
        raise refusals.mismatch()
    if claim.expires_s is None or claim.expires_s > MAX_LIFE_S:
        raise refusals.incomplete(f"X-Amz-Expires of a bearer token must be at most {MAX_LIFE_S}.")
    return claim
