"""The ready instances of one variant as one gateway sees them: which of them get requests, and how many each has."""

from __future__ import annotations

from dataclasses import dataclass, field

from standby.domain.instance import Instance, InstanceState
from standby.gateway.router import Candidate, Choice, choose


@dataclass(slots=True)
class ReadyInstance:
    """A ready instance and when this gateway learnt of its present epoch."""

    record: Instance
    seen: float
    blocked_until: float = 0.0


@dataclass(slots=True)
class ReadyInstances:
    """``usable`` are those that get requests; ``outstanding`` counts what each of them has, of any epoch and version."""

    version: str = ""
    outstanding: dict[str, int] = field(default_factory=dict)
    usable: dict[str, ReadyInstance] = field(default_factory=dict)
    _all: dict[str, ReadyInstance] = field(default_factory=dict)
    _ejected: dict[str, int] = field(default_factory=dict)
    _ticket: int = 0

    def changed(self, record: Instance, seen: float, *, removed: bool) -> None:
        """Take up what a node says of an instance; ``seen``: when this epoch was first heard of."""
        known = self._all.get(record.id)
        usable = not removed and record.state is InstanceState.READY and self._ejected.get(record.id) != record.epoch
        if not usable:
            self._all.pop(record.id, None)
        elif known is None or known.record.epoch != record.epoch:
            self._ejected.pop(record.id, None)
            self._all[record.id] = ReadyInstance(record, seen)
        else:
            known.record = record
        if removed:
            self._ejected.pop(record.id, None)
        self._sort_out()

    def serve(self, version: str) -> None:
        """From now on prefer instances of ``version``; empty: it is not known, and all are alike."""
        self.version = version
        self._sort_out()

    def find(self, instance: str, epoch: int) -> ReadyInstance | None:
        """Return the instance if it is still ready at this epoch."""
        ready = self._all.get(instance)
        return ready if ready is not None and ready.record.epoch == epoch else None

    def eject(self, instance: str, epoch: int) -> None:
        """Ignore this epoch from now on, whatever the records say: it is over."""
        self._ejected[instance] = epoch
        del self._all[instance]
        self._sort_out()

    def choose(self, now: float, wanted: str | None) -> Choice:
        """Return which instance the next request goes to; ``wanted``, while it is usable, is the only one asked."""
        self._ticket += 1
        bound = None if wanted is None else self.usable.get(wanted)
        return choose(
            (
                Candidate(name, self.outstanding.get(name, 0), ready.record.slots, ready.blocked_until)
                for name, ready in (self.usable.items() if bound is None else ((bound.record.id, bound),))
            ),
            now,
            self._ticket,
        )

    def took(self, instance: str) -> None:
        """One more request is with the instance."""
        self.outstanding[instance] = self.outstanding.get(instance, 0) + 1

    def gave_back(self, instance: str) -> None:
        """One request of the instance has ended."""
        left = self.outstanding[instance] - 1
        if left:
            self.outstanding[instance] = left
        else:
            del self.outstanding[instance]

    @property
    def slots(self) -> int:
        """Requests that the doors of all usable ones let in at once."""
        return sum(ready.record.slots for ready in self.usable.values())

    def has_free(self, now: float, *, but: ReadyInstance) -> bool:
        """Whether another one has a slot free, as far as is known here, and is not paused."""
        return any(ready is not but and ready.blocked_until <= now and self._free(ready) for ready in self.usable.values())

    @property
    def has_room(self) -> bool:
        """Whether one has a slot free, as far as is known here; it may be paused."""
        return any(self._free(ready) for ready in self.usable.values())

    def _free(self, ready: ReadyInstance) -> bool:
        return self.outstanding.get(ready.record.id, 0) < ready.record.slots

    def _sort_out(self) -> None:
        """Choose those of the present version; all while there is none.

        An update brings its instances up beside those that serve: they get requests when it takes over, and those before
        it only until then.
        """
        version = self.version
        present = {name: ready for name, ready in self._all.items() if not version or ready.record.version in ("", version)}
        self.usable = present or self._all
