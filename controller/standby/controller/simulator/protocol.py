"""What a replayed policy is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from standby.controller.demotion import Step
from standby.controller.eviction import MemoryKind
from standby.domain.instance import Rung


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits of memory as shares of all models' GB together; None: no limit."""

    device: float | None = None
    host: float | None = None


class Resting(NamedTuple):
    """An instance without work that holds memory of the kind in question: it may be asked to give it back."""

    function: int
    number: int
    rung: Rung
    size_gb: float
    held_gb: float
    idle_s: float


class Eviction(NamedTuple):
    """Lower this instance to ``rung``, at once."""

    function: int
    number: int
    rung: Rung
    reason: str


class Policy(Protocol):
    """Decides how long what is idle stays warm. Times are seconds since the trace began."""

    name: str

    def arrived(self, function: int, now: float, gap_s: float | None) -> None:
        """Hear of an invocation. ``gap_s``: time since the function fell idle; None: it had work, or this is its first."""

    def idle(self, function: int, now: float, idle_s: float) -> Step:
        """Say which rung an instance that has been idle for ``idle_s`` should hold, and until which idle time.

        Asked when it falls idle and at each step's end. A rung above the present one starts the climb now,
        and at its end, if nobody waits by then, the policy is asked again.
        """

    def victim(self, need_gb: float, kind: MemoryKind, resting: Sequence[Resting], now: float) -> Eviction | None:
        """Name the next instance to lower, so that ``need_gb`` come free; None: the one that needs them waits.

        Asked again until enough is free. Only asked where memory is capped; ``resting`` has none that is busy.
        """


@runtime_checkable
class Foreseeing(Protocol):
    """A policy that also has a plan for a function that was never asked yet."""

    def registered(self, function: int, now: float) -> Step:
        """Say which rung the function should hold after its registration; as ``Policy.idle``, with idle time since then."""


@runtime_checkable
class Numbered(Protocol):
    """A policy that tells the instances of one function apart; it is asked this instead of ``Policy.idle``.

    An arrival takes the lowest-numbered instance with a free slot, so that the higher ones are used more rarely.
    """

    def idle_instance(self, function: int, number: int, now: float, idle_s: float) -> Step:
        """As ``Policy.idle``, of the instance ``number``, from 0."""
