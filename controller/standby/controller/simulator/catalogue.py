"""Every policy by its name: standby's own, the published ones, and the bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final

from standby.controller.economics import PriceVector
from standby.controller.simulator import policies
from standby.controller.simulator.baselines import FOREVER, HybridHistogram, Schedule, SkiRental, fixed_ttl, no_keepalive
from standby.controller.simulator.cost_model import CostModel
from standby.controller.simulator.engine import replay
from standby.controller.simulator.greedy_dual import GreedyDual
from standby.controller.simulator.oracles import Clairvoyant, Future, KnowsGaps
from standby.controller.simulator.protocol import Caps, Policy
from standby.controller.simulator.report import Report
from standby.controller.simulator.trace import Trace
from standby.domain.errors import InvalidInput
from standby.domain.instance import Rung


@dataclass(frozen=True, slots=True)
class Setting:
    """What a replay is made of, apart from the policy. ``wait_price`` is λ: per second of a caller's wait."""

    trace: Trace
    model: CostModel = field(default_factory=CostModel)
    seed: int = 1
    prestaged: bool = False
    caps: Caps | None = None
    wait_price: float = 100.0

    def sizes(self) -> list[float]:
        """Return the GB of each function's model."""
        return [self.model.size_gb(name, self.seed) for name in self.trace.functions]

    def future(self) -> Future:
        """Return what only bounds may know."""
        return Future(self.trace.arrivals(self.seed), self.model)

    def prices(self) -> PriceVector:
        """Return the price vector of standby's own policies."""
        model = self.model
        return PriceVector(model.device_price, model.host_price, model.disk_price, self.wait_price)

    def replay(self, name: str, progress: Callable[[int], None] | None = None) -> Report:
        """Replay the trace under the policy called ``name``. Raises InvalidInput for an unknown one, and as ``replay``."""
        return replay(
            self.trace,
            build(name, self),
            self.model,
            seed=self.seed,
            caps=self.caps,
            prestaged=self.prestaged,
            progress=progress,
        )


Builder = Callable[[Setting], Policy]


def _evicting(rung: Rung) -> Builder:
    return lambda setting: GreedyDual(setting.sizes(), setting.model, rung)


def _standby(name: str, setting: Setting) -> Policy:
    return policies.ours(name, setting.sizes(), setting.model, setting.prices())


def _ttl(minutes: int) -> Builder:
    return lambda _: fixed_ttl(minutes)


_TIMERS: Final[Mapping[str, Builder]] = {
    "no-keepalive": lambda _: no_keepalive(),
    **{f"ttl-{minutes}": _ttl(minutes) for minutes in (1, 5, 10, 20, 60)},
    "asleep-1-cold-60": lambda _: Schedule((Rung.READY, 60.0), (Rung.ASLEEP, 3600.0), (Rung.COLD, FOREVER)),
    "asleep-0.25-staged-20": lambda _: Schedule((Rung.READY, 15.0), (Rung.ASLEEP, 1200.0), (Rung.STAGED, FOREVER)),
}
_LEARNING: Final[Mapping[str, Builder]] = {
    "ski-rental": lambda s: SkiRental(s.sizes(), s.model, s.wait_price),
    "hybrid-histogram": lambda s: HybridHistogram(s.sizes()),
}
_BOUNDS: Final[Mapping[str, Builder]] = {
    "knows-gaps": lambda s: KnowsGaps(s.future(), s.sizes(), s.model, s.wait_price),
    "clairvoyant": lambda s: Clairvoyant(s.future(), s.sizes(), s.model, prestaged=s.prestaged),
}
_EVICTING: Final[Mapping[str, Builder]] = {
    f"greedy-dual-{rung.label}": _evicting(rung) for rung in (Rung.COLD, Rung.STAGED, Rung.ASLEEP)
}
_OURS: Final[Mapping[str, Builder]] = {name: partial(_standby, name) for name in policies.NAMES}
POLICIES: Final[Mapping[str, Builder]] = MappingProxyType({**_TIMERS, **_LEARNING, **_EVICTING, **_BOUNDS, **_OURS})
# Without a cap nothing is ever evicted, and these would keep everything ready.
NEED_A_CAP: Final = frozenset(_EVICTING)


def build(name: str, setting: Setting) -> Policy:
    """Return a fresh policy. Raises InvalidInput naming those that there are."""
    policy = _builder(name)(setting)
    policy.name = name
    return policy


def chosen(names: Sequence[str], *, capped: bool) -> list[str]:
    """Return the policies that ``names`` mean, each once; ``all`` are those that make sense with or without caps.

    Raises InvalidInput for an unknown one.
    """
    found: dict[str, None] = {}
    for name in names:
        if name == "all":
            found.update(dict.fromkeys(one for one in POLICIES if capped or one not in NEED_A_CAP))
        else:
            _builder(name)
            found[name] = None
    return list(found)


def _builder(name: str) -> Builder:
    builder = POLICIES.get(name)
    if builder is None:
        raise InvalidInput(f"policy {name!r} is not known", remedy=f"use all or one of {', '.join(POLICIES)}")
    return builder
