"""The soak's judge finds what it is there to find."""

from __future__ import annotations

import json

import httptools
import pytest

from support.soak.endings import Kind, Seen, Verdict, feed, judge


def sse(*contents: object) -> bytes:
    """A stream of events; a string is a token, everything else is sent as it is."""
    events = [{"choices": [{"delta": {"content": one}}]} if isinstance(one, str) else one for one in contents]
    return b"".join(b"data: " + (b"[DONE]" if one is None else json.dumps(one).encode()) + b"\n\n" for one in events)


def seen(body: bytes, *, status: int = 200, endings: int = 1) -> Seen:
    return Seen(status=status, body=body, endings=endings)


ERROR = {"error": {"message": "m", "code": "c"}}


@pytest.mark.decision
@pytest.mark.parametrize(
    ("events", "endings", "verdict"),
    [
        (("n:0", " n:1", None), 1, Verdict.OK),
        (("n:0", None), 1, Verdict.ODD),
        (("n:0", " n:1"), 1, Verdict.ODD),
        (("n:0", ERROR), 1, Verdict.EXPLICIT),
        ((ERROR,), 1, Verdict.EXPLICIT),
        (("n:0", ERROR, None), 1, Verdict.ODD),
        (("n:0", ERROR, ERROR), 1, Verdict.ODD),
        (("n:0",), 0, Verdict.CUT),
        (("n:0", " n:0", None), 1, Verdict.SPLICED),
        (("n:0", " n:2", None), 1, Verdict.SPLICED),
        (("n:0", " o:1", None), 1, Verdict.SPLICED),
        (("n:0", " n:1", None), 2, Verdict.DOUBLE),
    ],
)
def test_streams(events: tuple[object, ...], endings: int, verdict: Verdict) -> None:
    assert judge(Kind.OPENAI_STREAM, "n", 2, seen(sse(*events), endings=endings))[0] is verdict


@pytest.mark.decision
@pytest.mark.parametrize(
    ("kind", "answer", "verdict"),
    [
        (Kind.OPENAI, seen(b'{"choices": [{"message": {"content": "n:0 n:1"}}]}'), Verdict.OK),
        (Kind.OPENAI, seen(b'{"choices": [{"message": {"content": "n:0 n:', endings=0), Verdict.CUT),
        (Kind.OPENAI, seen(b'{"error": {"message": "m"}}', status=503), Verdict.EXPLICIT),
        (Kind.OPENAI, seen(b"Internal Server Error", status=500), Verdict.ODD),
        (Kind.INVOKE, seen(b'{"error": {"message": "m"}}', status=503), Verdict.ODD),
        (Kind.INVOKE, seen(b'{"__type": "ServiceUnavailable"}', status=503), Verdict.EXPLICIT),
        (Kind.INVOKE, Seen(), Verdict.CUT),
    ],
)
def test_whole_answers(kind: Kind, answer: Seen, verdict: Verdict) -> None:
    assert judge(kind, "n", 2, answer)[0] is verdict


@pytest.mark.decision
def test_what_comes_behind_an_answer_is_seen() -> None:
    answer = Seen()
    parser = httptools.HttpResponseParser(answer)
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    feed(parser, answer, whole)
    feed(parser, answer, whole)
    assert (answer.status, answer.endings, answer.surplus) == (200, 1, whole)
    assert judge(Kind.OPENAI, "n", 1, answer)[0] is Verdict.DOUBLE
