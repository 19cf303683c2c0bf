"""Requests that are a test: ``x-standby-shadow: 1``. They are served like any other and counted in no metering."""

from __future__ import annotations

from standby.sagemaker.runtime.contract import Headers
from standby.wire.headers import SHADOW


def shadow_of(mark: bytes | None, *, may_shadow: bool) -> tuple[bool, Headers]:
    """Return whether a request is a test, and the header of its answer that says so: nothing where it is not marked as one.

    A mark that the key may not set changes nothing else: the request is served, and counted.
    """
    if mark is None or mark.strip() in (b"", b"0"):
        return False, []
    return may_shadow, [(SHADOW, b"1" if may_shadow else b"0")]
