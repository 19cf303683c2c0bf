"""An engine's events as LMI's and TGI's lines, cut anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from standby.domain.aws import AwsKind, AwsResource
from standby.sagemaker.runtime.dialects import LMI, TGI, Declared, Dialect, Family, Lines, dialect
from standby.sagemaker.runtime.lines import MAX_EVENT, LineWriter

pytestmark = pytest.mark.decision


def event(**content: Any) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def chunk(text: str, finish: str | None = None, **more: Any) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish, **more}])


STREAM = (
    chunk("Grüße")
    + b": a comment\n\n"
    + chunk(" 👋")
    + chunk("", "stop")
    + event(choices=[], usage={"completion_tokens": 7})
    + b"data: [DONE]\n\n"
)


def written(writer: LineWriter, *pieces: bytes) -> bytes:
    return b"".join([*(writer.feed(piece) for piece in pieces), writer.end()])


def test_lmi_lines() -> None:
    lines = written(LineWriter(LMI, 1000), STREAM).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"token": {"id": None, "text": "Grüße", "log_prob": None}},
        {"token": {"id": None, "text": " 👋", "log_prob": None}},
        {
            "token": {"id": None, "text": "", "log_prob": None},
            "generated_text": "Grüße 👋",
            "details": {"finish_reason": "eos_token", "generated_tokens": 7, "inputs": None},
        },
    ]


def test_tgi_events() -> None:
    events = written(LineWriter(TGI, 1000, prefix="> "), STREAM).decode().split("\n\n")
    assert events.pop() == ""
    first, _, last = (json.loads(one.removeprefix("data:")) for one in events)
    assert first == {
        "index": 1,
        "token": {"id": None, "text": "Grüße", "logprob": None, "special": False},
        "generated_text": None,
        "details": None,
    }
    assert last["generated_text"] == "> Grüße 👋"
    assert last["details"] == {"finish_reason": "eos_token", "generated_tokens": 7, "seed": None}


def test_every_cut_yields_the_same_lines_and_no_token_waits() -> None:
    whole = written(LineWriter(LMI, 1000), STREAM)
    for cut in range(len(STREAM) + 1):
        assert written(LineWriter(LMI, 1000), STREAM[:cut], STREAM[cut:]) == whole
    assert LineWriter(LMI, 1000).feed(chunk("now")).endswith(b"\n")
    crlf = STREAM.replace(b"\n", b"\r\n")
    assert written(LineWriter(LMI, 1000), *(crlf[at : at + 1] for at in range(len(crlf)))) == whole


def test_a_last_chunk_with_text_ends_the_answer_in_one_line() -> None:
    lines = written(LineWriter(LMI, 1000), chunk("a") + chunk("b", "length")).splitlines()
    assert json.loads(lines[-1])["token"]["text"] == "b"
    assert json.loads(lines[-1])["generated_text"] == "ab"
    assert json.loads(lines[-1])["details"]["generated_tokens"] == 2


@pytest.mark.parametrize(
    ("logprobs", "token"),
    [
        ({"tokens": ["a"], "token_logprobs": [-0.5]}, (None, -0.5)),
        ({"content": [{"id": 42, "token": "a", "logprob": -0.25}]}, (42, -0.25)),
    ],
    ids=["vllm", "llama.cpp"],
)
def test_ids_and_probabilities_are_told_where_the_engine_tells_them(
    logprobs: dict[str, Any], token: tuple[int | None, float]
) -> None:
    line = json.loads(LineWriter(LMI, 1000).feed(chunk("a", logprobs=logprobs)))
    assert (line["token"]["id"], line["token"]["log_prob"]) == token


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (chunk("a"), "without a finish reason"),
        (chunk("a") + b"data: [DONE]\n\n", "without a finish reason"),
        (chunk("a") + event(error={"message": "out of memory"}), "out of memory"),
        (chunk("a") + b"data: {nonsense\n\n", "not JSON"),
        (chunk("a") + b"data: 3\n\n", "no JSON object"),
        (chunk("a") + chunk("b" * 1001), "longer than 1000"),
        (chunk("a") + b"data: " + b"x" * (MAX_EVENT + 1), "more than"),
    ],
)
def test_an_answer_that_is_no_whole_one_never_looks_whole(stream: bytes, words: str) -> None:
    writer = LineWriter(LMI, 1000)
    pieces = (stream,) if "finish" in words else (stream, chunk("late", "stop"))
    lines = written(writer, *pieces)
    assert b"generated_text" not in lines
    assert b"late" not in lines
    assert writer.failure is not None
    assert words in writer.failure


def test_a_broken_answer_ends_in_the_dialects_own_words() -> None:
    assert json.loads(LineWriter(TGI, 9).error("it died", "ModelError").removeprefix(b"data:")) == {
        "error": "it died",
        "error_type": "ModelError",
    }
    line = json.loads(LineWriter(LMI, 9).error("it died", "ModelError"))
    assert (line["error"], line["details"]["finish_reason"]) == ("it died", "error")


@pytest.mark.parametrize(
    ("environment", "image", "accept", "expected"),
    [
        ({}, "", None, LMI),
        ({}, "", b"application/jsonlines", LMI),
        ({}, "", b"text/event-stream", TGI),
        ({"STANDBY_OUTPUT": "TGI"}, "", b"application/jsonlines", TGI),
        ({"OPTION_TGI_COMPAT": "true"}, "", None, TGI),
        ({"OPTION_OUTPUT_FORMATTER": "jsonlines"}, "", b"text/event-stream", LMI),
        ({"OPTION_OUTPUT_FORMATTER": "sse"}, "", None, Dialect(Family.LMI, Lines.SSE)),
        ({}, "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-tgi-inference:2.4", None, TGI),
        ({"STANDBY_OUTPUT": "lmi"}, "x/huggingface-pytorch-tgi-inference:2.4", None, LMI),
    ],
)
def test_who_decides_the_dialect(environment: dict[str, str], image: str, accept: bytes | None, expected: Dialect) -> None:
    assert dialect(environment, image, accept) == expected


def test_what_clients_declared_is_the_tenants_own() -> None:
    class Entry:
        def __init__(self, value: AwsResource) -> None:
            self.value = value

    class Copy:
        def __init__(self, *records: AwsResource) -> None:
            self.entries = {f"{one.tenant}.{one.kind.value}.{one.name}": Entry(one) for one in records}

    times = {"created_at": 1.0, "modified_at": 1.0}
    container = {"Environment": {"STANDBY_OUTPUT": "tgi"}}
    copy = Copy(
        AwsResource(tenant="1", kind=AwsKind.MODEL, name="m", request={"PrimaryContainer": container}, **times),
        AwsResource(tenant="1", kind=AwsKind.MODEL, name="list", request={"Containers": [container]}, **times),
        AwsResource(tenant="1", kind=AwsKind.ENDPOINT, name="e", tags={"standby:heartbeat": "10s"}, **times),
    )
    declared = Declared(copy)
    assert [declared.dialect("1", name, None) for name in ("m", "list", "other")] == [TGI, TGI, LMI]
    assert declared.dialect("2", "m", None) == LMI
    assert [declared.heartbeat("1", "e"), declared.heartbeat("2", "e")] == ["10s", None]
    assert Declared(None).dialect("1", "m", None) == LMI
