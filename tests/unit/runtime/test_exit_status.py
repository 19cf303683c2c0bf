"""How an engine ended is said in words that lead to the cause (field case B60)."""

from __future__ import annotations

import pytest

from standby.runtime.exit_status import ExitStatus


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (0, "exit code 0"),
        (1, "exit code 1"),
        (-9, "killed by signal 9 (SIGKILL)"),
        (-15, "killed by signal 15 (SIGTERM)"),
        (-7, "killed by signal 7 (SIGBUS): weights file vanished under the engine"),
        (-4, "killed by signal 4 (SIGILL): the engine used an instruction that this processor lacks"),
        (137, "exit code 137 (a process of the engine was killed by SIGKILL): usually out of memory"),
        (135, "exit code 135 (a process of the engine was killed by SIGBUS): weights file vanished under the engine"),
        (255, "exit code 255"),
        (-63, "killed by signal 63 (unknown)"),
    ],
)
def test_words(returncode: int, words: str) -> None:
    assert ExitStatus.of(returncode).words == words


def test_only_exit_code_zero_is_ok() -> None:
    assert [ExitStatus.of(code).ok for code in (0, 1, -9)] == [True, False, False]
