"""Frames of ``application/vnd.amazon.eventstream``, as InvokeEndpointWithResponseStream answers them. Pure.

A frame is ``total length u32 | headers length u32 | CRC-32 of those eight bytes | headers | payload | CRC-32 of all before``,
big-endian. A client takes a stream that ends between two frames for complete, and one that ends inside a frame without
any error too (field case B47): so whoever breaks off sends an exception frame, and frames are only ever written whole.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Final
from zlib import crc32

CONTENT_TYPE: Final = b"application/vnd.amazon.eventstream"
# botocore takes at most 24 MiB of payload in one message; far below it, so that no client has to hold much.
MAX_PAYLOAD: Final = 1024 * 1024

_PRELUDE: Final = struct.Struct("!II")
_CRC: Final = struct.Struct("!I")
_OVERHEAD: Final = 16
_STRING: Final = 7


def _header(name: bytes, value: bytes) -> bytes:
    return b"%c%b%c%b%b" % (len(name), name, _STRING, struct.pack("!H", len(value)), value)


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(_header(name, value) for name, value in pairs)


def frame(headers: bytes, payload: bytes) -> bytes:
    """Return one message; ``headers`` are encoded already."""
    prelude = _PRELUDE.pack(_OVERHEAD + len(headers) + len(payload), len(headers))
    prelude_crc = crc32(prelude)
    checked = _CRC.pack(prelude_crc)
    total = crc32(payload, crc32(headers, crc32(checked, prelude_crc)))
    return b"".join((prelude, checked, headers, payload, _CRC.pack(total)))


_PART: Final = _headers(
    (
        (b":event-type", b"PayloadPart"),
        (b":content-type", b"application/octet-stream"),
        (b":message-type", b"event"),
    )
)
# Clients yield it as a part of no bytes: what keeps a quiet connection alive.
HEARTBEAT: Final = frame(_PART, b"")


def part(data: bytes) -> bytes:
    """Return the model's own bytes as PayloadPart events, several where there are more than MAX_PAYLOAD."""
    if len(data) <= MAX_PAYLOAD:
        return frame(_PART, data)
    pieces = (data[start : start + MAX_PAYLOAD] for start in range(0, len(data), MAX_PAYLOAD))
    return b"".join(frame(_PART, piece) for piece in pieces)


def exception(kind: str, message: str, error_code: str | None = None) -> bytes:
    """Return the frame that makes a client raise ``kind``: ModelStreamError, which has an ErrorCode, or InternalStreamFailure.

    The key is ``Message``: with a small letter clients show an empty one.
    """
    headers = _headers(
        (
            (b":exception-type", kind.encode()),
            (b":content-type", b"application/json"),
            (b":message-type", b"exception"),
        )
    )
    members = {"Message": message} | ({} if error_code is None else {"ErrorCode": error_code})
    return frame(headers, json.dumps(members).encode())
