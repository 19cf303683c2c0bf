"""Where the seconds of a vLLM start go: read from the lines of its log, each with the moment at which it was seen.

A phase ends where a line, or the birth of a process, says so. What lies between two ends belongs to the later one's phase, so
that the phases of a start always add up to all of it. Work that a start does beside other work counts where it is waited for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """A part of a start, in the order of the first time each is reached."""

    IMPORT = "imports, processes"
    CONFIG = "configuration"
    LOAD = "weights"
    GRAPHS = "compile, graphs"
    WARM_UP = "key-value cache, warm-up"
    API = "application, server"
    FIRST_TOKEN = "first token"


@dataclass(frozen=True)
class Line:
    """A line of a log and the seconds from the spawn until it was seen."""

    at_s: float
    text: str


_CORE: Final = "EngineCore"
_BORN: Final = re.compile(r"\((EngineCore|Worker)\w*(?:-\d+)? pid=(\d+)\)")


@dataclass(frozen=True)
class _End:
    phase: Phase
    line: re.Pattern[str] | None = None
    birth: str = ""
    last: bool = False


# vLLM 0.32 and 0.33 say these in this order; a line that a version or a configuration leaves out ends nothing.
_ENDS: Final = (
    _End(Phase.IMPORT, re.compile(r"non-default args")),
    _End(Phase.CONFIG, birth=_CORE),
    _End(Phase.IMPORT, re.compile(r"Initializing a V1 LLM engine")),
    _End(Phase.IMPORT, re.compile(r"world_size=\d+ rank=\d+")),
    _End(Phase.LOAD, re.compile(r"Loading weights took|Model loading took|Explicitly set .* for KV cache"), last=True),
    _End(Phase.GRAPHS, re.compile(r"torch\.compile took|Graph capturing finished"), last=True),
    _End(Phase.WARM_UP, re.compile(r"init engine \(.*\) took")),
    _End(Phase.API, re.compile(r"Starting vLLM server on|Route: |Application startup complete"), last=True),
)


def process_numbers(lines: Sequence[Line]) -> dict[str, int]:
    """Return the numbers of the processes that speak in the log, by role; the first of each role."""
    found: dict[str, int] = {}
    for line in lines:
        for role, number in _BORN.findall(line.text):
            found.setdefault(role, int(number))
    return found


def phases(lines: Sequence[Line], births: Mapping[str, float], first_token_s: float) -> dict[Phase, float]:
    """Return the seconds of each phase of a start that gave its first token after ``first_token_s``.

    ``births``: seconds from the spawn to the start of the process of a role, see ``process_numbers``.
    """
    spent = dict.fromkeys(Phase, 0.0)
    reached = 0.0
    for phase, at_s in _ends(lines, births):
        end = min(max(at_s, reached), first_token_s)
        spent[phase] += end - reached
        reached = end
    spent[Phase.FIRST_TOKEN] += first_token_s - reached
    return spent


def _ends(lines: Sequence[Line], births: Mapping[str, float]) -> Iterator[tuple[Phase, float]]:
    for end in _ENDS:
        if end.line is None:
            if end.birth in births:
                yield end.phase, births[end.birth]
            continue
        told = [line.at_s for line in lines if end.line.search(line.text)]
        if told:
            yield end.phase, told[-1 if end.last else 0]
