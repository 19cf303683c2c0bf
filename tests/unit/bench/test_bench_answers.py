"""Reading answers: tokens and their moments, and every way in which an answer is none."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.bench.targets.answer import MOST_LINE, Facts, reader_of
from standby.bench.targets.words import MOST_SAID
from standby.bench.values import ErrorClass
from standby.sagemaker.runtime.eventstream import HEARTBEAT, exception, part

STREAM = b"text/event-stream; charset=utf-8"


def event(content: object) -> bytes:
    return b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n"


def token(text: str, reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]})


def read(body: bytes, *, status: int = 200, content_type: bytes = STREAM, size: int = 1 << 20) -> Facts:
    """Read a body in pieces; piece number n comes at second n."""
    facts = Facts()
    reader = reader_of(status, {b"content-type": content_type}, facts)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    for now, piece in enumerate(pieces):
        reader.feed(piece, float(now))
    reader.end(float(len(pieces)))
    return facts


def fed(*pieces: bytes) -> Facts:
    facts = Facts()
    reader = reader_of(200, {b"content-type": STREAM}, facts)
    for now, piece in enumerate(pieces):
        reader.feed(piece, float(now))
    reader.end(float(len(pieces)))
    return facts


def test_a_stream_gives_tokens_their_moments_and_the_usage() -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
    usage = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}})
    facts = fed(role, b": still waiting\n\n", token("a"), token("b"), token("", "stop"), usage, event(b"[DONE]"))
    assert (facts.error, facts.first_token_s, facts.gaps, facts.events) == ("", 2.0, [1.0], 2)
    assert (facts.prompt, facts.completion) == (7, 5)


@given(st.integers(1, 40))
def test_how_bytes_are_cut_changes_no_token(size: int) -> None:
    body = token("Paris ") + token("é\n\n") + token("is", "length") + event(b"[DONE]")
    facts = read(body, size=size)
    assert (facts.error, facts.events) == ("", 3)


@pytest.mark.parametrize("ends", [b"\n\n", b"\r\n\r\n"])
def test_lines_may_end_either_way(ends: bytes) -> None:
    assert read((token("a") + token("b", "stop")).replace(b"\n\n", ends)).events == 2


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (token("a") + event({"error": {"message": "engine died", "code": "x"}}), ErrorClass.STREAM_ERROR, "engine died"),
        (token("a"), ErrorClass.BROKEN_STREAM, "without a finish reason"),
        (b"", ErrorClass.EMPTY, "without a token"),
        (b": alive\n\n", ErrorClass.EMPTY, "without a token"),
        (event(b"[DONE]"), ErrorClass.EMPTY, "without a token"),
        (token("", "stop") + event(b"[DONE]"), ErrorClass.EMPTY, "without a token"),
        (event(b"<html>"), ErrorClass.RUBBISH, "no JSON: <html>"),
        (event(b"17"), ErrorClass.RUBBISH, "no object"),
        (token("a") + b'event: error\ndata: {"message": "out of memory"}\n\n', ErrorClass.STREAM_ERROR, "out of memory"),
        (token("a") + b'error: {"code": 500, "message": "slot lost"}\n\n', ErrorClass.STREAM_ERROR, "slot lost"),
        (b"data: " + b"x" * (MOST_LINE + 1), ErrorClass.RUBBISH, "longer than"),
        (event({"choices": "none"}) + event({"choices": [3, {"delta": 4}]}), ErrorClass.EMPTY, ""),
    ],
)
def test_streams_that_are_none(body: bytes, error: ErrorClass, words: str) -> None:
    facts = read(body)
    assert facts.error == error.value
    assert words in facts.message


def test_named_events_that_are_no_errors_are_read_like_any() -> None:
    """Some servers name all of their events."""
    body = b"event: message\n" + token("a") + b"event: message\n" + token("b", "stop")
    assert (read(body).error, read(body).events) == ("", 2)


@pytest.mark.parametrize("count", [-5, True, 1.5, "7", None, 10**30])
def test_a_usage_that_is_no_count_is_none(count: object) -> None:
    usage = event({"choices": [], "usage": {"prompt_tokens": count, "completion_tokens": count}})
    facts = read(token("a", "stop") + usage)
    assert (facts.error, facts.prompt, facts.completion) == ("", None, None)


def test_an_answer_that_is_compressed_unasked_is_named_as_such() -> None:
    facts = Facts()
    reader_of(200, {b"content-type": STREAM, b"content-encoding": b"gzip"}, facts)
    assert (facts.error, "compressed (gzip)" in facts.message) == (ErrorClass.RUBBISH.value, True)


def test_a_redirect_says_whereto() -> None:
    facts = Facts()
    reader_of(307, {b"location": b"https://elsewhere/v1"}, facts).end(1.0)
    assert (facts.error, facts.message) == (ErrorClass.RUBBISH.value, "HTTP 307 to https://elsewhere/v1: (no body)")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Incorrect API key provided: sk-abcdefghijklmnop.", "HTTP 401: Incorrect API key provided: ****."),
        ("\x1b[31mno\x1b[0m\r\nway\x07", "HTTP 401: no way"),
    ],
)
def test_what_a_server_says_is_fit_for_reports_and_terminals(said: str, told: str) -> None:
    """A server may repeat the key that it was shown; a terminal must not carry out what it says."""
    facts = read(json.dumps({"error": {"message": said}}).encode(), status=401)
    assert facts.message.split() == told.split()


def test_tokens_of_no_text_are_an_answer_where_the_engine_counts_them() -> None:
    usage = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}})
    facts = read(token("", "length") + usage + event(b"[DONE]"))
    assert (facts.error, facts.completion) == ("", 1)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"choices": [{"message": {"content": "Paris"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}, ""),
        ({"choices": [{"text": "Paris"}]}, ""),
        ([{"generated_text": "Paris"}], ""),
        ({"choices": [{"message": {"content": None, "tool_calls": [{"id": "1"}]}}]}, ""),
        ({"choices": [{"message": {"content": ""}}]}, ErrorClass.EMPTY.value),
        ({"error": {"message": "no"}}, ErrorClass.STREAM_ERROR.value),
        ({"object": "list"}, ErrorClass.RUBBISH.value),
        ([], ErrorClass.RUBBISH.value),
    ],
)
def test_whole_answers(body: object, error: str) -> None:
    facts = read(json.dumps(body).encode(), content_type=b"application/json", size=7)
    assert (facts.error, facts.first_token_s) == (error, None)


@pytest.mark.parametrize("body", [b"", b"  \n"])
def test_a_body_of_nothing_is_an_empty_answer(body: bytes) -> None:
    assert read(body, content_type=b"application/json").error == ErrorClass.EMPTY.value


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (429, b'{"error": {"message": "full"}}', ErrorClass.THROTTLED, "HTTP 429: full"),
        (503, b"", ErrorClass.SERVER, "(no body)"),
        (500, b"\xff\xfe", ErrorClass.SERVER, "HTTP 500"),
        (404, b'{"detail": "Not Found"}', ErrorClass.CLIENT, "Not Found"),
        (301, b"<html>", ErrorClass.RUBBISH, "HTTP 301"),
        (424, b'{"Message": "Received 500", "OriginalStatusCode": 500}', ErrorClass.SERVER, "HTTP 424: Received 500"),
        (424, b'{"Message": "Received 400", "OriginalStatusCode": 400}', ErrorClass.CLIENT, "Received 400"),
        (424, b"[]", ErrorClass.CLIENT, "HTTP 424"),
    ],
)
def test_refusals_count_by_their_status(status: int, body: bytes, error: ErrorClass, words: str) -> None:
    facts = read(body, status=status)
    assert facts.error == error.value
    assert words in facts.message


def test_frames_of_awss_event_stream_hold_the_lines() -> None:
    lines = token("a") + token("b") + token("c", "stop") + event(b"[DONE]")
    frames = HEARTBEAT.join(part(lines[at : at + 50]) for at in range(0, len(lines), 50))
    for size in (1, 13, 1 << 20):
        facts = read(frames, content_type=b"application/vnd.amazon.eventstream", size=size)
        assert (facts.error, facts.events) == ("", 3)


def test_a_frame_may_be_an_error_or_rubbish_or_cut_off() -> None:
    def of(body: bytes) -> tuple[str, str]:
        facts = read(body, content_type=b"application/vnd.amazon.eventstream")
        return facts.error, facts.message

    assert of(b"\x00" * 64)[0] == ErrorClass.RUBBISH.value
    assert of(part(token("a", "stop"))[:-1] + b"!")[0] == ErrorClass.RUBBISH.value
    assert of(part(token("a", "stop")) + HEARTBEAT[:-3])[0] == ErrorClass.BROKEN_STREAM.value
    broken = of(part(token("a")) + exception("ModelStreamError", "the engine died", "ModelInvocationError"))
    assert broken == (ErrorClass.STREAM_ERROR.value, "ModelStreamError: the engine died")


def test_containers_of_sagemaker_may_stream_lines_of_json() -> None:
    lines = [{"token": {"id": 1, "text": "Pa"}}, {"token": {"id": 2, "text": "ris"}}]
    last = {"token": {"id": 3, "text": "."}, "generated_text": "Paris.", "details": {"generated_tokens": 3}}
    body = b"".join(json.dumps(line).encode() + b"\n" for line in [*lines, last])
    facts = read(body, content_type=b"application/jsonlines")
    assert (facts.error, facts.events, facts.completion) == ("", 3, 3)


@given(st.binary(max_size=300), st.sampled_from([200, 404, 503]), st.integers(1, 50))
def test_no_bytes_whatever_raise_anything(body: bytes, status: int, size: int) -> None:
    for content_type in (STREAM, b"application/json", b"application/vnd.amazon.eventstream", b""):
        facts = read(body, status=status, content_type=content_type, size=size)
        assert facts.error or facts.events or content_type != STREAM


@given(st.lists(st.sampled_from([token("a"), token("b", "stop"), event(b"[DONE]"), event(b"{"), b": hi\n\n", b"data\n"])))
def test_no_sequence_of_events_raises_anything(events: list[bytes]) -> None:
    facts = fed(*itertools.chain(events))
    assert facts.events == sum(one in (token("a"), token("b", "stop")) for one in events)


def test_a_key_is_masked_before_what_holds_it_is_cut() -> None:
    """Of a key that is cut in two the first half would be told."""
    facts = read(b"x" * (MOST_SAID - 10) + b" sk-abcdefghijklmnopqrstuvwxyz", status=401, content_type=b"text/plain")
    assert len(facts.message) <= MOST_SAID
    assert "sk-" not in facts.message
