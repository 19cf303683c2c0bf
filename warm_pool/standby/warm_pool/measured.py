"""Measured sizes of models on this node, by model and options, and what an instance needs by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field

from standby.domain.assignment import Assignment
from standby.domain.prices import Footprint
from standby.domain.values import Record
from standby.warm_pool.ledger import Claim

# Ten percent over what was ever seen: the next request may be longer than all before it.
HOST_MARGIN_PERCENT: Final = 10
# Engines take their device memory at the start, key-value cache included; what comes later is small.
DEVICE_MARGIN_PERCENT: Final = 3
WEIGHT_OF_SMALLER: Final = 0.3
MOST_SIZES: Final = 200
_GROWS: Final = ("awake", "peak", "device_awake")


class StoredSizes(Record):
    """Footprints by ``PriceKey.text``, the one measured last at the end."""

    footprints: Mapping[str, Footprint] = Field(default_factory=dict)


def grown(before: Footprint, seen: Footprint) -> Footprint:
    """Return the footprint after one more look at a living instance: the highest while awake, the newest while asleep."""
    highest = {name: _highest(getattr(before, name), getattr(seen, name)) for name in _GROWS}
    return Footprint(
        **highest,
        asleep=before.asleep if seen.asleep is None else seen.asleep,
        device_asleep=before.device_asleep if seen.device_asleep is None else seen.device_asleep,
    )


def folded(before: Footprint, life: Footprint) -> Footprint:
    """Return the footprint after a whole life: what was larger counts at once, what was smaller by a third.

    One instance that went astray must not make its model too big for the node for ever.
    """
    settled = {name: _settled(getattr(before, name), getattr(life, name)) for name in _GROWS}
    return grown(before, life).model_copy(update=settled)


def needed(assignment: Assignment, size: Footprint, estimate: Callable[[], int], devices: Sequence[str]) -> Claim:
    """Return what an awake instance needs: as configured, else as measured with a margin, else as estimated.

    The configured size means host memory; what is needed of ``devices`` is measured or estimated, in equal shares.
    Raises what ``estimate`` raises, where it has to be asked.
    """
    measured = max(size.awake or 0, size.peak or 0)
    guess = estimate() if (assignment.memory_mb is None and not measured) or (devices and not size.device_awake) else 0
    if assignment.memory_mb is not None:
        host = assignment.memory_mb * 1024 * 1024
    else:
        host = _more(measured, HOST_MARGIN_PERCENT) if measured else guess
    if not devices:
        return Claim(host)
    there = _more(size.device_awake, DEVICE_MARGIN_PERCENT) if size.device_awake else guess
    return Claim(host, {device: -(-there // len(devices)) for device in devices})


@dataclass
class Sizes:
    """The agent's store of footprints; part of its loop. ``revision`` grows with every change.

    Looks at a living instance are kept apart until it has ended, so that the highest of each life is known.
    """

    kept: dict[str, Footprint] = field(default_factory=dict)
    revision: int = 0
    _living: dict[str, tuple[str, Footprint]] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: StoredSizes) -> Sizes:
        """Return the store as it was written."""
        return cls(kept=dict(stored.footprints))

    def stored(self) -> StoredSizes:
        """Return what is to be written."""
        return StoredSizes(footprints={key: self.footprint(key) for key in self.keys()})

    def keys(self) -> tuple[str, ...]:
        """Return everything that was measured, the newest last."""
        return tuple(dict.fromkeys((*self.kept, *(key for key, _seen in self._living.values()))))

    def footprint(self, key: str) -> Footprint:
        """Return what is known of a model with given options."""
        known = self.kept.get(key, Footprint())
        for where, seen in self._living.values():
            if where == key:
                known = grown(known, seen)
        return known

    def seen(self, key: str, instance: str, look: Footprint) -> None:
        """Note one look at a living instance; None in ``look`` means that it says nothing of that."""
        where, before = self._living.get(instance, (key, Footprint()))
        if where != key:  # its options were changed while it lived
            self.ended(instance)
            before = Footprint()
        after = grown(before, look)
        if after != before:
            self._living[instance] = (key, after)
            self.revision += 1

    def ended(self, instance: str) -> None:
        """Fold a life that is over into what is kept; the oldest beyond the cap is forgotten."""
        key, life = self._living.pop(instance, ("", Footprint()))
        if not key:
            return
        self.kept[key] = folded(self.kept.pop(key, Footprint()), life)
        for oldest in tuple(self.kept)[: max(0, len(self.kept) - MOST_SIZES)]:
            del self.kept[oldest]
        self.revision += 1


def _more(amount: int, percent: int) -> int:
    return -(-amount * (100 + percent) // 100)


def _highest(one: int | None, other: int | None) -> int | None:
    known = [amount for amount in (one, other) if amount is not None]
    return max(known, default=None)


def _settled(before: int | None, life: int | None) -> int | None:
    if before is None or life is None:
        return before if life is None else life
    return life if life >= before else round(before + WEIGHT_OF_SMALLER * (life - before))
