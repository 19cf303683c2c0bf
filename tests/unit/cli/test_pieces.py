"""The pure pieces of the commands: request bodies, texts of answers, errors of replies, progress, doctor's checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from standby.cli import doctor
from standby.cli.client import error_class, raise_for_error
from standby.cli.doctor import Verdict
from standby.cli.invoke import request_body, text_of
from standby.cli.models import parse_option, segment
from standby.cli.progress import Climb, describe
from standby.cli.waiting import failed, reached
from standby.domain.errors import (
    ConfigurationError,
    EmptySource,
    EngineStartFailed,
    InvalidInput,
    NotAuthenticated,
    ProbeFailed,
    StandbyError,
    Unavailable,
)


def test_a_prompt_becomes_one_chat_message() -> None:
    body = json.loads(request_body("hi", None, stream=True, max_tokens=5))

    assert body == {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 5}


def test_a_body_is_passed_on_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(b'{ "prompt" : "x" }')

    assert request_body(None, str(path), stream=False, max_tokens=None) == b'{ "prompt" : "x" }'
    assert json.loads(request_body(None, str(path), stream=True, max_tokens=None)) == {"prompt": "x", "stream": True}


@pytest.mark.parametrize(
    ("prompt", "content", "words"),
    [
        (None, None, "exactly one of --prompt and --body"),
        ("x", b"{}", "exactly one of --prompt and --body"),
        (None, b"{", "is not JSON"),
        (None, b"[1]", "holds a JSON list"),
    ],
)
def test_wrong_bodies_are_refused(tmp_path: Path, prompt: str | None, content: bytes | None, words: str) -> None:
    path = tmp_path / "body"
    path.write_bytes(content or b"")

    with pytest.raises(InvalidInput, match=words):
        request_body(prompt, None if content is None else str(path), stream=True, max_tokens=None)


def test_a_missing_body_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere' cannot be read: No such file"):
        request_body(None, str(tmp_path / "nowhere"), stream=False, max_tokens=None)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"choices": [{"message": {"content": "Paris"}}]}, "Paris"),
        ({"choices": [{"delta": {"content": "Pa"}}]}, "Pa"),
        ({"choices": [{"delta": {}}]}, ""),
        ({"choices": [{"text": "Paris"}]}, "Paris"),
        ({"generated_text": "Paris"}, "Paris"),
        ({"choices": []}, None),
        ({"other": 1}, None),
        ([1], None),
    ],
)
def test_the_text_is_found_in_every_form(content: Any, text: str | None) -> None:
    assert text_of(content) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [("n=3", 3), ("n=1.5", 1.5), ("n=true", True), ("n=False", False), ("n=a=b", "a=b"), ("n=", "")],
)
def test_options_have_types(text: str, value: object) -> None:
    name, parsed = parse_option(text)

    assert (name, parsed, type(parsed)) == ("n", value, type(value))


@pytest.mark.parametrize("text", ["n", "=3", ""])
def test_an_option_needs_a_name_and_a_value(text: str) -> None:
    with pytest.raises(InvalidInput, match="name=value"):
        parse_option(text)


def test_a_name_is_one_segment_of_a_path() -> None:
    assert segment("../keys?x") == "..%2Fkeys%3Fx"


def reply(**error: object) -> bytes:
    return json.dumps({"error": {"message": "m", **error}}).encode()


@pytest.mark.parametrize(
    ("status", "content", "kind"),
    [
        (422, reply(code="empty_source"), EmptySource),
        (401, reply(code="unheard_of"), NotAuthenticated),
        (400, reply(code=17), InvalidInput),
        (503, b"<html>", Unavailable),
        (418, b"", StandbyError),
    ],
)
def test_replies_become_errors_of_the_tree(status: int, content: bytes, kind: type[StandbyError]) -> None:
    with pytest.raises(StandbyError) as error:
        raise_for_error(status, content)
    assert type(error.value) is kind


def test_the_remedy_is_told_once() -> None:
    with pytest.raises(StandbyError) as error:
        raise_for_error(400, reply(message="it failed; mend it", remedy="mend it"))
    assert (error.value.message, error.value.remedy) == ("it failed", "mend it")


def test_every_code_has_one_class() -> None:
    assert error_class("probe_failed", 502) is ProbeFailed
    assert error_class(None, 502).http_status == 502


def test_a_components_own_class_never_stands_for_a_code() -> None:
    """It inherits the code of the class above it, and may be made from something else than words."""

    class MadeFromNumbers(ProbeFailed):
        def __init__(self, number: int) -> None:
            super().__init__(f"number {number + 1}")

    assert str(MadeFromNumbers(1)) == "number 2"
    assert error_class("probe_failed", 502) is ProbeFailed


def view(**changes: Any) -> dict[str, Any]:
    variants = [{"policy": {"min_ready": changes.pop("min_ready", 0)}}]
    return {"name": "e", "status": "InService", "rung": "cold", "variants": variants, "instances": [], **changes}


def test_what_a_wait_waits_for() -> None:
    assert reached(view(), None)
    assert not reached(view(status="Updating"), None)
    assert not reached(view(min_ready=1), None)
    assert reached(view(min_ready=1, instances=[{"state": "ready"}]), None)
    assert not reached(view(min_ready=1, instances=[{"state": "draining"}]), None)
    assert reached(view(), "cold")
    assert reached(view(rung="asleep", instances=[{"state": "asleep"}]), "asleep")
    assert not reached(view(rung="asleep", instances=[{"state": "suspending"}]), "asleep")
    assert not reached(view(rung="staged", instances=[{"state": "starting"}]), "staged")
    assert not reached(view(rung="ready", instances=[{"state": "ready"}]), "asleep")


def test_a_failure_is_told_with_the_engines_own_words() -> None:
    failure = {"reason": "exit code 1", "first_error": "no such tensor", "log_tail": ["a", "b"], "code": ""}

    error = failed(view(status="Failed", failure=failure))

    assert isinstance(error, EngineStartFailed)
    assert error.message.splitlines() == [
        "endpoint 'e' failed: exit code 1",
        "first error: no such tensor",
        "the log ends:",
        "  a",
        "  b",
    ]
    assert error.exit_code == 9


def test_events_in_words() -> None:
    assert describe({"kind": "transition", "after": "waking"}) == "waking"
    assert (
        describe({"kind": "activation", "ok": True, "activation": {"phases_ms": {"loaded": 40.4, "probed": 10}}})
        == "ready after 50 ms"
    )
    assert describe({"kind": "activation", "ok": False, "error": "exit code 1"}) == "the climb failed: exit code 1"
    assert describe({"kind": "decision", "action": "wake", "reason": "one waits"}) == "wake: one waits"
    assert describe({"kind": "notice", "message": "x"}) is None


def test_progress_says_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with Climb() as climb:
        climb.feed({"kind": "fetch", "digest": "d" * 64, "done_bytes": 1, "total_bytes": 2})
        climb.note("waking")

    assert capsys.readouterr() == ("", "")


def test_progress_shows_the_download_and_then_the_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with Climb(shown=True) as climb:
        climb.feed({"kind": "fetch", "digest": "d" * 64, "done_bytes": 1, "total_bytes": 2})
        climb.feed({"kind": "transition", "after": "starting"})

    shown = capsys.readouterr()
    assert shown.out == ""
    assert "downloading dddddddddddd" in shown.err
    assert "starting the engine" in shown.err


def test_an_old_python_is_missing_something() -> None:
    assert doctor.check_python((3, 10, 1)).verdict is Verdict.MISSING
    assert doctor.check_python((3, 11, 0)).verdict is Verdict.OK


def test_a_missing_program_is_needed_or_not() -> None:
    def find() -> Path:
        raise ConfigurationError("no", remedy="pip install it")

    assert doctor.check_binary("x", find, needed=True, use="y").verdict is Verdict.MISSING
    absent = doctor.check_binary("x", find, needed=False, use="the demo")
    assert (absent.verdict, absent.detail, absent.remedy) == (Verdict.ABSENT, "not found; for the demo", "pip install it")


def test_a_missing_package_is_named() -> None:
    finding = doctor.check_package("engine", "no_such_package_here", "pip install it")

    assert (finding.verdict, finding.detail, finding.remedy) == (
        Verdict.MISSING,
        "no package no_such_package_here",
        "pip install it",
    )


def test_too_little_is_said_in_figures() -> None:
    assert doctor.check_amount("memory", 1_000_000, 2_000_000, "buy").detail == "1.0 MB, needs 2.0 MB"
    assert doctor.check_amount("memory", 2_000_000, 2_000_000, "buy").verdict is Verdict.OK


def test_a_state_folder_is_tried_for_real(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    assert doctor.check_state_folder(tmp_path / "new" / "deep").verdict is Verdict.OK
    assert not (tmp_path / "new").exists()
    assert doctor.check_state_folder(Path("/proc/1")).verdict is Verdict.MISSING
