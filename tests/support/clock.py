"""A clock that tests turn."""

from __future__ import annotations


class Clock:
    """Stands still unless somebody sleeps; seconds."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Move the time on, at once."""
        self.now += seconds
