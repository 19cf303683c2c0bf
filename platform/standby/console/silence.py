"""Which nodes have fallen silent: their records stay as they were, and say that everything is well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from standby.domain.node import Node

# As long as a controller takes a node for living.
SILENT_AFTER_S: Final = 15.0


class _Beat(NamedTuple):
    boot_id: str
    number: int
    heard_at: float


@dataclass
class Silence:
    """Judges by whether heart beats move, by the listener's own monotonic clock: clocks of nodes need not agree."""

    nodes: frozenset[str] = frozenset()
    _beats: dict[str, _Beat] = field(default_factory=dict)
    _deaf: bool = False

    def listen(self, nodes: Iterable[Node], now: float, *, connected: bool) -> None:
        """Take down the nodes' records as they are now. Without the bus nobody is heard, which says nothing of the nodes."""
        if not connected:
            self._deaf = True
            return
        before, self._beats = self._beats, {}
        for node in nodes:
            known = before.get(node.name)
            moved = known is None or (known.boot_id, known.number) != (node.boot_id, node.heartbeat)
            heard_at = now if known is None or moved or self._deaf else known.heard_at
            self._beats[node.name] = _Beat(node.boot_id, node.heartbeat, heard_at)
        self._deaf = False
        self.nodes = frozenset(name for name, beat in self._beats.items() if now - beat.heard_at >= SILENT_AFTER_S)
