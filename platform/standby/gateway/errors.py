"""Errors on the wire: one envelope, the one that OpenAI's clients read, with the remedy beside the message."""

from __future__ import annotations

import math
from typing import Any, Final

from standby.domain.errors import StandbyError

Headers = list[tuple[bytes, bytes]]

_TYPES: Final = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


def error_body(error: StandbyError) -> dict[str, Any]:
    """Return ``{"error": {"message", "type", "param", "code", "remedy"}}``."""
    fallback = "invalid_request_error" if error.http_status < 500 else "server_error"
    return {
        "error": {
            "message": error.message,
            "type": _TYPES.get(error.http_status, fallback),
            "param": None,
            "code": error.code,
            "remedy": error.remedy,
        }
    }


def error_headers(error: StandbyError) -> Headers:
    """Return ``Retry-After`` where a retry helps, ``WWW-Authenticate`` where a key is missing."""
    headers: Headers = []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()))
    if error.http_status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
