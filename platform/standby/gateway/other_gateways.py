"""What the other gateways have under way, from the beats that they send anyway: for the console's sums over all of them.

A beat of a thousand endpoints takes milliseconds to read, so that it is kept as it came until somebody looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pydantic import ValidationError

from standby.bus.subjects import beat_subject
from standby.console.values import EndpointKey
from standby.domain.demand import GatewayBeat

# A gateway that was silent for so long has nothing under way any more, or its counts are worth nothing.
SILENCE_S: Final = 3.5
# Rates are reckoned from the oldest and the newest of so many beats, one a second.
KEPT: Final = 6


class Elsewhere(NamedTuple):
    """One endpoint's requests at other gateways; ``rps``: requests per second that went to an instance."""

    in_flight: int = 0
    queued: int = 0
    rps: float = 0.0


@dataclass(slots=True)
class _Heard:
    at: float
    payload: bytes
    boot_id: str = ""
    read: dict[EndpointKey, tuple[int, int, int]] | None = None

    def counts(self) -> dict[EndpointKey, tuple[int, int, int]]:
        """Return requests in flight, waiting, and arrived so far, by endpoint; nothing where it is no beat."""
        if self.read is None:
            self.read = {}
            try:
                beat = GatewayBeat.model_validate_json(self.payload)
            except ValidationError:
                # A newer version's: it shows itself.
                return self.read
            self.payload, self.boot_id = b"", beat.boot_id
            for told in beat.demands:
                name = (told.tenant, told.endpoint)
                in_flight, queued, arrived = self.read.get(name, (0, 0, 0))
                self.read[name] = (in_flight + told.in_flight, queued + told.queued, arrived + (told.arrivals or 0))
        return self.read


@dataclass
class OtherGateways:
    """``own`` is this gateway's name in its beats, ``clock`` monotonic."""

    own: str
    clock: Callable[[], float]
    _heard: dict[str, deque[_Heard]] = field(default_factory=dict)

    def take(self, subject: str, payload: bytes) -> None:
        """Keep a beat."""
        if subject == beat_subject(self.own):
            return
        now = self.clock()
        self._heard.setdefault(subject, deque(maxlen=KEPT)).append(_Heard(now, payload))
        for gone in [name for name, beats in self._heard.items() if now - beats[-1].at > SILENCE_S]:
            del self._heard[gone]

    def traffic(self) -> dict[EndpointKey, Elsewhere]:
        """Return what they have, added up."""
        now = self.clock()
        sums: dict[EndpointKey, Elsewhere] = {}
        for beats in self._heard.values():
            first, last = beats[0], beats[-1]
            if now - last.at > SILENCE_S:
                continue
            counts = last.counts()
            before = first.counts() if last.at > first.at else {}
            known = first.boot_id == last.boot_id
            for name, (in_flight, queued, arrived) in counts.items():
                grown = arrived - before[name][2] if known and name in before else 0
                rps = max(0, grown) / (last.at - first.at) if grown else 0.0
                so_far = sums.get(name, Elsewhere())
                sums[name] = Elsewhere(so_far.in_flight + in_flight, so_far.queued + queued, so_far.rps + rps)
        return sums
