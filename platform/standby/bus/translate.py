"""Turns what the NATS library raises into the one tree of errors, so that none of it leaves standby.bus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import nats.errors
import nats.js.errors

from standby.domain.errors import BusUnavailable, PayloadTooLarge, StandbyError

# JSStreamWrongLastSequence and its variant with constant text, in the server's table of errors.
WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
RETRY_AFTER_S: Final = 1.0


@contextmanager
def translated(doing: str, where: str) -> Iterator[None]:
    """Raise BusUnavailable or PayloadTooLarge for whatever NATS raises inside; ``doing`` and ``where`` name the attempt."""
    try:
        yield
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise translate(error, doing, where) from error


def translate(error: Exception, doing: str, where: str) -> StandbyError:
    """Return the error of our own tree that says what ``error`` means."""
    prefix = f"NATS at {where}: {doing}"
    match error:
        case nats.errors.MaxPayloadError():
            return PayloadTooLarge(f"{prefix}: message is larger than the server takes", remedy="store a reference instead")
        case nats.js.errors.NoStreamResponseError() | nats.errors.NoRespondersError():
            return _unavailable(f"{prefix}: no stream answers", "wait for the leader's election, or check JetStream")
        case nats.errors.ConnectionClosedError() | nats.errors.ConnectionDrainingError():
            return _unavailable(f"{prefix}: the connection is closed", "connect again")
        case TimeoutError() | asyncio.TimeoutError():
            return _unavailable(f"{prefix}: no answer in time, outcome unknown", "read again, then decide again")
        case nats.js.errors.APIError():
            return _unavailable(f"{prefix}: {error.description} ({error.code}/{error.err_code})", "check the server's log")
        case _:
            return _unavailable(f"{prefix}: {error}", "check that the server runs and may be reached")


def is_wrong_revision(error: nats.js.errors.APIError) -> bool:
    """Whether the server refused a write because somebody else wrote the key first."""
    return error.err_code in WRONG_LAST_SEQUENCE


def _unavailable(message: str, remedy: str) -> BusUnavailable:
    return BusUnavailable(message, remedy=remedy, retry_after_s=RETRY_AFTER_S)
