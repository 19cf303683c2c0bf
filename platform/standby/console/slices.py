"""Work in slices: between them a loop that serves requests looks after those (``standby.host.tasks.by_turns``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

Item = TypeVar("Item")

# So many rows take one or two milliseconds.
ROWS: Final = 500


def sliced(items: Sequence[Item]) -> list[Sequence[Item]]:
    """Return the items in slices."""
    return [items[begin : begin + ROWS] for begin in range(0, len(items), ROWS)]
