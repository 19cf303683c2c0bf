"""Capped memory: who holds how much, who waits for some, and who may be asked to give it back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from standby.controller.eviction import MemoryKind
from standby.controller.simulator.cost_model import CostModel
from standby.controller.simulator.protocol import Caps, Eviction, Policy, Resting
from standby.controller.simulator.states import NEVER, Function, Instance
from standby.domain.errors import InvalidInput
from standby.domain.instance import Rung

# Sums of sizes in floating point; less than this is no lack.
_GRAIN_GB = 1e-6


class Pool:
    """Device and host memory of all nodes together, in GB. A start reserves its model's size from its begin on."""

    def __init__(self, caps: Caps, functions: Sequence[Function], model: CostModel, policy: Policy) -> None:
        total = sum(function.size for function in functions)
        self.functions = functions
        self.policy = policy
        self.rungs = model.rungs
        self.limit = {
            MemoryKind.DEVICE: NEVER if caps.device is None else caps.device * total,
            MemoryKind.HOST: NEVER if caps.host is None else caps.host * total,
        }
        self.used = dict.fromkeys(MemoryKind, 0.0)
        self.waiting: deque[Instance] = deque()
        largest = max((function.size for function in functions), default=0.0)
        if largest > self.limit[MemoryKind.DEVICE]:
            raise InvalidInput(
                f"the device cap {caps.device} is {self.limit[MemoryKind.DEVICE]:.1f} GB, the largest model {largest:.1f} GB",
                remedy=f"give a share of at least {largest / total:.3f}",
            )

    def held(self, rung: Rung, size: float, kind: MemoryKind) -> float:
        """Return the GB of ``kind`` that a model of ``size`` holds on ``rung``."""
        at = self.rungs[rung]
        return at.on_device(size) if kind is MemoryKind.DEVICE else at.host * size

    def lacking(self, instance: Instance, kind: MemoryKind) -> float:
        """Return the GB that are lacking for its start (device) or its sleep (host); 0 or less: none."""
        next_rung = Rung.READY if kind is MemoryKind.DEVICE else Rung.ASLEEP
        lacking = self.used[kind] + self._more(instance, next_rung, kind) - self.limit[kind]
        return lacking if lacking > _GRAIN_GB else 0.0

    def starts(self, instance: Instance) -> None:
        """Reserve what ready takes, and give up what its rung held."""
        self._move(instance, Rung.READY)

    def lowers(self, instance: Instance, rung: Rung) -> None:
        """Book its fall to ``rung``."""
        self._move(instance, rung)

    def _move(self, instance: Instance, rung: Rung) -> None:
        for kind in MemoryKind:
            self.used[kind] += self._more(instance, rung, kind)

    def _more(self, instance: Instance, rung: Rung, kind: MemoryKind) -> float:
        size = instance.function.size
        return self.held(rung, size, kind) - self.held(instance.rung, size, kind)

    def resting(self, asker: Instance | None, kind: MemoryKind, now: float) -> list[Resting]:
        """Return everyone but ``asker`` that does not work and holds memory of ``kind``."""
        found = []
        for function in self.functions:
            for one in function.instances:
                if one.busy or one.starting or one.waiting or one is asker or one.rung <= Rung.STAGED:
                    continue
                held = self.held(one.rung, function.size, kind)
                if held > 0:
                    found.append(Resting(function.number, one.number, one.rung, function.size, held, now - one.idle_at))
        return found

    def within_reach(self, now: float) -> list[Instance]:
        """Return those that wait and for which there would be memory if everyone who rests gave up theirs."""
        spare = self.limit[MemoryKind.DEVICE] - self.used[MemoryKind.DEVICE]
        spare += sum(one.held_gb for one in self.resting(None, MemoryKind.DEVICE, now))
        return [one for one in self.waiting if self._more(one, Rung.READY, MemoryKind.DEVICE) <= spare + _GRAIN_GB]

    def checked(self, eviction: Eviction, resting: Sequence[Resting]) -> Instance:
        """Return whom the policy named. Raises InvalidInput for one that does not rest, or would not fall."""
        for one in resting:
            if (one.function, one.number) == (eviction.function, eviction.number) and eviction.rung < one.rung:
                return next(i for i in self.functions[one.function].instances if i.number == one.number)
        raise InvalidInput(
            f"policy {self.policy.name} evicts instance {eviction.number} of function {eviction.function} to "
            f"{eviction.rung.label}, which does not rest above that",
            remedy="name one of the resting instances and a lower rung",
        )
