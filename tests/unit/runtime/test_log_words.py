"""An engine's log: the first error line, the tail, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from standby.runtime.log_words import first_error_line, log_lines, mask


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer ****"),
        ("api_key=verysecret next", "api_key=**** next"),
        ('{"hf_token": "abcdefgh"}', '{"hf_token": "****"}'),
        ("AWS_SECRET_ACCESS_KEY=abc/def+ghi", "AWS_SECRET_ACCESS_KEY=****"),
        ("pull https://user:pass1234@host/x", "pull https://user:****@host/x"),
        ("key sk-0123456789abcdef used", "key **** used"),
        ("id AKIAIOSFODNN7EXAMPLE", "id ****"),
        ("token hf_ABCDEFGHIJKLMNOP", "token ****"),
        ("loaded 30 layers, 8192 tokens: ok", "loaded 30 layers, 8192 tokens: ok"),
        ("n_tokens = 8192", "n_tokens = 8192"),
    ],
)
def test_secrets_are_masked_and_nothing_else(text: str, masked: str) -> None:
    assert mask(text) == masked


def test_the_first_error_line_is_taken_and_not_the_summary_at_the_end() -> None:
    """A last line that says "see above" names no cause (field case B60)."""
    lines = ["loading", "E load: tensor 'output' not found", "more", "error: start failed, see root cause above"]
    assert first_error_line(lines) == "E load: tensor 'output' not found"


def test_of_a_traceback_the_exception_is_taken() -> None:
    lines = ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "    boom()", "OSError: disk on fire"]
    assert first_error_line(lines) == "OSError: disk on fire"


def test_a_log_without_errors_has_no_error_line() -> None:
    assert first_error_line(["all is well"]) == ""


def test_the_tail_is_the_last_twenty_lines(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("\n".join(f"line {number}" for number in range(100)) + "\npassword=hunter22\n\n")
    _, tail = log_lines(log)
    assert len(tail) == 20
    assert tail[-2:] == ("line 99", "password=****")


def test_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert log_lines(tmp_path / "none") == ([], ())
