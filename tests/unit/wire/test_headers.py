"""The words of the contract between gateway and door."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from standby.wire.headers import Refusal, header_lines, listed_in_connection, status_line
from standby.wire.sse import error_event

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (Refusal.FULL, 429),
        (Refusal.DRAINING, 503),
        (Refusal.BAD_TOKEN, 503),
        (Refusal.STALE_EPOCH, 409),
        (Refusal.UNKNOWN_INSTANCE, 409),
    ],
)
def test_refusal_has_a_status(refusal: Refusal, status: int) -> None:
    assert refusal.status == status


def test_status_line_knows_phrases_and_does_without() -> None:
    assert status_line(404) == b"HTTP/1.1 404 Not Found\r\n"
    assert status_line(599) == b"HTTP/1.1 599 \r\n"


def test_header_lines_end_each_with_crlf() -> None:
    assert header_lines([(b"a", b"1"), (b"b", b"2")]) == b"a: 1\r\nb: 2\r\n"
    assert header_lines([]) == b""


def test_connection_header_names_what_belongs_to_one_hop() -> None:
    assert listed_in_connection(b"Keep-Alive, X-Hop ,close,") == {b"x-hop"}


@pytest.mark.parametrize(
    ("tail", "prefix"),
    [(b"", b""), (b"data: 1\n\n", b""), (b"data: 1\r\n\r\n", b""), (b"data: {", b"\n\n"), (b"data: 1\n", b"\n\n")],
)
def test_error_event_stands_alone(tail: bytes, prefix: bytes) -> None:
    """An error inside an unfinished event would be read as part of that event's text (field case B26)."""
    event = error_event("engine_died", 'it said "no"\n\ntwice', tail)
    assert event.startswith(prefix + b"data: ")
    assert event.endswith(b"\n\n")
    payload = event.removeprefix(prefix).removeprefix(b"data: ").rstrip(b"\n")
    assert b"\n" not in payload
    assert json.loads(payload)["error"] == {
        "message": 'it said "no"\n\ntwice',
        "type": "engine_error",
        "code": "engine_died",
        "param": None,
    }


def test_every_header_of_ours_is_named_in_one_place() -> None:
    """Gateway, bench and commands would otherwise drift apart one literal at a time."""
    sources = (path for part in ("platform", "controller", "runtime", "warm_pool") for path in (ROOT / part).rglob("*.py"))
    naming = [path.name for path in sources if '"x-standby-' in path.read_text(encoding="utf-8")]
    assert naming == ["headers.py"]
