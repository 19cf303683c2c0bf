"""What comes to light of a target while it is asked, and must be said beside its numbers."""

from __future__ import annotations

from typing import Final

from standby.bench.targets.exchange import Exchange, shadowed

COUNTED: Final = "the gateway counted these requests: its settings do not let this key mark them as a test (x-standby-shadow)"
ESTIMATED: Final = (
    "{answers} answers did not say how many tokens they had: each event with text counts as one, an answer without events as "
    "none, so that tokens/s and the time per token are estimates"
)


class Findings:
    """Of one target; ``shadow``: its requests are marked as a test."""

    def __init__(self, *, shadow: bool) -> None:
        self._shadow = shadow
        self._counted = False
        self._estimated = 0

    def add(self, exchange: Exchange) -> None:
        """Take what an answer that is over has shown."""
        facts = exchange.facts
        self._estimated += not facts.error and facts.completion is None
        if self._shadow and shadowed(exchange) is False:
            self._counted = True

    @property
    def notes(self) -> tuple[str, ...]:
        """In words."""
        counted = (COUNTED,) if self._counted else ()
        return (*counted, ESTIMATED.format(answers=self._estimated)) if self._estimated else counted
