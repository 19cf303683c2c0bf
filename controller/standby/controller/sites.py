"""The nodes as one plan sees them, indexed once: who is alive, who is able, who knows a model, who has most room. Pure.

A plan that places many instances asks of every node only what it cannot know otherwise. Nodes that know nothing of a model
are all alike to it but for their memory, so that the one with most free stands for all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

from standby.controller.view import NODE_LOST_AFTER_S, ObservedNode
from standby.domain.model import EngineKind

# By node: the tenants that have something there, and whether one of them wants no other tenant beside it.
Residents: TypeAlias = Mapping[str, Mapping[str, bool]]
_NOBODY: Final[Mapping[str, bool]] = {}
_NOWHERE: Final[frozenset[str]] = frozenset()
_Heap: TypeAlias = list[tuple[int, str]]


class Sites:
    """Local to one plan; ``promised`` and ``residents`` grow with what it places.

    ``promised``: by node, bytes of assignments that the node's ledger does not know yet.
    """

    def __init__(
        self,
        nodes: Mapping[str, ObservedNode],
        promised: Mapping[str, int],
        now: float,
        residents: Residents | None = None,
    ) -> None:
        self.nodes = nodes
        self.living = {name: node for name, node in nodes.items() if now - node.seen_at < NODE_LOST_AFTER_S}
        # Those whose instances stay: an operator's or the agent's own end empties the others.
        self.keeping = frozenset(name for name, node in self.living.items() if not node.record.mode.sheds)
        self.promised = dict(promised)
        self._residents = {name: dict(tenants) for name, tenants in (residents or {}).items()}
        self._free: dict[str, int] = {}
        self._able: dict[EngineKind, dict[str, ObservedNode]] = {}
        self._most_free: dict[EngineKind, tuple[_Heap, _Heap]] = {}
        self._on_gpu: dict[EngineKind, bool] = {}
        self._staged: dict[str, set[str]] | None = None
        self._measured: dict[str, set[str]] | None = None

    def able(self, engine: EngineKind) -> Mapping[str, ObservedNode]:
        """Return the living nodes that run ``engine`` and take something new."""
        found = self._able.get(engine)
        if found is None:
            found = {name: node for name, node in self.living.items() if engine in node.record.engines and node.open}
            self._able[engine] = found
        return found

    def free(self, node: ObservedNode) -> int:
        """Return the bytes of host memory there that are promised to nobody."""
        name = node.record.name
        ledger = self._free.get(name)
        if ledger is None:
            ledger = self._free[name] = node.record.memory.free
        return max(0, ledger - self.promised.get(name, 0))

    def place(self, node: str, need: int, tenant: str, *, isolate: bool) -> None:
        """Note that ``need`` bytes there are promised to an instance of ``tenant``."""
        self.promised[node] = self.promised.get(node, 0) + need
        there = self._residents.setdefault(node, {})
        there[tenant] = there.get(tenant, False) or isolate

    @property
    def shared(self) -> bool:
        """Whether no tenant that is known of wants a node for itself."""
        return not any(any(tenants.values()) for tenants in self._residents.values())

    def admits(self, node: str, tenant: str, *, isolate: bool) -> bool:
        """Whether an instance of ``tenant`` may stand beside what is there; ``isolate``: beside nobody else's."""
        others = (alone for other, alone in self._residents.get(node, _NOBODY).items() if other != tenant)
        return not any(isolate or alone for alone in others)

    def has_staged(self, node: str, digest: str) -> bool:
        """Whether the bytes of the model are in the node's cache."""
        if self._staged is None:
            self._staged = self._who_has()
        return node in self._staged.get(digest, ())

    def knowing(self, digest: str) -> Collection[str]:
        """Return the living nodes that have bytes, prices or measured memory of the model."""
        if self._staged is None:
            self._staged = self._who_has()
        if self._measured is None:
            self._measured = self._who_measured()
        return self._staged.get(digest, _NOWHERE) | self._measured.get(digest, _NOWHERE)

    def _who_has(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name, node in self.living.items():
            for artifact in node.record.artifacts:
                known = found.get(artifact.digest)
                if known is None:
                    found[artifact.digest] = {name}
                else:
                    known.add(name)
        return found

    def _who_measured(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name, node in self.living.items():
            record = node.record
            for digest in (*record.costs, *record.footprints, *record.device_footprints):
                found.setdefault(digest, set()).add(name)
        return found

    def on_gpu(self, engine: EngineKind) -> bool:
        """Whether the engine computes on a GPU on some node: what is free on each of its devices has to be looked at."""
        if engine not in self._on_gpu:
            self._on_gpu[engine] = any(node.needs_gpu(engine) for node in self.able(engine).values())
        return self._on_gpu[engine]

    def most_free(self, engine: EngineKind, but: Collection[str]) -> Iterable[ObservedNode]:
        """Return the able node with most free memory that is not in ``but``; and the same of those not yet seen alive.

        The first by name where several have as much.
        """
        able = self.able(engine)
        heaps = self._most_free.get(engine)
        if heaps is None:
            heaps = self._most_free[engine] = ([], [])
            for name, node in able.items():
                heaps[not node.confirmed].append((-self.free(node), name))
            for heap in heaps:
                heapq.heapify(heap)
        found = (self._first(heap, able, but) for heap in heaps)
        return [able[name] for name in found if name is not None]

    def _first(self, heap: _Heap, able: Mapping[str, ObservedNode], but: Collection[str]) -> str | None:
        """Return the first of ``heap`` that is not in ``but``. What is promised only grows: entries are put right when met."""
        aside: _Heap = []
        found = None
        while heap:
            free, name = heap[0]
            now = -self.free(able[name])
            if now != free:
                heapq.heapreplace(heap, (now, name))
            elif name in but:
                aside.append(heapq.heappop(heap))
            else:
                found = name
                break
        for entry in aside:
            heapq.heappush(heap, entry)
        return found
