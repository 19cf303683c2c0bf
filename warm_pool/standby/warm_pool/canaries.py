"""The canaries of this node: chosen at an engine's first start, compared at every later one and after every wake.

``<state_dir>/canaries/<fingerprint>.json``  what the engine said, never overwritten; who removes it lets the next start
    choose again
``<state_dir>/canaries/<fingerprint>.json.damaged``  a file that could not be read, for whoever looks for the cause
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from pydantic import ValidationError

from standby.artifacts.crew import uninterrupted
from standby.artifacts.volume import flush_folder, write_note
from standby.domain.errors import ProbeFailed
from standby.domain.values import Value
from standby.runtime.canary import (
    MOST_PIECES,
    PROMPTS,
    CanaryMismatch,
    Mismatch,
    choose,
    clear_pieces,
    confirmed,
    verdict,
    wake_pieces,
)
from standby.runtime.engines.base import Canary, EngineHandle, ProbeResult
from standby.runtime.engines.probe_answer import ProbeRefused

_log = logging.getLogger(__name__)

_CHOICE_SHARE: Final = 0.5
"""Of the time for a probe, what the choice of a canary may take."""
_CHOICE_S: Final = 2.0
"""At most so long is another prompt tried for a better canary: somebody waits for this first start."""


class Prober(Protocol):
    """What is needed of an EngineAdapter."""

    async def probe(
        self, handle: EngineHandle, deadline_s: float, *, prompt: str = ..., tokens: int = ..., margins: bool = ...
    ) -> ProbeResult:
        """See EngineAdapter.probe."""


class CanaryCheck(StrEnum):
    """How a check ended. After each of them but MISMATCHED the engine has proved that it generates."""

    STORED = "stored"
    """The first start of this fingerprint here: what it said is kept."""
    MATCHED = "matched"
    MISMATCHED = "mismatched"
    UNPROVEN = "unproven"
    """It generates, and nothing could be compared: no prompt has a clear answer, or its answers differ by themselves."""


@dataclass(frozen=True)
class CanaryOutcome:
    """``reason`` in words, empty when all is well; ``pieces``: how many tokens were stored or compared; ``ms``: in all."""

    check: CanaryCheck
    pieces: int = 0
    ms: float = 0.0
    reason: str = ""
    remedy: str = ""

    def raise_mismatch(self) -> None:
        """Raise CanaryMismatch where the engine may not serve."""
        if self.check is CanaryCheck.MISMATCHED:
            raise CanaryMismatch(self.reason, remedy=self.remedy)


class StoredCanary(Value):
    """What a file holds. ``by_token``: the engine names its tokens one by one; else a canary is one piece of text."""

    fingerprint: str
    canary: Canary
    by_token: bool
    at: float


class Canaries:
    """One folder of canaries. One process writes there; any number of checks may run at once."""

    def __init__(self, folder: Path, *, wall: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._wall = wall
        self._other: dict[str, tuple[str, ...]] = {}
        """Fingerprint → what was said instead at the last start, to know it when it comes again."""

    def path(self, fingerprint: str) -> Path:
        """Return the file to remove when a canary is known to be wrong."""
        return self._folder / f"{fingerprint}.json"

    def stored(self, fingerprint: str) -> StoredCanary | None:
        """Return what is kept for ``fingerprint``; a damaged file is put aside and counts as none."""
        path = self.path(fingerprint)
        try:
            found = StoredCanary.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValidationError, OSError) as error:
            _log.warning("canary %s is damaged and was put aside: %s", path, str(error).partition("\n")[0])
            with contextlib.suppress(OSError):
                path.replace(path.with_name(f"{path.name}.damaged"))
            return None
        return found if found.fingerprint == fingerprint else None

    async def check(
        self,
        adapter: Prober,
        handle: EngineHandle,
        fingerprint: str,
        deadline_s: float,
        *,
        after_wake: bool,
        depth: str = "",
    ) -> CanaryOutcome:
        """Let the engine generate and compare; at the first start of ``fingerprint`` keep what it says instead.

        After a wake from ``depth`` (SuspendResult.depth) few tokens are compared, all of them after a deep sleep. A
        stored canary is never overwritten, whatever the engine says. Raises ProbeFailed when the engine does not answer
        within ``deadline_s``.
        """
        probe = _Probe(adapter, handle, deadline_s)
        known = self.stored(fingerprint)
        if known is None and after_wake:
            # What a sleep may have damaged is no measure for anything.
            await probe.ask(PROMPTS[0], 1, margins=False)
            return CanaryOutcome(CanaryCheck.UNPROVEN, 1, probe.ms, "there is no canary to compare with")
        if known is None:
            return await self._first(probe, fingerprint)
        return await self._compare(probe, known, wake_pieces(known.canary, depth) if after_wake else None)

    async def _first(self, probe: _Probe, fingerprint: str) -> CanaryOutcome:
        found = await _chosen(probe)
        if found is None:
            reason = "no prompt has a clear answer: what this engine says cannot be compared later"
            return CanaryOutcome(CanaryCheck.UNPROVEN, ms=probe.ms, reason=reason)
        canary, by_token = found
        stored = StoredCanary(fingerprint=fingerprint, canary=canary, by_token=by_token, at=self._wall())
        try:
            new = await uninterrupted(partial(self._keep, stored))
        except OSError as error:
            reason = f"what it said could not be kept: {error}"
            return CanaryOutcome(CanaryCheck.UNPROVEN, ms=probe.ms, reason=reason)
        if new:
            return CanaryOutcome(CanaryCheck.STORED, len(canary.pieces), probe.ms)
        # Another instance of the same fingerprint was first.
        known = self.stored(fingerprint)
        probe.begin()
        return await self._compare(probe, known or stored, None)

    async def _compare(self, probe: _Probe, known: StoredCanary, pieces: int | None) -> CanaryOutcome:
        tokens = pieces or len(known.canary.pieces)
        result = await probe.ask(known.canary.prompt, tokens, margins=known.by_token)
        found = verdict(known.canary, result, pieces)
        if not isinstance(found, Mismatch):
            if pieces is None:
                self._other.pop(known.fingerprint, None)
            return CanaryOutcome(CanaryCheck.MATCHED, found.pieces, probe.ms)
        again = pieces is None and self._other.get(known.fingerprint) == found.got
        if pieces is None:
            self._other[known.fingerprint] = found.got
        remedy = (
            f"every start says the same now; if this answer is right, remove {self.path(known.fingerprint)} and start again"
            if again
            else "the engine is ended and started from cold"
        )
        return CanaryOutcome(CanaryCheck.MISMATCHED, tokens, probe.ms, found.reason, remedy)

    def _keep(self, stored: StoredCanary) -> bool:
        """Write it, durable when this returns; False when there is one already."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.path(stored.fingerprint)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            write_note(temporary, stored.model_dump_json(indent=1).encode())
            os.link(temporary, path)  # unlike a rename it fails where a file is, so that nothing is ever overwritten
            flush_folder(self._folder)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True


class _Probe:
    """Asks one engine several times within one deadline, until ``begin``."""

    def __init__(self, adapter: Prober, handle: EngineHandle, deadline_s: float) -> None:
        self._adapter = adapter
        self._handle = handle
        self._now = asyncio.get_running_loop().time
        self._made = self._began = self._now()
        self.limit_s = deadline_s

    def begin(self) -> None:
        """Give what follows the whole deadline: the engine has proved that it generates."""
        self._began = self._now()

    @property
    def spent_s(self) -> float:
        """Seconds since the deadline began."""
        return self._now() - self._began

    @property
    def ms(self) -> float:
        """Milliseconds since the first question could be asked."""
        return (self._now() - self._made) * 1000

    async def ask(self, prompt: str, tokens: int, *, margins: bool, share: float = 1.0) -> ProbeResult:
        """Ask within what is left of the deadline, or a share of it."""
        left = (self.limit_s - self.spent_s) * share
        if left <= 0:
            raise ProbeFailed(f"engine generated no token within {self.limit_s:g} s", remedy="see its log")
        return await self._adapter.probe(self._handle, left, prompt=prompt, tokens=tokens, margins=margins)


async def _chosen(probe: _Probe) -> tuple[Canary, bool] | None:
    """Return the canary of an engine that has none yet, said twice, and whether the engine names its tokens."""
    candidates = await _candidates(probe)
    by_token = bool(candidates[0].margins)
    canary = choose(candidates)
    if canary is None:
        return None
    probe.begin()  # what is left may be too little for a slow engine: no reason to end it
    again = await probe.ask(canary.prompt, len(canary.pieces), margins=by_token)
    sure = confirmed(canary, again)
    return None if sure is None else (sure, by_token)


async def _candidates(probe: _Probe) -> list[ProbeResult]:
    """Ask the prompts one after the other until one is clear throughout, or the time for it is over."""
    found: list[ProbeResult] = []
    for prompt in PROMPTS:
        try:
            result = await probe.ask(prompt, MOST_PIECES, margins=True, share=1.0 if found else _CHOICE_SHARE)
        except ProbeFailed as error:
            if found or not (isinstance(error, ProbeRefused) or isinstance(error.__cause__, TimeoutError)):
                raise
            # It does not know the words for margins, or is too slow for so many tokens: whether it generates at all shows
            # in a plain question. Any other failure is one: an engine whose first answer is an error is not ready.
            return [await probe.ask(prompt, 1, margins=False)]
        if not result.margins:
            # Without margins one token is all that can be compared: it is asked for alone.
            return [await probe.ask(prompt, 1, margins=False)]
        found.append(result)
        if len(clear_pieces(result)) == MOST_PIECES or probe.spent_s > min(_CHOICE_S, probe.limit_s * _CHOICE_SHARE):
            break
    return found
