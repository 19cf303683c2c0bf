"""An honest end for a broken event stream: one error event and no ``[DONE]``."""

from __future__ import annotations

import json

EVENT_STREAM = b"text/event-stream"


def error_event(code: str, message: str, tail: bytes = b"") -> bytes:
    """Return ``data: {"error": …}`` as one event.

    ``tail`` is the end of what the client already has: when that stops inside an event, the event is closed first, so
    that the error does not become part of its text (field case B26).
    """
    payload = json.dumps({"error": {"message": message, "type": "engine_error", "code": code, "param": None}})
    at_boundary = not tail or tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
    return (b"" if at_boundary else b"\n\n") + b"data: " + payload.encode() + b"\n\n"
