"""Counts the agent's starts, so that epochs grow over restarts.

A gateway that was refused epoch 7 of an instance ignores that epoch for good; an agent that began again at 1 would
sooner or later offer 7 once more, and would never be asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from standby.host.files import write_private

EPOCHS_PER_BOOT: Final = 1_000_000


def first_epoch(state_dir: Path) -> int:
    """Count one more start in ``state_dir`` and return the epoch below which this agent's epochs never fall."""
    path = state_dir / "boots"
    count = int(path.read_text()) if path.exists() else 0
    write_private(path, str(count + 1))
    return (count + 1) * EPOCHS_PER_BOOT
