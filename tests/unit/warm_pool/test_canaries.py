"""Canaries of a node: kept at the first start, compared at every later one and after a wake, never overwritten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standby.domain.errors import ProbeFailed
from standby.runtime.canary import MOST_PIECES, PROMPTS, CanaryMismatch
from standby.runtime.engines.base import EngineHandle, ProbeResult
from standby.runtime.engines.fake import FakeEngine
from standby.runtime.engines.llama_cpp import LlamaCpp
from standby.runtime.engines.probe_answer import ProbeRefused
from standby.runtime.process_ledger import ProcessLedger
from standby.warm_pool.canaries import Canaries, CanaryCheck
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, fake_spec, real_spec, running, short_dir

FIRST, SECOND = "a" * 64, "b" * 64
HANDLE: EngineHandle = None  # type: ignore[assignment]  # the scripted engine below has no process
Script = Callable[[str, int, bool], ProbeResult]


class Scripted:
    """An engine that says what ``script(prompt, tokens, margins)`` returns, and remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[tuple[str, int, bool]] = []

    async def probe(
        self, handle: EngineHandle, deadline_s: float, *, prompt: str = "Hi", tokens: int = 1, margins: bool = False
    ) -> ProbeResult:
        self.asked.append((prompt, tokens, margins))
        await asyncio.sleep(0)
        return self.script(prompt, tokens, margins)


def speaks(text: str, margin: float = 2.0) -> Script:
    """Says the letters of ``text``, each with this margin."""

    def script(prompt: str, tokens: int, margins: bool) -> ProbeResult:
        pieces = tuple(text[:tokens])
        return ProbeResult(ms=5, prompt=prompt, pieces=pieces, margins=(margin,) * len(pieces))

    return script


def mute_on_margins(prompt: str, tokens: int, margins: bool) -> ProbeResult:
    """Knows no margins, and all that it says is one piece."""
    return ProbeResult(ms=5, prompt=prompt, pieces=("one two three"[: tokens * 4],))


@pytest.fixture
def canaries(tmp_path: Path) -> Canaries:
    return Canaries(tmp_path / "canaries", wall=lambda: 7.0)


async def start(canaries: Canaries, script: Script, name: str = FIRST) -> CanaryCheck:
    return (await canaries.check(Scripted(script), HANDLE, name, 5, after_wake=False)).check


async def test_first_start_keeps_and_later_ones_compare_all_of_it(canaries: Canaries) -> None:
    assert await start(canaries, speaks("abcdefghij")) is CanaryCheck.STORED
    stored = canaries.stored(FIRST)
    assert stored is not None
    assert (stored.canary.prompt, stored.canary.pieces, stored.at) == (PROMPTS[0], tuple("abcdefgh"[:MOST_PIECES]), 7.0)
    again = Scripted(speaks("abcdefghij"))
    outcome = await canaries.check(again, HANDLE, FIRST, 5, after_wake=False)
    assert (outcome.check, outcome.pieces) == (CanaryCheck.MATCHED, MOST_PIECES)
    assert again.asked == [(PROMPTS[0], MOST_PIECES, True)]
    assert canaries.path(FIRST).parent.stat().st_mode & 0o077 == 0


async def test_another_node_process_finds_it_on_the_disk(canaries: Canaries, tmp_path: Path) -> None:
    await start(canaries, speaks("abcdefgh"))
    assert await start(Canaries(tmp_path / "canaries"), speaks("abcXefgh")) is CanaryCheck.MISMATCHED


async def test_a_wake_compares_two_tokens_and_a_deep_one_all(canaries: Canaries) -> None:
    await start(canaries, speaks("abcdefgh"))
    engine = Scripted(speaks("abXXXXXX"))
    light = await canaries.check(engine, HANDLE, FIRST, 5, after_wake=True, depth="stopped")
    deep = await canaries.check(engine, HANDLE, FIRST, 5, after_wake=True, depth="level 2")
    assert (light.check, light.pieces) == (CanaryCheck.MATCHED, 2)
    assert deep.check is CanaryCheck.MISMATCHED
    assert [tokens for _, tokens, _ in engine.asked] == [2, MOST_PIECES]


async def test_a_wrong_answer_is_refused_with_both_answers_and_never_stored(canaries: Canaries) -> None:
    await start(canaries, speaks("abcdefgh"))
    before = canaries.path(FIRST).read_bytes()
    outcomes = [await canaries.check(Scripted(speaks("aXcdefgh")), HANDLE, FIRST, 5, after_wake=False) for _ in range(3)]
    assert {outcome.check for outcome in outcomes} == {CanaryCheck.MISMATCHED}
    assert canaries.path(FIRST).read_bytes() == before
    with pytest.raises(CanaryMismatch, match="is 'aX', and was 'ab'"):
        outcomes[0].raise_mismatch()
    # Once may be chance; what comes again and again may be right, and then the operator is told which file to remove.
    assert str(canaries.path(FIRST)) not in outcomes[0].remedy
    assert str(canaries.path(FIRST)) in outcomes[1].remedy
    canaries.path(FIRST).unlink()
    assert await start(canaries, speaks("aXcdefgh")) is CanaryCheck.STORED


async def test_a_wake_without_a_canary_stores_none(canaries: Canaries) -> None:
    outcome = await canaries.check(Scripted(speaks("garbage!")), HANDLE, FIRST, 5, after_wake=True)
    assert outcome.check is CanaryCheck.UNPROVEN
    assert canaries.stored(FIRST) is None


async def test_fingerprints_do_not_share(canaries: Canaries) -> None:
    await start(canaries, speaks("abcdefgh"))
    assert await start(canaries, speaks("XXXXXXXX"), SECOND) is CanaryCheck.STORED


async def test_an_engine_without_margins_is_compared_by_one_token(canaries: Canaries) -> None:
    assert await start(canaries, mute_on_margins) is CanaryCheck.STORED
    stored = canaries.stored(FIRST)
    assert stored is not None
    assert (stored.canary.pieces, stored.by_token) == (("one ",), False)
    again = Scripted(mute_on_margins)
    await canaries.check(again, HANDLE, FIRST, 5, after_wake=True)
    assert again.asked == [(PROMPTS[0], 1, False)]


async def test_an_engine_that_refuses_to_tell_margins_still_starts(canaries: Canaries) -> None:
    def script(prompt: str, tokens: int, margins: bool) -> ProbeResult:
        if margins:
            raise ProbeRefused("engine answered the probe with 400: logprobs is unknown")
        return mute_on_margins(prompt, tokens, margins)

    assert await start(canaries, script) is CanaryCheck.STORED


async def test_an_engine_whose_first_answer_is_an_error_fails_its_probe(canaries: Canaries) -> None:
    """Field case B10: the question for margins must not hide it, as a second question would be answered."""
    asked: list[str] = []

    def script(prompt: str, tokens: int, margins: bool) -> ProbeResult:
        asked.append(prompt)
        if len(asked) == 1:
            raise ProbeFailed("engine answered the probe with 500: no")
        return speaks("abcdefgh")(prompt, tokens, margins)

    with pytest.raises(ProbeFailed, match="with 500"):
        await start(canaries, script)


async def test_an_engine_that_generates_nothing_fails_its_probe(canaries: Canaries) -> None:
    def script(prompt: str, tokens: int, margins: bool) -> ProbeResult:
        raise ProbeFailed("engine answered the probe with 500: no")

    with pytest.raises(ProbeFailed):
        await start(canaries, script)


async def test_near_ties_lead_to_another_prompt(canaries: Canaries) -> None:
    def script(prompt: str, tokens: int, margins: bool) -> ProbeResult:
        return speaks("abcdefgh", 2.0 if prompt == PROMPTS[2] else 0.1)(prompt, tokens, margins)

    await start(canaries, script)
    stored = canaries.stored(FIRST)
    assert stored is not None
    assert stored.canary.prompt == PROMPTS[2]


@pytest.mark.parametrize("clear", [False, True])
async def test_answers_that_cannot_be_compared_are_unproven_and_not_stored(canaries: Canaries, clear: bool) -> None:
    """No prompt is clear, or each answer is another one."""
    count = iter(range(100))

    def script(prompt: str, tokens: int, margins: bool) -> ProbeResult:
        word = chr(ord("A") + next(count))
        return speaks(word * MOST_PIECES, 2.0 if clear else 0.1)(prompt, tokens, margins)

    assert await start(canaries, script) is CanaryCheck.UNPROVEN
    assert canaries.stored(FIRST) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"fingerprint": 1}', b"\xff\xfe"])
async def test_a_damaged_file_counts_as_none_and_is_put_aside(canaries: Canaries, content: bytes) -> None:
    await start(canaries, speaks("abcdefgh"))
    canaries.path(FIRST).write_bytes(content)
    assert await start(canaries, speaks("XYcdefgh")) is CanaryCheck.STORED
    assert Path(f"{canaries.path(FIRST)}.damaged").read_bytes() == content


async def test_a_slow_engine_is_not_ended_for_the_choice_of_its_canary(
    canaries: Canaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two unclear answers took nearly all of the time: the one that is to be confirmed must not find it over."""

    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)

    class Slow(Scripted):
        async def probe(self, handle: EngineHandle, deadline_s: float, **question: Any) -> ProbeResult:
            nonlocal now
            if deadline_s < 0.14:
                raise ProbeFailed("engine generated no token in time")
            now += 0.14
            return await super().probe(handle, deadline_s, **question)

    def script(prompt: str, tokens: int, margins: bool) -> ProbeResult:
        return ProbeResult(ms=140, prompt=prompt, pieces=tuple("abcd"[:tokens]), margins=(2.0, 2.0, 0.1, 2.0)[:tokens])

    outcome = await canaries.check(Slow(script), HANDLE, FIRST, 0.3, after_wake=False)
    assert (outcome.check, outcome.pieces) == (CanaryCheck.STORED, 2)
    assert outcome.ms == pytest.approx(420), "three questions"


async def test_two_first_starts_at_once_store_one_and_compare_the_other(canaries: Canaries) -> None:
    checks = await asyncio.gather(start(canaries, speaks("abcdefgh")), start(canaries, speaks("abcdefgh")))
    assert sorted(checks) == [CanaryCheck.MATCHED, CanaryCheck.STORED]
    assert [path.name for path in canaries.path(FIRST).parent.iterdir()] == [f"{FIRST}.json"]


async def test_a_folder_that_cannot_be_written_stops_no_engine(tmp_path: Path) -> None:
    (tmp_path / "canaries").write_text("a file where the folder should be")
    assert await start(Canaries(tmp_path / "canaries"), speaks("abcdefgh")) is CanaryCheck.UNPROVEN


async def test_the_fake_engine_s_changed_words_are_noticed(canaries: Canaries) -> None:
    with short_dir() as run_dir:
        adapter = FakeEngine(ProcessLedger(run_dir / "ledger"), FAKE_ENGINE_PROGRAM)
        for text, expected in (
            ("Right words", CanaryCheck.STORED),
            ("Right words", CanaryCheck.MATCHED),
            ("Wrong words", CanaryCheck.MISMATCHED),
        ):
            async with running(adapter, fake_spec(run_dir, text=text)) as handle:
                outcome = await canaries.check(adapter, handle, FIRST, 60, after_wake=False)
                assert outcome.check is expected


@pytest.mark.real_engine
async def test_real_llama_cpp_says_the_same_after_a_restart_and_after_wakes(canaries: Canaries) -> None:
    with short_dir() as run_dir:
        adapter = LlamaCpp(ProcessLedger(run_dir / "ledger"))
        async with running(adapter, real_spec(run_dir)) as handle:
            assert (await canaries.check(adapter, handle, FIRST, 60, after_wake=False)).check is CanaryCheck.STORED
            stored = canaries.stored(FIRST)
            assert stored is not None
            assert "".join(stored.canary.pieces).startswith(" E, F")
            assert len(stored.canary.pieces) == MOST_PIECES
            for _ in range(3):
                depth = (await adapter.suspend(handle)).depth
                await adapter.resume(handle)
                outcome = await canaries.check(adapter, handle, FIRST, 60, after_wake=True, depth=depth)
                assert (outcome.check, outcome.pieces) == (CanaryCheck.MATCHED, 2)
        async with running(adapter, real_spec(run_dir, epoch=2)) as handle:
            outcome = await canaries.check(adapter, handle, FIRST, 60, after_wake=False)
            assert (outcome.check, outcome.pieces) == (CanaryCheck.MATCHED, MOST_PIECES)
