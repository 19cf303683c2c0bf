"""Durations as people write them: ``250ms``, ``30s``, ``5m``, ``2h``, ``7d``, ``forever``."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import BeforeValidator

from standby.domain.errors import InvalidInput

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PATTERN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
FOREVER: Final = float("inf")


def parse_duration(text: str | float) -> float:
    """Return ``text`` in seconds; a bare number is seconds; ``forever`` is infinity.

    Raises InvalidInput for anything else, negative numbers included.
    """
    if isinstance(text, (int, float)):
        if text < 0:
            raise InvalidInput(f"duration {text} is negative", remedy="use 0 or more seconds")
        return float(text)
    cleaned = text.strip().lower()
    if cleaned in {"forever", "infinity"}:
        return FOREVER
    if re.fullmatch(r"\d+(\.\d+)?", cleaned):
        return float(cleaned)
    parts = _PATTERN.findall(cleaned)
    if not parts or "".join(number + unit for number, unit in parts) != cleaned:
        raise InvalidInput(f"duration {text!r} is not understood", remedy="write e.g. 250ms, 30s, 5m, 1h30m or forever")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """Return ``seconds`` the way a person reads it: ``850 ms``, ``4.2 s``, ``3 m 20 s``, ``2 h 5 m``, ``forever``."""
    if seconds == FOREVER:
        return "forever"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} m"


def _validate(value: object) -> float:
    try:
        return parse_duration(value)  # type: ignore[arg-type]
    except InvalidInput as error:
        raise ValueError(str(error)) from error


Seconds = Annotated[float, BeforeValidator(_validate)]
