"""How urgent a request is, and how each engine is told; their numbers run in opposite directions. Pure."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final

from standby.domain.model import EngineKind


class Priority(StrEnum):
    """How urgent a request is; the members stand in order, the most urgent first."""

    URGENT = "urgent"
    HIGH = "high"
    NORMAL = "normal"
    BATCH = "batch"

    @property
    def rank(self) -> int:
        """0 for the most urgent, growing."""
        return _RANKS[self]

    def capped(self, highest: Priority) -> Priority:
        """Return this priority, or ``highest`` where this one is more urgent than that."""
        return _CAPPED[self, highest]


_RANKS: Final = MappingProxyType({priority: rank for rank, priority in enumerate(Priority)})
# A table, since each request asks twice.
_CAPPED: Final = MappingProxyType(
    {(one, highest): one if _RANKS[one] >= _RANKS[highest] else highest for one in Priority for highest in Priority}
)

# vLLM: an integer, LOWER first. Normal is its default: any other number is an error unless it schedules by priority.
_VLLM: Final = MappingProxyType({Priority.URGENT: -20, Priority.HIGH: -10, Priority.NORMAL: 0, Priority.BATCH: 10})
# TensorRT-LLM: a number from 0 to 1, HIGHER first; 0.5 is its default.
_TENSORRT_LLM: Final = MappingProxyType({Priority.URGENT: 1.0, Priority.HIGH: 0.75, Priority.NORMAL: 0.5, Priority.BATCH: 0.1})


def engine_priority(kind: EngineKind, priority: Priority) -> int | float | None:
    """Return what to put into the request's ``priority`` for an engine of ``kind``; None: it knows no priorities."""
    match kind:
        case EngineKind.VLLM:
            return _VLLM[priority]
        case EngineKind.TENSORRT_LLM:
            return _TENSORRT_LLM[priority]
        case _:
            return None
