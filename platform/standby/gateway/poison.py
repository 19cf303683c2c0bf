"""Requests that kill engines: who is suspected, who is convicted, for how long. A book of its own; no clock, no I/O.

An engine that dies with one request in flight, which it had read, was killed by it, as far as anybody can tell: that
request is convicted, and the same one (its tenant, its endpoint, its body) is refused for a while. Of several in flight,
and where it is not known whether the engine had read it, all are suspects; most engines die of something else, so that a
suspect is free to be tried again at once. Who was in flight when a second engine died is convicted if it was alone at
either death, else it is a grave suspect: that one runs only while no other grave suspect of its endpoint does
(``standby.gateway.quarantine``), and a third death convicts it. An answer clears a suspect (field case B34).

An engine of several processes may still answer with a 500 when the one that does the work is gone. Whoever got an engine's
fault is remembered for a moment: when the node says that the engine has failed, that was its end.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple

REFUSED_FOR_S: Final = 600.0
ENTRIES: Final = 10_000
# Requests that one engine's end has ended are told of it one after the other: until then it is one death.
ONE_DEATH_S: Final = 10.0
_DEATHS: Final = 256
# Between an engine's last fault and its node's word that it has failed, in whichever order they come.
WORD_S: Final = 2.0


class Kept(NamedTuple):
    """For whom something is kept: bodies of other lengths need not even be compared."""

    tenant: str
    endpoint: str
    length: int


class Conviction(NamedTuple):
    """``until`` is by the book's clock, in seconds; ``fingerprint`` is in hexadecimal digits."""

    who: Kept
    fingerprint: str
    until: float
    reason: str


class Death(NamedTuple):
    """An engine's end, as a request that was with it learns of it.

    ``alone``: no other request was there, of any gateway. ``read``: the engine had certainly read it; one that reached an
    engine at its end is not what it died of.
    """

    instance: str
    epoch: int
    alone: bool
    read: bool = True


class Verdict(Enum):
    """What the book says of a request that an engine's end has ended."""

    CONVICTED = "convicted"
    SUSPECT = "suspect"
    GRAVE = "grave"  # a suspect of two deaths
    INNOCENT = "innocent"  # the same death has convicted another one


class Standing(Enum):
    """What the book says of a request that comes."""

    UNKNOWN = "unknown"
    SUSPECT = "suspect"
    GRAVE = "grave"
    CONVICTED = "convicted"


@dataclass(slots=True, eq=False)  # a death is itself: the same engine's next one is another
class _Dead:
    """One death: when it was first told, and what it has led to."""

    at: float
    solved: bool = False
    suspects: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Suspicion:
    """``deaths``: those that nobody else explains; whether it was alone at each."""

    who: Kept
    until: float
    deaths: dict[_Dead, bool] = field(default_factory=dict)

    @property
    def grave(self) -> bool:
        return len(self.deaths) > 1


class _Fault(NamedTuple):
    who: Kept
    mark: str
    death: Death
    at: float


def fingerprint(who: Kept, body: bytes) -> str:
    """Return the name of a request: another tenant's same body is another one."""
    digest = blake2b(digest_size=16)
    for part in (who.tenant, who.endpoint):
        digest.update(b"%d:%b" % (len(part), part.encode()))
    digest.update(body)
    return digest.hexdigest()


@dataclass
class PoisonBook:
    """``now`` is a monotonic clock in seconds. ``on_conviction`` is told of each conviction made here.

    Bounded: the oldest entry goes first.
    """

    on_conviction: Callable[[Conviction], None] = lambda _conviction: None
    entries: int = ENTRIES
    _convicted: OrderedDict[str, Conviction] = field(default_factory=OrderedDict)
    _suspects: OrderedDict[str, _Suspicion] = field(default_factory=OrderedDict)
    _deaths: OrderedDict[tuple[str, int], _Dead] = field(default_factory=OrderedDict)
    _kept: dict[Kept, int] = field(default_factory=dict)
    _faults: deque[_Fault] = field(default_factory=lambda: deque(maxlen=_DEATHS))
    _failed: OrderedDict[tuple[str, int], float] = field(default_factory=OrderedDict)

    @property
    def empty(self) -> bool:
        """Whether nobody is suspected or convicted: then there is nothing to compare."""
        return not self._kept

    def concerns(self, who: Kept) -> bool:
        """Whether anything is kept that a request like this could be."""
        return who in self._kept

    def standing(self, mark: str, now: float) -> Standing:
        """Return what is known of the request with this fingerprint."""
        if self.conviction(mark, now) is not None:
            return Standing.CONVICTED
        suspicion = self._suspects.get(mark)
        if suspicion is None:
            return Standing.UNKNOWN
        if suspicion.until <= now:
            self._acquit(mark)
            return Standing.UNKNOWN
        return Standing.GRAVE if suspicion.grave else Standing.SUSPECT

    def conviction(self, mark: str, now: float) -> Conviction | None:
        """Return the conviction of the request with this fingerprint, while it holds."""
        found = self._convicted.get(mark)
        if found is not None and found.until <= now:
            self._forget(self._convicted.pop(mark).who)
            return None
        return found

    def died(self, who: Kept, mark: str, death: Death, now: float) -> Verdict:
        """Take up that an engine died with this request in flight."""
        dead = self._dead((death.instance, death.epoch), now)
        fresh = dead is None
        if dead is None:
            dead = self._note((death.instance, death.epoch), now)
        if self.standing(mark, now) is Standing.CONVICTED:
            # It was on its way already when it was convicted: this death, too, is explained.
            self._solve(dead)
            return Verdict.CONVICTED
        if dead.solved:
            return Verdict.INNOCENT
        # The others of a death that was told already may have been released: who comes late only seems alone.
        alone = death.alone and fresh
        earlier = self._suspects.get(mark)
        if earlier is None or dead not in earlier.deaths:
            reason = _proof(earlier, alone=alone, read=death.read)
            if reason:
                return self._convict(Conviction(who, mark, now + REFUSED_FOR_S, reason), dead)
            earlier = self._suspect(who, mark, dead, now, alone=alone)
        return Verdict.GRAVE if earlier.grave else Verdict.SUSPECT

    def faulty(self, who: Kept, mark: str, death: Death, now: float) -> None:
        """Take up that a request got an engine's fault; it is the engine's end only if the node says so."""
        failed_at = self._failed.get((death.instance, death.epoch))
        if failed_at is not None and now - failed_at <= WORD_S:
            self.died(who, mark, death, now)
        else:
            self._faults.append(_Fault(who, mark, death, now))

    def engine_failed(self, instance: str, epoch: int, now: float) -> None:
        """Take up a node's word that an engine has failed."""
        self._failed[instance, epoch] = now
        if len(self._failed) > _DEATHS:
            self._failed.popitem(last=False)
        for fault in [fault for fault in self._faults if (fault.death.instance, fault.death.epoch) == (instance, epoch)]:
            self._faults.remove(fault)
            if now - fault.at <= WORD_S:
                self.died(fault.who, fault.mark, fault.death, now)

    def answered(self, mark: str) -> None:
        """An engine has answered this request: it does not kill."""
        self._acquit(mark)

    def learn(self, conviction: Conviction) -> None:
        """Take up what is found out, here or by another gateway: it explains each death at which that request was."""
        for dead in self._acquit(conviction.fingerprint):
            self._solve(dead)
        if conviction.fingerprint not in self._convicted:
            self._keep(conviction.who)
        self._convicted[conviction.fingerprint] = conviction
        self._convicted.move_to_end(conviction.fingerprint)
        if len(self._convicted) > self.entries:
            self._forget(self._convicted.popitem(last=False)[1].who)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _dead(self, key: tuple[str, int], now: float) -> _Dead | None:
        """Return the death of which others have been told already."""
        dead = self._deaths.get(key)
        return None if dead is None or dead.at + ONE_DEATH_S <= now else dead

    def _note(self, key: tuple[str, int], now: float) -> _Dead:
        dead = self._deaths[key] = _Dead(now)
        self._deaths.move_to_end(key)
        if len(self._deaths) > _DEATHS:
            self._deaths.popitem(last=False)
        return dead

    def _convict(self, conviction: Conviction, dead: _Dead) -> Verdict:
        self.learn(conviction)
        self._solve(dead)
        self.on_conviction(conviction)
        return Verdict.CONVICTED

    def _solve(self, dead: _Dead) -> None:
        """It is known who did it: those that were there by chance are cleared of it."""
        dead.solved = True
        for other in dead.suspects:
            suspicion = self._suspects.get(other)
            if suspicion is not None and suspicion.deaths.pop(dead, None) is not None and not suspicion.deaths:
                self._acquit(other)
        dead.suspects.clear()

    def _suspect(self, who: Kept, mark: str, dead: _Dead, now: float, *, alone: bool) -> _Suspicion:
        suspicion = self._suspects.get(mark)
        if suspicion is None:
            self._keep(who)
            suspicion = self._suspects[mark] = _Suspicion(who, 0.0)
        suspicion.until = now + REFUSED_FOR_S
        suspicion.deaths[dead] = alone
        self._suspects.move_to_end(mark)
        dead.suspects.append(mark)
        if len(self._suspects) > self.entries:
            self._forget(self._suspects.popitem(last=False)[1].who)
        return suspicion

    def _acquit(self, mark: str) -> tuple[_Dead, ...]:
        """End a suspicion; returns the deaths that it was of."""
        suspicion = self._suspects.pop(mark, None)
        if suspicion is None:
            return ()
        self._forget(suspicion.who)
        return tuple(suspicion.deaths)

    def _keep(self, who: Kept) -> None:
        self._kept[who] = self._kept.get(who, 0) + 1

    def _forget(self, who: Kept) -> None:
        left = self._kept[who] - 1
        if left:
            self._kept[who] = left
        else:
            del self._kept[who]


def _proof(earlier: _Suspicion | None, *, alone: bool, read: bool) -> str:
    """Return why one more death convicts a request, of which ``earlier`` was known; empty: it does not."""
    if alone and read:
        return "an engine died with it, and with nothing else in flight"
    if earlier is None:
        return ""
    if alone or any(earlier.deaths.values()):
        return "two engines died with it, one of them with nothing else in flight"
    return "three engines died with it" if earlier.grave else ""
