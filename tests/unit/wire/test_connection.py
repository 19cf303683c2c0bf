"""The client connection without sockets: bytes in, calls of its sink out."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.wire.connection import HEAD_LIMIT, Loss, ResponseHead, WireConnection


class Transport:
    """What a connection does to its transport."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = False
        self.reading = True
        self.unsent = 0

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Sink:
    """Records what it is told."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.body = b""
        self.ends = 0
        self.losses: list[Loss] = []
        self.writable: list[bool] = []

    def on_head(self, head: ResponseHead) -> None:
        assert self.head is None
        self.head = head

    def on_body(self, data: bytes, last: bool) -> None:
        assert self.head is not None
        self.body += data
        self.ends += last

    def on_lost(self, loss: Loss) -> None:
        self.losses.append(loss)

    def on_writable(self, writable: bool) -> None:
        self.writable.append(writable)


def begun(*, reuse_chunked: bool = True) -> tuple[WireConnection, Transport, Sink]:
    """Return a connection on which a request has been sent."""
    connection, transport, sink = WireConnection(reuse_chunked=reuse_chunked), Transport(), Sink()
    connection.connection_made(cast("asyncio.Transport", transport))
    connection.start(sink, b"GET / HTTP/1.1\r\n\r\n")
    return connection, transport, sink


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nX-Standby-Refused: full\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n2\r\nde\r\n0\r\nx-standby-engine-error: died\r\n\r\n"
)


@given(cuts=st.lists(st.integers(min_value=1, max_value=60), min_size=1, max_size=20), answer=st.sampled_from([PLAIN, CHUNKED]))
def test_cuts_between_bytes_change_nothing(cuts: list[int], answer: bytes) -> None:
    connection, _, sink = begun()
    position = turn = 0
    while position < len(answer):
        size = cuts[turn % len(cuts)]
        connection.data_received(answer[position : position + size])
        position, turn = position + size, turn + 1
    assert sink.body in (b"hello", b"abcde")
    assert sink.ends == 1
    assert sink.losses == []
    assert connection.reusable


def test_head_separates_framing_marks_and_headers() -> None:
    connection, _, sink = begun()
    connection.data_received(PLAIN)
    assert sink.head is not None
    assert sink.head.headers == [(b"content-type", b"text/plain")]
    assert sink.head.marks == {b"x-standby-refused": b"full"}
    assert (sink.head.content_length, sink.head.chunked, sink.head.event_stream) == (5, False, False)


def test_trailer_tells_the_doors_fault() -> None:
    connection, _, sink = begun()
    connection.data_received(CHUNKED)
    assert sink.head is not None
    assert sink.head.event_stream
    assert connection.trailer_fault == b"died"
    connection.start(sink, b"")
    assert connection.trailer_fault == b""


@pytest.mark.parametrize(
    ("answer", "reuse_chunked", "reusable"),
    [
        (PLAIN, False, True),
        (CHUNKED, True, True),
        (CHUNKED, False, False),
        (PLAIN.replace(b"X-Standby-Refused: full", b"Connection: close"), True, False),
        (PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"), True, False),
        (PLAIN + b"HTTP/1.1 200 OK\r\n", True, False),
    ],
)
def test_reuse_after_an_answer(answer: bytes, reuse_chunked: bool, reusable: bool) -> None:
    connection, _, sink = begun(reuse_chunked=reuse_chunked)
    connection.data_received(answer)
    assert sink.ends == 1
    assert connection.reusable is reusable


def test_unsent_request_bytes_forbid_reuse() -> None:
    connection, transport, _ = begun()
    transport.unsent = 1
    connection.data_received(PLAIN)
    assert not connection.reusable


def test_bytes_that_nobody_asked_for_close_an_idle_connection() -> None:
    connection, transport, _ = begun()
    connection.data_received(PLAIN)
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    assert transport.aborted
    assert not connection.reusable


def test_end_of_connection_ends_only_a_body_without_a_length() -> None:
    connection, _, sink = begun()
    connection.data_received(b"HTTP/1.0 200 OK\r\n\r\nabc")
    connection.eof_received()
    assert (sink.body, sink.ends, sink.losses) == (b"abc", 1, [])
    connection, _, sink = begun()
    connection.data_received(PLAIN[:-1])
    connection.eof_received()
    connection.connection_lost(None)
    assert (sink.body, sink.ends, sink.losses) == (b"hell", 0, [Loss.CLOSED])


def test_reset_never_ends_a_body() -> None:
    connection, _, sink = begun()
    connection.data_received(b"HTTP/1.0 200 OK\r\n\r\nabc")
    connection.connection_lost(ConnectionResetError())
    assert (sink.ends, sink.losses) == (0, [Loss.RESET])


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * HEAD_LIMIT,
    ],
)
def test_what_is_not_http_is_lost(answer: bytes) -> None:
    connection, transport, sink = begun()
    connection.data_received(answer)
    assert sink.losses == [Loss.MALFORMED]
    assert transport.aborted


def test_bytes_before_a_malformed_chunk_are_handed_over() -> None:
    connection, _, sink = begun()
    connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
    connection.data_received(b"2\r\nde\r\nzz\r\n")
    assert (sink.body, sink.ends, sink.losses) == (b"abcde", 0, [Loss.MALFORMED])


def test_interim_heads_are_skipped() -> None:
    connection, _, sink = begun()
    connection.data_received(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + PLAIN)
    assert sink.head is not None
    assert (sink.head.status, sink.body, sink.ends) == (200, b"hello", 1)


def test_abort_is_silent() -> None:
    connection, transport, sink = begun()
    connection.abort()
    connection.connection_lost(None)
    assert transport.aborted
    assert sink.losses == []


def test_backpressure_reaches_the_sink_only_while_there_is_one() -> None:
    connection, transport, sink = begun()
    connection.pause_writing()
    connection.resume_writing()
    connection.pause()
    assert not transport.reading
    connection.resume()
    assert transport.reading
    connection.data_received(PLAIN)
    connection.pause_writing()
    assert sink.writable == [False, True]
