"""Work in slices, where nothing needs to come in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")


def at_once(work: Generator[None, None, Result]) -> Result:
    """Return the result of the work."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Result = done.value
            return result
