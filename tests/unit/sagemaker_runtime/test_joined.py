"""Runs that retries join: who waits, who left, what is kept and for how long."""

from __future__ import annotations

import asyncio

import pytest

from standby.sagemaker.errors import AwsError
from standby.sagemaker.runtime.contract import Answer
from standby.sagemaker.runtime.joined import Key, Run, Runs, may_come_again
from support.waiting import until

KEY = Key("1", "e", b"id", b"digest")
ANSWER = Answer(200, [], b"x" * 100)


class Ticking:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Ticking:
    return Ticking()


def runs_of(clock: Ticking, *, linger_s: float = 60.0, kept_bytes: int = 10_000) -> Runs:
    return Runs(clock, linger_s, kept_s=20.0, kept_bytes=kept_bytes)


async def test_all_who_join_get_the_same(clock: Ticking) -> None:
    runs = runs_of(clock)
    run = runs.begin(KEY)
    joined = runs.find(KEY)
    assert joined is run
    waiting = [run.join(), run.join()]
    runs.end(run, ANSWER)
    assert await asyncio.gather(*waiting) == [ANSWER, ANSWER]
    assert runs.running == 0


async def test_a_run_outlives_its_caller_and_ends_when_nobody_comes_back(clock: Ticking) -> None:
    runs = runs_of(clock, linger_s=0.01)
    run = runs.begin(KEY)
    ended = asyncio.Event()
    run.owner_left(ended.set, comes_again=True)
    assert not ended.is_set()
    waiting = run.join()
    await asyncio.sleep(0.03)
    assert not ended.is_set(), "somebody waits again"
    run.joiner_left(waiting, comes_again=True)
    run.joiner_left(waiting, comes_again=True)
    await asyncio.wait_for(ended.wait(), 30)


async def test_the_last_attempt_of_an_sdk_ends_the_run_at_once(clock: Ticking) -> None:
    runs = runs_of(clock)
    run = runs.begin(KEY)
    waiting = run.join()
    ended = asyncio.Event()
    run.owner_left(ended.set, comes_again=False)
    assert not ended.is_set(), "another one waits"
    run.joiner_left(waiting, comes_again=False)
    assert ended.is_set()


async def test_a_result_that_was_missed_is_kept_for_a_while(clock: Ticking) -> None:
    runs = runs_of(clock)
    run = runs.begin(KEY)
    run.owner_left(lambda: None, comes_again=True)
    runs.end(run, ANSWER)
    assert runs.find(KEY) == ANSWER
    clock.now = 19.9
    assert runs.find(KEY) == ANSWER
    clock.now = 20.1
    assert runs.find(KEY) is None
    assert runs.held_bytes == 0


async def test_what_everybody_got_at_once_is_not_kept(clock: Ticking) -> None:
    runs = runs_of(clock)
    runs.end(runs.begin(KEY), ANSWER)
    assert runs.find(KEY) is None
    slow = runs.begin(KEY)
    clock.now = 2.0
    runs.end(slow, ANSWER)
    assert runs.find(KEY) == ANSWER, "it took so long that its client may have given up"


@pytest.mark.parametrize(
    ("code", "kept"), [("ModelError", True), ("ThrottlingException", False), ("ServiceUnavailable", False)]
)
async def test_only_errors_that_a_retry_must_not_change_are_kept(clock: Ticking, code: str, kept: bool) -> None:
    runs = runs_of(clock)
    run = runs.begin(KEY)
    run.owner_left(lambda: None, comes_again=True)
    runs.end(run, AwsError(code, "m"))
    assert (runs.find(KEY) is not None) is kept


async def test_kept_bytes_are_bounded_oldest_first(clock: Ticking) -> None:
    runs = runs_of(clock, kept_bytes=3000)

    def missed(name: bytes, size: int) -> Key:
        key = KEY._replace(invocation=name)
        run = runs.begin(key)
        run.owner_left(lambda: None, comes_again=True)
        runs.end(run, Answer(200, [], b"x" * size))
        return key

    first, second = missed(b"1", 100), missed(b"2", 100)
    third = missed(b"3", 800)
    assert [runs.find(key) is not None for key in (first, second, third)] == [False, True, True]
    huge = missed(b"4", 3000)
    assert runs.find(huge) is None
    assert runs.held_bytes <= 3000


async def test_texts_are_forgotten_though_nobody_asks() -> None:
    loop = asyncio.get_running_loop()
    runs = Runs(loop.time, linger_s=1.0, kept_s=0.05, kept_bytes=10_000)
    run = runs.begin(KEY)
    run.owner_left(lambda: None, comes_again=True)
    runs.end(run, ANSWER)
    assert runs.held_bytes
    await until(lambda: runs.held_bytes == 0)


async def test_a_run_that_was_given_up_says_so(clock: Ticking) -> None:
    runs = runs_of(clock)
    run = runs.begin(KEY)
    waiting = run.join()
    runs.end(run, None)
    assert await waiting is None
    assert not isinstance(runs.find(KEY), Run)


@pytest.mark.parametrize(
    ("header", "again"),
    [
        (None, True),
        (b"attempt=1", True),
        (b"ttl=20260101T000000Z; attempt=2; max=3", True),
        (b"ttl=20260101T000000Z; attempt=3; max=3", False),
        (b"nonsense", True),
    ],
)
def test_an_sdk_says_whether_it_comes_again(header: bytes | None, again: bool) -> None:
    assert may_come_again(header) is again
