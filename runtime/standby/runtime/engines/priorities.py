"""Translates our priorities into each engine's own numbers, whose directions are opposite. Pure."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final

from standby.domain.model import EngineKind


class PriorityLevel(StrEnum):
    """How urgent a request is."""

    URGENT = "urgent"
    HIGH = "high"
    NORMAL = "normal"
    BATCH = "batch"


# vLLM: an integer, LOWER first. Normal is its default: any other number is an error unless it schedules by priority.
_VLLM: Final = MappingProxyType(
    {PriorityLevel.URGENT: -20, PriorityLevel.HIGH: -10, PriorityLevel.NORMAL: 0, PriorityLevel.BATCH: 10}
)
# TensorRT-LLM: a number from 0 to 1, HIGHER first; 0.5 is its default.
_TENSORRT_LLM: Final = MappingProxyType(
    {PriorityLevel.URGENT: 1.0, PriorityLevel.HIGH: 0.75, PriorityLevel.NORMAL: 0.5, PriorityLevel.BATCH: 0.1}
)


def engine_priority(kind: EngineKind, level: PriorityLevel) -> int | float | None:
    """Return what to put into the request's ``priority`` for an engine of ``kind``; None: it knows no priorities."""
    match kind:
        case EngineKind.VLLM:
            return _VLLM[level]
        case EngineKind.TENSORRT_LLM:
            return _TENSORRT_LLM[level]
        case _:
            return None
