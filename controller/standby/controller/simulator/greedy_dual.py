"""FaasCache (Fuerst and Sharma, ASPLOS 2021): everything stays ready until its memory is needed; then the least worth goes."""

from __future__ import annotations

from collections.abc import Sequence

from standby.controller.demotion import Step
from standby.controller.eviction import MemoryKind
from standby.controller.simulator.baselines import FOREVER
from standby.controller.simulator.cost_model import CostModel
from standby.controller.simulator.protocol import Eviction, Resting
from standby.domain.instance import Rung


class GreedyDual:
    """Greedy-Dual-Size-Frequency. Worth is ``clock + frequency · wait after the eviction / size``, as of the last use.

    ``falls_to`` is the rung that an evicted instance keeps; where host memory is lacking as well, sleepers fall to staged.
    """

    def __init__(self, sizes: Sequence[float], model: CostModel, falls_to: Rung) -> None:
        self.name = f"greedy-dual-{falls_to.label}"
        self._falls_to = falls_to
        self._clock = 0.0
        self._density = [model.wait_s(falls_to, size) / size for size in sizes]
        self._frequency = [0] * len(sizes)
        self._worth: dict[tuple[int, int], float] = {}

    def arrived(self, function: int, now: float, gap_s: float | None) -> None:  # noqa: ARG002
        """Count the invocation."""
        self._frequency[function] += 1

    def idle_instance(self, function: int, number: int, now: float, idle_s: float) -> Step:  # noqa: ARG002
        """Everything stays as it is; what it was worth when it was used last is noted."""
        self._worth[function, number] = self._clock + self._frequency[function] * self._density[function]
        return Step(Rung.READY, FOREVER, "until the memory is needed")

    def idle(self, function: int, now: float, idle_s: float) -> Step:
        """As ``idle_instance`` of the lowest-numbered one."""
        return self.idle_instance(function, 0, now, idle_s)

    def victim(self, need_gb: float, kind: MemoryKind, resting: Sequence[Resting], now: float) -> Eviction | None:  # noqa: ARG002
        """Return whoever is worth least; the clock moves up to that worth, and its frequency begins anew."""
        able = [one for one in resting if one.rung is Rung.READY or kind is MemoryKind.HOST]
        if not able:
            return None
        least = min(able, key=lambda one: (self._worth[one.function, one.number], -one.idle_s, one.function, -one.number))
        if kind is MemoryKind.HOST:
            return Eviction(least.function, least.number, Rung.STAGED, "worth least among sleepers")
        self._clock = max(self._clock, self._worth[least.function, least.number])
        self._frequency[least.function] = 0
        return Eviction(least.function, least.number, self._falls_to, "worth least")
