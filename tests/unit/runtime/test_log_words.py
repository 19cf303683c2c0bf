"""An engine's log: the first error line, the tail, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from standby.runtime.log_words import first_error_line, last_lines, log_lines, mask


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


@pytest.mark.parametrize(
    "line",
    [
        "Transient error ConnectionError(...) encountered while exporting spans batch, retrying in 1.05s.",
        "Failed to export spans batch due to timeout, max retries or shutdown.",
        "Failed to export span batch code: 503, reason: ",
    ],
)
def test_a_collector_that_is_away_is_no_cause(line: str) -> None:
    assert first_error_line([line, "RuntimeError: out of memory"]) == "RuntimeError: out of memory"


def test_of_a_traceback_the_exception_is_taken() -> None:
    lines = ["Traceback (most recent call last):", '  File "x.py", line 1, in <module>', "    boom()", "OSError: disk on fire"]
    assert first_error_line(lines) == "OSError: disk on fire"


CORE: str = "(EngineCore pid=12) ERROR 11-29 22:23:57 [core.py:1510] "
API: str = "(APIServer pid=11) WARNING 11-29 22:23:56 [system_utils.py:255] "


def test_a_warning_that_names_an_error_does_not_hide_the_error() -> None:
    """vLLM warns of a low limit of files at every start; the failed start's own words come later."""
    lines = [
        f"{API}Found ulimit of 20000 and failed to automatically increase. Can cause `OSError: [Errno 24]`.",
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in <module>',
        "OSError: config.json is not a valid JSON file.",
    ]
    assert first_error_line(lines) == "OSError: config.json is not a valid JSON file."
    assert "ulimit" in first_error_line(lines[:1]), "better than nothing"


def test_of_a_traceback_that_is_logged_line_by_line_the_exception_is_taken() -> None:
    lines = [
        f"{CORE}EngineCore failed to start.",
        f"{CORE}Traceback (most recent call last):",
        f'{CORE}  File "core.py", line 1482, in run_engine_core',
        f"{CORE}    engine_core = EngineCoreProc()",
        f"{CORE}RuntimeError: Cannot find any model weights with `/models/x`",
        "Traceback (most recent call last):",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
    ]
    assert first_error_line(lines) == "RuntimeError: Cannot find any model weights with `/models/x`"


def test_an_exception_that_only_announces_its_words_is_taken_with_them() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in <module>',
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, model type `nosuch` is not known. [type=value_error]",
    ]
    assert first_error_line(lines).endswith(
        "1 validation error for ModelConfig Value error, model type `nosuch` is not known. [type=value_error]"
    )


def test_a_line_of_another_process_within_a_traceback_is_not_taken_for_its_exception() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in <module>',
        "(EngineCore pid=12) INFO 11-29 22:23:57 [core.py:133] Initializing an engine with config: model='/m'",
        "[W1129 22:23:57.115 utils.cpp:68] Warning: NUMA binding: MEMBIND (function operator())",
        "    boom()",
        "ValueError: no tokenizer",
    ]
    assert first_error_line(lines) == "ValueError: no tokenizer"


def test_an_exception_that_led_to_another_is_taken_with_it() -> None:
    """The first says what is wrong, the second often where."""
    lines = [
        "Traceback (most recent call last):",
        '  File "decoder.py", line 355, in raw_decode',
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "config.py", line 886, in read',
        "OSError: '/models/x/config.json' is not a valid JSON file.",
    ]
    assert first_error_line(lines) == (
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
        "; then OSError: '/models/x/config.json' is not a valid JSON file."
    )


@pytest.mark.timeout(10)
def test_an_endless_line_is_looked_through_in_no_time() -> None:
    assert first_error_line(["2026-11" + "-: " * 80_000]) == ""


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-29 22:23:57,115 - ERROR - cannot load /m",
        "[2026-11-29 22:23:57] [ERROR] cannot load /m",
        "ERROR: cannot load /m",
        "[ERROR] cannot load /m",
        "(Worker_TP0 pid=3) ERROR 11-29 22:23:57 [core.py:15] cannot load /m",
    ],
)
def test_what_programs_write_before_a_line_is_left_out(line: str) -> None:
    assert first_error_line([line.replace("ERROR", "INFO"), line]) == "cannot load /m"


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


def test_the_last_lines_begin_with_a_whole_one(tmp_path: Path) -> None:
    """A secret whose name was cut off would not be known as one."""
    log = tmp_path / "engine.log"
    log.write_text("token=hf_ABCDEFGHIJKLMNOP\n" + "\n".join(f"line {number}" for number in range(10)) + "\n")
    assert last_lines(log, 3, 1000) == (("line 7", "line 8", "line 9"), True)
    assert last_lines(log, 100, 80) == (tuple(f"line {number}" for number in range(10)), True)
    assert last_lines(log, 100, 1000)[0][0] == "token=****"
    assert last_lines(log, 11, 1000)[1] is False
    assert last_lines(log, 0, 1000) == ((), True)


def test_control_characters_never_reach_a_terminal(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"\x1b[31merror\x1b[0m: \x07no\xff luck\x1b]0;title\x07\tend\n")
    (line,), _ = last_lines(log, 5, 1000)
    assert line == "error: no\ufffd luck]0;title\tend"
    assert first_error_line(["\x1b[31merror\x1b[0m: no luck"]) == "error: no luck"
