"""Who is pushed out of memory for a climb that does not fit: sleepers, and last of all idle zygotes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from standby.warm_pool.ledger import Claim, total


@dataclass(frozen=True, slots=True)
class Sleeper:
    """What could be ended to make room, as nobody is served by it: an instance asleep, or a zygote that nobody rests on.

    ``wake_gain_s`` is what is lost with it: the seconds that a climb from it saves over a climb from one rung lower.
    """

    instance: str
    held: Claim
    idle_s: float
    wake_gain_s: float


def victims(sleepers: Iterable[Sleeper], short: Mapping[str, int], zygotes: Iterable[Sleeper] = ()) -> tuple[str, ...]:
    """Return whom to end, cheapest to lose first, until every resource in ``short`` fits; empty if it never does.

    A zygote is chosen only where all sleepers together do not suffice: it serves every model of its kind. Nobody is
    ended who frees nothing of what is short (a sleeper whose device memory is already given back does not help a
    device), and nobody who turns out not to have been needed.
    """
    order = _by_loss(sleepers, short)
    chosen = _until_it_fits(order, short)
    if chosen is None:
        chosen = _until_it_fits([*order, *_by_loss(zygotes, short)], short)
    return () if chosen is None else tuple(sleeper.instance for sleeper in _only_needed(chosen, short))


def _by_loss(sleepers: Iterable[Sleeper], short: Mapping[str, int]) -> list[Sleeper]:
    """Order by what is lost for each byte that helps, weighed by how recently it was used.

    GreedyDual-Size without the clock (FaasCache, ASPLOS'21); the size is what it holds of the resources that are short.
    """

    def loss(sleeper: Sleeper) -> float:
        helps = sum(sleeper.held.of(resource) for resource in short)
        return sleeper.wake_gain_s / max(1, helps) / (1.0 + sleeper.idle_s)

    return sorted(sleepers, key=loss)


def _until_it_fits(order: Sequence[Sleeper], short: Mapping[str, int]) -> list[Sleeper] | None:
    chosen: list[Sleeper] = []
    for sleeper in order:
        lacking = _lacking(chosen, short)
        if not lacking:
            break
        if any(sleeper.held.of(resource) for resource in lacking):
            chosen.append(sleeper)
    return None if _lacking(chosen, short) else chosen


def _only_needed(chosen: list[Sleeper], short: Mapping[str, int]) -> list[Sleeper]:
    """Spare the dearest first whose memory is not needed beside what the others free."""
    kept = list(chosen)
    for sleeper in reversed(chosen):
        rest = [other for other in kept if other is not sleeper]
        if not _lacking(rest, short):
            kept = rest
    return kept


def _lacking(chosen: list[Sleeper], short: Mapping[str, int]) -> list[str]:
    claims = [sleeper.held for sleeper in chosen]
    return [resource for resource, by in short.items() if total(claims, resource) < by]
