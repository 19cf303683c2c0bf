"""Which traces are kept. Pure: the same trace id gives the same answer in every gateway."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from standby.telemetry.trace_context import Context

_BITS: Final = 64
_LOWER: Final = (1 << _BITS) - 1


@dataclass(frozen=True, slots=True)
class Sampler:
    """``ratio``: share of traces that are kept, 0 to 1. ``callers``: a caller's own decision counts, whichever it is.

    Errors and cold starts are kept whatever this says; that is decided where they show themselves.
    """

    ratio: float
    callers: bool
    _below: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_below", round(self.ratio * (1 << _BITS)))

    def keeps(self, trace: int, given: Context | None = None) -> bool:
        """Return whether to keep a trace, from its beginning; ``given``: what the caller says.

        The lower 64 bits of the id below the ratio, as OpenTelemetry's own sampler by trace id has it, so that one
        that was asked with the same ratio agrees.
        """
        if given is not None and self.callers:
            return given.sampled
        return trace & _LOWER < self._below
