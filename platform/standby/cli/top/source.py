"""The feed as ``standby top`` hears it: over and over, for as long as the gateway may only be away for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from standby.cli.client import Client
from standby.domain.errors import Unavailable

FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 5.0
# The gateway says something every ten seconds at the latest.
SILENCE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Told:
    """What the gateway said."""

    kind: str
    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """Why nothing is heard now; there will be another try."""

    why: str


async def listen(open_client: Callable[[], Client], every_s: float, *, all_tenants: bool) -> AsyncIterator[Told | Lost]:
    """Yield what the gateway says, without an end. Raises what a new try cannot mend, e.g. NotAuthenticated."""
    pause_s = FIRST_PAUSE_S
    params = parameters(every_s, all_tenants=all_tenants)
    while True:
        why = "the gateway has ended the stream"
        try:
            async with open_client() as client:
                async for kind, content in client.server_events("/api/v1/overview/stream", params, silence_s=SILENCE_S):
                    pause_s = FIRST_PAUSE_S
                    yield Told(kind, content)
        except Unavailable as error:
            why = error.message
        yield Lost(why)
        await asyncio.sleep(pause_s)
        pause_s = min(LAST_PAUSE_S, pause_s * 2)


def parameters(every_s: float | None, *, all_tenants: bool) -> dict[str, str]:
    """Return the query of the feed's routes."""
    every = {} if every_s is None else {"every": f"{every_s:g}"}
    return every | ({"tenants": "all"} if all_tenants else {})
