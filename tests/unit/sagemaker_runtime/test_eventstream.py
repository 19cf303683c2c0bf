"""Frames against botocore's own decoder, cut at every byte."""

from __future__ import annotations

import json
import os

import pytest
from botocore.eventstream import EventStreamBuffer, EventStreamMessage

from standby.sagemaker.runtime import eventstream

pytestmark = pytest.mark.decision


def decoded(*pieces: bytes) -> list[EventStreamMessage]:
    """What botocore makes of a stream that arrives in these pieces."""
    buffer = EventStreamBuffer()
    found = []
    for piece in pieces:
        buffer.add_data(piece)
        found.extend(buffer)
    return found


def test_a_part_holds_the_models_bytes_as_they_are() -> None:
    data = os.urandom(3000)
    (message,) = decoded(eventstream.part(data))
    assert message.payload == data
    assert message.headers == {
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
        ":message-type": "event",
    }


def test_a_heartbeat_is_a_part_of_no_bytes() -> None:
    (message,) = decoded(eventstream.HEARTBEAT)
    assert (message.payload, message.headers[":event-type"]) == (b"", "PayloadPart")


def test_a_large_piece_becomes_several_parts() -> None:
    data = os.urandom(2 * eventstream.MAX_PAYLOAD + 7)
    messages = decoded(eventstream.part(data))
    assert [len(message.payload) for message in messages] == [eventstream.MAX_PAYLOAD, eventstream.MAX_PAYLOAD, 7]
    assert b"".join(message.payload for message in messages) == data


def test_an_exception_has_its_message_under_the_key_that_clients_read() -> None:
    (message,) = decoded(eventstream.exception("ModelStreamError", "it brøke", "StreamBroken"))
    assert message.headers[":message-type"] == "exception"
    assert message.headers[":exception-type"] == "ModelStreamError"
    assert json.loads(message.payload) == {"Message": "it brøke", "ErrorCode": "StreamBroken"}
    assert message.to_response_dict()["status_code"] == 400
    (internal,) = decoded(eventstream.exception("InternalStreamFailure", "gone"))
    assert json.loads(internal.payload) == {"Message": "gone"}


def test_frames_survive_being_cut_at_every_byte() -> None:
    """However TCP cuts the stream, the same messages come out; what ends inside a frame yields no message of its own."""
    frames = [eventstream.part(b"one"), eventstream.HEARTBEAT, eventstream.exception("ModelStreamError", "m", "StreamBroken")]
    stream = b"".join(frames)
    whole = [(message.headers, message.payload) for message in decoded(stream)]
    ends = [sum(len(frame) for frame in frames[: number + 1]) for number in range(len(frames))]
    for cut in range(len(stream) + 1):
        messages = decoded(stream[:cut], stream[cut:])
        assert [(message.headers, message.payload) for message in messages] == whole
        assert len(decoded(stream[:cut])) == sum(end <= cut for end in ends)
    assert len(decoded(*(stream[at : at + 1] for at in range(len(stream))))) == len(frames)
