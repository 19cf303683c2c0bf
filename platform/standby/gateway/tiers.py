"""What a tier does when an attempt has brought nothing, and which priority a request has. Pure.

An attempt that has sent its caller a byte is never made again, in no tier: two samples are never spliced (field case B27).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from standby.domain.priority import Priority
from standby.domain.traffic import PriorityPolicy, Tier


class Setback(Enum):
    """Why an attempt has brought nothing, as far as it matters for another one. No byte has gone to the caller."""

    REFUSED = "refused"  # the door let nothing in: the platform's own race
    NOT_BEGUN = "not-begun"  # nobody accepted the request, or nobody read it: no engine can have begun
    DECLINED = "declined"  # the engine itself said 503
    MAYBE_BEGUN = "maybe-begun"  # the engine may have been at work on it when it failed
    LETHAL = "lethal"  # the engine died of it, as far as anybody can tell: it was alone there
    GRAVE = "grave"  # a second engine died with it, and which request did it is not known


class Step(Enum):
    """What comes next."""

    QUEUE = "queue"  # wait again, at the head; as often as it happens
    ELSEWHERE = "elsewhere"  # the request's one retry, at another instance where there is one
    ALONE = "alone"  # wait until no other request runs that is as gravely suspected, then as from the beginning
    GIVE_UP = "give-up"


class TierRules(NamedTuple):
    """One row: whether instances have a breaker, and the step after each setback."""

    breaker: bool
    after: Mapping[Setback, Step]


_GIVE_UP: Final = dict.fromkeys(Setback, Step.GIVE_UP)
_LET_IN_NOWHERE: Final = {Setback.REFUSED: Step.QUEUE}
# What no engine has begun is not lost, however often that happens, until its wait is over; a 503 is an answer in the end.
_CANNOT_HAVE_BEGUN: Final = _LET_IN_NOWHERE | {Setback.NOT_BEGUN: Step.QUEUE, Setback.DECLINED: Step.ELSEWHERE}

RULES: Final[Mapping[Tier, TierRules]] = MappingProxyType(
    {
        Tier.CRITICAL: TierRules(True, MappingProxyType(_GIVE_UP | _CANNOT_HAVE_BEGUN | {Setback.MAYBE_BEGUN: Step.ELSEWHERE})),
        Tier.STANDARD: TierRules(True, MappingProxyType(_GIVE_UP | _CANNOT_HAVE_BEGUN)),
        Tier.BEST_EFFORT: TierRules(False, MappingProxyType(_GIVE_UP | _LET_IN_NOWHERE)),
    }
)
# The time of an attempt that ended so is part of the wait, and not of the engine's.
NOT_STARTED: Final = frozenset({Setback.REFUSED, Setback.NOT_BEGUN})
# The tiers in which an engine's 503 is followed by another attempt, as long as there was none.
DECLINABLE: Final = frozenset(tier for tier, rules in RULES.items() if rules.after[Setback.DECLINED] is Step.ELSEWHERE)


def next_step(tier: Tier, setback: Setback, *, retried: bool) -> Step:
    """Return what comes after a setback; ``retried``: the request has had its one retry."""
    step = RULES[tier].after[setback]
    return Step.GIVE_UP if retried and step is Step.ELSEWHERE else step


def priority_of(policy: PriorityPolicy, wished: Priority | None, key_priority: Priority | None) -> Priority:
    """Return a request's priority: what its caller wished, else the endpoint's default.

    No more urgent than the endpoint allows, nor than ``key_priority``, the most urgent one that the caller's key may ask
    for (None: any).
    """
    chosen = (policy.default if wished is None else wished).capped(policy.highest)
    return chosen if key_priority is None else chosen.capped(key_priority)
