"""Which ready instance gets a request: of two the one that will read it first, the prompt's home while it has room. Pure.

An engine reads prompts in turn, so that the one with fewer bytes of prompts before this one answers first
(``standby.gateway.unread``); where little waits to be read, which is most of the time, the one with fewer requests per slot.

Loads are compared for two instances picked by the ticket's hash (the power of two choices: nearly as even as comparing
all, without every gateway running to the same one); for all where there are no more, or where those two will not do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from standby.domain.draw import READING_STEP_TOKENS, chance
from standby.sagemaker.runtime.asks import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from standby.gateway.breaker import Permit

# Steps above any load: who is on a step is chosen only where nobody stands lower.
_SHY: Final = 1.0
_PRESSED: Final = 2.0
_TRIED: Final = 4.0

_READING_STEP: Final = READING_STEP_TOKENS * BYTES_PER_TOKEN

# Higher than any rank: step, steps of reading at full speed, load.
_WORST: Final = (8.0, 0, 0.0)

_HOME_FACTOR: Final = 1.25
_MAX_NAME: Final = 80
_NOBODY: Final[frozenset[str]] = frozenset()


class Candidate(NamedTuple):
    """A ready instance as this gateway sees it. A tuple, as one is made for each instance and request.

    ``slots`` are those in use: the door's, or fewer (``concurrency``). ``speed`` is 1 for the quickest and less for others,
    ``health`` the share of late answers that were good; both above 0. ``permit``: what its breaker says; None: it is
    closed. ``pressed``: its engine's memory is nearly full. ``unread``: bytes of prompts that it has still to read.
    """

    instance: str
    outstanding: int
    slots: int
    blocked_until: float = 0.0
    speed: float = 1.0
    health: float = 1.0
    permit: Permit | None = None
    adapters: tuple[str, ...] = ()
    pressed: bool = False
    unread: int = 0


class Choice(NamedTuple):
    """The chosen instance, or none with the reason and the moment when asking again makes sense.

    ``backend``: of the instance, or for which one it is best to wait. ``probe``: the answer decides whether the instance
    gets requests again; the request must be given back as a probe.
    """

    instance: str | None
    reason: str
    retry_at: float | None = None
    backend: str = ""
    probe: bool = False


_NONE: Final = Choice(None, "none of them at once")


@lru_cache(maxsize=4096)
def least_loaded(instance: str, outstanding: int, slots: int) -> Choice:
    """Return the choice of the instance with the fewest outstanding requests per slot; remembered, as its words are made."""
    return Choice(instance, f"least outstanding: {outstanding} of {slots} slots")


def at_home(outstanding: int, mean: float) -> bool:
    """Whether a prompt's home, with ``outstanding`` requests, may have one more: it is not much above the ``mean``."""
    return outstanding <= _HOME_FACTOR * mean + 1


def choose(
    candidates: Sequence[Candidate],
    now: float,
    ticket: int,
    *,
    adapter: str | None = None,
    tried: frozenset[str] = _NOBODY,
    spare: bool = False,
    strict: bool = False,
) -> Choice:
    """Return the candidate that would read a prompt first, of such the one with the fewest outstanding requests per slot.

    It has a free slot and is not blocked. ``ticket`` is any growing number: it rotates between equals, so that ties do not all
    fall on one instance; a slower one of them gets its share by speed. Only instances that have loaded ``adapter`` are asked.
    Those of ``tried``, ``pressed`` ones where ``spare`` is set, and unhealthy ones, the more often the worse they are, get it
    only where no other can; with ``strict`` they do not get it at all.
    """
    least = _WORST
    equals: list[Candidate] = []
    for candidate in candidates:
        instance, outstanding, slots, blocked_until, speed, health, permit, adapters, pressed, unread = candidate
        if outstanding >= slots or blocked_until > now or (permit is not None and not permit.allowed):
            continue
        if adapter is not None and adapter not in adapters:
            continue
        step = _SHY if health < 1.0 and chance(ticket, crc32(instance.encode())) >= health else 0.0
        if tried and (instance in tried or (permit is not None and permit.probe)):
            step += _TRIED
        if pressed and spare:
            step += _PRESSED
        rank = (step, int(unread / speed) // _READING_STEP if unread else 0, outstanding / slots)
        if rank < least:
            least, equals = rank, [candidate]
        elif rank == least:
            equals.append(candidate)
    step = least[0]
    if strict and step >= _SHY:
        return _NONE
    if not equals:
        return _nobody(candidates, now, adapter)
    chosen = equals[0] if len(equals) == 1 else _one_of(equals, ticket)
    if chosen.permit is not None and chosen.permit.probe:
        return Choice(chosen.instance, f"probe: {chosen.permit.reason}", None, "", True)
    choice = _chosen(chosen, candidates)
    return choice if step < _SHY else Choice(chosen.instance, f"{choice.reason}{_reluctance(step)}")


def _chosen(chosen: Candidate, candidates: Sequence[Candidate]) -> Choice:
    choice = least_loaded(chosen.instance, chosen.outstanding, chosen.slots)
    if all(candidate.unread < _READING_STEP for candidate in candidates):
        return choice
    return Choice(chosen.instance, f"fewest bytes of prompts to be read before it: {chosen.unread}; {choice.reason}")


def _one_of(equals: Sequence[Candidate], ticket: int) -> Candidate:
    speeds = [candidate.speed for candidate in equals]
    if min(speeds) == max(speeds):
        return equals[ticket % len(equals)]
    left = chance(ticket) * sum(speeds)
    for candidate in equals:
        left -= candidate.speed
        if left < 0:
            return candidate
    return equals[-1]


def _reluctance(step: float) -> str:
    said = (
        (_TRIED, "it was tried already or is being probed"),
        (_PRESSED, "its engine's memory is nearly full"),
        (_SHY, "it fails often"),
    )
    words = []
    for height, word in said:
        if step >= height:
            words.append(word)
            step -= height
    return f"; {', '.join(words)}, but no other can"


def _nobody(candidates: Sequence[Candidate], now: float, adapter: str | None) -> Choice:
    """Say why nobody can, and when the first one may be able to again."""
    able = [one for one in candidates if adapter is None or adapter in one.adapters]
    if not able and candidates:
        return Choice(None, f"none of {len(candidates)} instances has loaded the adapter {str(adapter)[:_MAX_NAME]!r}")
    full = sum(one.outstanding >= one.slots for one in able)
    moments = [one.blocked_until for one in able if one.outstanding < one.slots and one.blocked_until > now]
    shut = [one.permit for one in able if one.permit is not None and not one.permit.allowed]
    moments += [permit.retry_at for permit in shut if permit.retry_at is not None]
    unblock = min(moments, default=None)
    broken = f", {len(shut)} broken ({shut[0].reason})" if shut else ""
    return Choice(None, f"no free slot: {full} full{broken}, next unblock {unblock}", unblock)
