"""Disjoint sets of processors for CPU engines, so that one model's threads do not wait for another's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreSet:
    """Processors for one engine; ``own``: no other engine has them; empty: it is not bound at all."""

    cores: tuple[int, ...]
    own: bool
    reason: str


def allot(free: Collection[int], wanted: int, *, groups: Sequence[Sequence[int]]) -> CoreSet:
    """Choose ``wanted`` of the ``free`` processors. ``groups`` are all processors, by NUMA node.

    One node that has enough is preferred, the one with the least to spare; else the fewest nodes. When only a part of what is
    wanted is left the engine gets it if that is half or more, and shares all processors otherwise: few threads of its
    own would be slower than a share of all.
    """
    everything = tuple(sorted(core for group in groups for core in group))
    if wanted <= 0:
        return CoreSet((), own=False, reason="not bound: no number of cores per engine is set")
    rest = [sorted(core for core in group if core in free) for group in groups]
    available = sum(map(len, rest))
    if available < wanted and 2 * available < wanted:
        words = f"shares all {len(everything)} cores: {available} are left of the {wanted} that an engine gets"
        return CoreSet(everything, own=False, reason=words)
    count = min(wanted, available)
    fitting = [group for group in rest if len(group) >= count]
    chosen = min(fitting, key=len)[:count] if fitting else _from_several(rest, count)
    words = f"{count} cores of its own" if count == wanted else f"{count} cores of its own, as no more of {wanted} are left"
    return CoreSet(tuple(sorted(chosen)), own=True, reason=words)


def _from_several(rest: Iterable[Sequence[int]], count: int) -> list[int]:
    largest_first = sorted(rest, key=len, reverse=True)
    return [core for group in largest_first for core in group][:count]


class CoreBook:
    """Which engine has which processors; owned by the agent's loop. ``groups`` are all processors, by NUMA node."""

    def __init__(self, groups: Sequence[Sequence[int]], wanted: int) -> None:
        """``wanted``: how many each engine gets; 0: engines are not bound."""
        self._groups = tuple(tuple(group) for group in groups)
        self._wanted = wanted
        self._held: dict[str, tuple[int, ...]] = {}

    @property
    def everything(self) -> tuple[int, ...]:
        """All processors."""
        return tuple(sorted(core for group in self._groups for core in group))

    @property
    def free(self) -> frozenset[int]:
        """The processors that no engine has for itself."""
        return frozenset(self.everything) - {core for cores in self._held.values() for core in cores}

    def take(self, instance: str) -> CoreSet:
        """Return the set for an engine that starts or wakes; the one it has, if it has one."""
        if instance in self._held:
            cores = self._held[instance]
            return CoreSet(cores, own=True, reason=f"{len(cores)} cores of its own")
        found = allot(self.free, self._wanted, groups=self._groups)
        if found.own:
            self._held[instance] = found.cores
        return found

    def give_back(self, instance: str) -> None:
        """Free the set of an engine that sleeps or has ended."""
        self._held.pop(instance, None)
