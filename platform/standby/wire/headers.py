"""The header names and answers of the contract between gateway and door, and the names between callers and gateway.

A request to a door is plain HTTP/1.1 with the engine's own path plus TOKEN, INSTANCE, EPOCH and REQUEST_ID. A door that
refuses before the engine saw anything sets REFUSED. A door whose engine failed before the first byte answers 502 with
ENGINE_ERROR and ENGINE_SAW (a ``Sight``), and where the engine itself is no more with ENGINE_GONE: the number of requests, of
all gateways, that were in flight at its end. After the first byte of a chunked event stream it ends the body with an error
event and sets ENGINE_ERROR (and ENGINE_GONE) as a trailer, so that the gateway does not take the orderly end for a success.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from http import HTTPStatus
from typing import Final

PREFIX: Final = b"x-standby-"
TOKEN: Final = b"x-standby-token"
INSTANCE: Final = b"x-standby-instance"
EPOCH: Final = b"x-standby-epoch"
REFUSED: Final = b"x-standby-refused"
ENGINE_ERROR: Final = b"x-standby-engine-error"
ENGINE_SAW: Final = b"x-standby-engine-saw"
ENGINE_GONE: Final = b"x-standby-engine-gone"
REQUEST_ID: Final = b"x-request-id"
# Not for doors: a caller's request with it is a test, and an answer with it says whether that was granted (1) or not (0).
SHADOW: Final = b"x-standby-shadow"
# What a caller may ask of the gateway.
TENANT: Final = b"x-standby-tenant"
PRIORITY: Final = b"x-standby-priority"
HEARTBEAT: Final = b"x-standby-heartbeat"
# What the gateway says in its answers, beside INSTANCE and REQUEST_ID.
RUNG: Final = b"x-standby-rung"
WAIT_MS: Final = b"x-standby-wait-ms"
ROUTE: Final = b"x-standby-route"
TRACE_ID: Final = b"x-standby-trace-id"
ACTIVATION: Final = b"x-standby-activation"
PHASES_MS: Final = b"x-standby-phases-ms"

# RFC 9110 §7.6.1: they describe one connection and are never passed on.
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Written anew by each hop, because each hop frames the body itself.
REWRITTEN: Final = HOP_BY_HOP | {b"content-length", b"host", b"expect"}


class Refusal(StrEnum):
    """Why a door did not let a request through; the engine has seen nothing of it."""

    STALE_EPOCH = "stale-epoch"
    DRAINING = "draining"
    FULL = "full"
    UNKNOWN_INSTANCE = "unknown-instance"
    BAD_TOKEN = "bad-token"  # noqa: S105 - the name of a refusal, not a secret

    @property
    def status(self) -> int:
        """The HTTP status that goes with the refusal; the header is what counts."""
        if self is Refusal.FULL:
            return 429
        return 503 if self in (Refusal.DRAINING, Refusal.BAD_TOKEN) else 409


class EngineFault(StrEnum):
    """How an engine failed a request that the door had let through."""

    CONNECT = "connect"  # its socket does not accept: the engine saw nothing
    DIED = "died"  # it closed or reset the connection before the answer was complete
    TIMEOUT = "timeout"  # it stayed silent for longer than the door's limit
    MALFORMED = "malformed"  # what it sent is not HTTP
    ABORTED = "aborted"  # the node ended the request: drain limit, shutdown


class Sight(StrEnum):
    """What an engine had seen of a request that it failed."""

    NOTHING = "0"  # certainly: it cannot have begun
    PERHAPS = "1"  # it may have begun
    ALL = "2"  # certainly: it had read the whole request, or had begun to answer


STATUS_LINES: Final[dict[int, bytes]] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


def status_line(status: int) -> bytes:
    """Return the status line with its CRLF; a status without a registered phrase gets an empty one."""
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return ``name: value`` lines, each with its CRLF, without the empty line that ends a head."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def listed_in_connection(value: bytes) -> frozenset[bytes]:
    """Return the lower-case header names that a Connection header declares as belonging to one hop."""
    return frozenset(token.strip().lower() for token in value.split(b",")) - {b"keep-alive", b"close", b""}
