"""How an engine ended is said in words that lead to the cause (field case B60)."""

from __future__ import annotations

import pytest

from standby.runtime.exit_status import ExitStatus, OutOfMemory


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


MIB = 2**20


@pytest.mark.parametrize(
    ("returncode", "remedy"),
    [
        (-4, "set dtype float32"),
        (132, "set dtype float32"),
        (-7, "fetch it again"),
        (-9, "usually out of memory"),
        (137, "oom-kill"),
        (-11, "a fault of the engine itself"),
        (139, "a fault of the engine itself"),
    ],
)
def test_what_to_do(returncode: int, remedy: str) -> None:
    assert remedy in ExitStatus.of(returncode).remedy


@pytest.mark.parametrize("returncode", [0, 1, 128, 255, -63])
def test_nothing_is_advised_where_only_the_log_knows(returncode: int) -> None:
    assert ExitStatus.of(returncode).remedy == ""


def test_a_kill_by_the_kernel_names_the_limit() -> None:
    status = ExitStatus.of(-9, OutOfMemory(limit=512 * MIB, peak=511 * MIB))
    assert status.words == (
        "killed by signal 9 (SIGKILL): killed by the kernel: its memory limit of 512 MiB (it held 511 MiB at most)"
    )
    assert "give the model more memory" in status.remedy
    assert ExitStatus.of(1, OutOfMemory(limit=None, peak=None)).words == "exit code 1: killed by the kernel"
