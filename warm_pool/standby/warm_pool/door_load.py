"""What passes through one gate of the door, and what it shows of the engine behind it. Pure: times are given."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

# The least status of an engine's own faults; plain numbers, as each request compares with them.
SERVER_ERROR: Final = HTTPStatus.INTERNAL_SERVER_ERROR.value
_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE.value


@dataclass(frozen=True, slots=True)
class DoorLoad:
    """Requests in flight now, the end of the last, totals since the gate opened. Times by the loop's clock, in seconds.

    ``failures`` counts the engine's faults: refused connections, early ends, timeouts, malformed answers.
    ``last_progress`` is the last byte of any good answer (one with a status below 500), to a second. ``waiting_since`` is the
    oldest request that came after it; None: every request got an answer. ``unavailable``, ``errors`` and ``refused``
    count, since the last progress, answers with 503, other broken answers, and connections that nobody accepted; ``…_since``
    is the first of them, ``…_at`` the last. ``busy_s``: for how long something was in flight, without the stretch that has
    lasted since ``busy_since``.
    """

    in_flight: int = 0
    last_end: float | None = None
    served: int = 0
    failures: int = 0
    last_progress: float | None = None
    waiting_since: float | None = None
    unavailable: int = 0
    unavailable_since: float | None = None
    unavailable_at: float | None = None
    errors: int = 0
    errors_since: float | None = None
    errors_at: float | None = None
    refused: int = 0
    busy_s: float = 0.0
    busy_since: float | None = None

    def busy_until(self, now: float) -> float:
        """Return for how long something was in flight up to now, in seconds."""
        return self.busy_s if self.busy_since is None else self.busy_s + max(0.0, now - self.busy_since)


class Pulse:
    """Counts for ``DoorLoad`` what the answers of one engine show of it."""

    __slots__ = (
        "errors",
        "errors_at",
        "errors_since",
        "last_progress",
        "refused",
        "unavailable",
        "unavailable_at",
        "unavailable_since",
        "waiting_since",
    )

    def __init__(self) -> None:
        self.last_progress: float | None = None
        self.forget()

    def forget(self) -> None:
        """Begin anew: the engine has slept, and what was before says nothing of it."""
        self.waiting_since: float | None = None
        self.unavailable = self.errors = self.refused = 0
        self.unavailable_since: float | None = None
        self.unavailable_at: float | None = None
        self.errors_since: float | None = None
        self.errors_at: float | None = None

    def asked(self, now: float) -> None:
        """A request begins."""
        if self.waiting_since is None:
            self.waiting_since = now

    def moved(self, now: float, *, busy: bool) -> None:
        """Bytes of a good answer have passed; ``busy``: something is still in flight."""
        self.forget()
        self.last_progress = now
        if busy:
            self.waiting_since = now

    def answered(self, now: float, status: int, *, busy: bool) -> None:
        """A whole answer has passed."""
        if status < SERVER_ERROR:
            self.moved(now, busy=busy)
        elif status == _UNAVAILABLE:
            self.unavailable += 1
            self.unavailable_at = now
            if self.unavailable_since is None:
                self.unavailable_since = now
        else:
            self.broken(now)

    def broken(self, now: float) -> None:
        """The engine answered with an error of its own, or broke off."""
        self.errors += 1
        self.errors_at = now
        if self.errors_since is None:
            self.errors_since = now

    def refused_connection(self) -> None:
        """Nobody listens: not the same as an engine that is slow to accept."""
        self.refused += 1
