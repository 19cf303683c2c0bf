"""From a gateway's request to a door and back to the client, byte for byte.

An attempt sends nothing to the client before the first body byte (or the end of an answer without one), so every earlier
failure leaves the client untouched and the caller may try elsewhere. After that, a break ends honestly: an event stream
gets one error event and no ``[DONE]``; any other body is left incomplete, which the server shows by closing the
connection, never as a shorter answer that looks whole (field case B26).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from standby.gateway.client_watch import ClientWatch
from standby.gateway.door_client import DoorPools, OutcomeKind, RelayOutcome, RelayRequest
from standby.gateway.relay_attempt import Attempt, Receive, Send

__all__ = ["AnswerCutOff", "DoorClient", "NotSent", "OutcomeKind", "RelayOutcome", "RelayRequest"]


class AnswerCutOff(asyncio.CancelledError):
    """The attempt was cancelled after its first byte had gone to the client; an event stream got its error event."""


class NotSent(asyncio.CancelledError):
    """The attempt was cancelled while it connected: no door has got anything of the request."""


class DoorClient(DoorPools):
    """What a gateway speaks to doors with; shared by all its requests."""

    async def relay(
        self,
        request: RelayRequest,
        send: Send,
        *,
        receive: Receive | None = None,
        extra_headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> RelayOutcome:
        """Make one attempt and return how it ended; raises only what ``send`` raises.

        ``receive``, when given, is watched for the client's disconnect (the request's body must have been read). That and
        cancelling this coroutine close the door connection at once. ``extra_headers`` are added to the answer's head.
        ``send`` and ``receive`` are stepped from protocol
        callbacks: see standby.gateway.inline for what that asks of them. After BROKEN_MID_STREAM the caller just returns.
        """
        attempt = Attempt(self, request, send, extra_headers)
        watch = None if receive is None else ClientWatch(receive, attempt.client_gone)
        try:
            turn = attempt.begin()
            outcome = None if turn is None else await turn
            return outcome or await attempt.run()
        except asyncio.CancelledError:
            if attempt.cut_off("the gateway ended the request"):
                raise AnswerCutOff from None
            if not attempt.sent:
                raise NotSent from None
            raise
        finally:
            attempt.close()
            if watch is not None:
                watch.stop()
