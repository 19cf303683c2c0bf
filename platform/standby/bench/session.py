"""What bench needs of the command line that calls it: the global options, and through them the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import typer

from standby.domain.durations import FOREVER, parse_duration
from standby.domain.errors import InvalidInput, Unavailable


class Connection(Protocol):
    """A gateway's base URL and the key to show it."""

    @property
    def url(self) -> str:
        """Without a slash at its end."""

    @property
    def api_key(self) -> str | None:
        """The bearer key, if one is known."""


class Client(Protocol):
    """JSON calls to the gateway; raises the errors of the domain's tree."""

    async def call(self, method: str, path: str, *, body: object = None, params: Mapping[str, str] | None = None) -> Any:
        """Make one request and return the JSON answer."""

    def event_stream(self, params: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Yield events until the gateway ends the stream."""


class Session(Protocol):
    """The options before the command (``standby.cli.session.Options``)."""

    @property
    def json(self) -> bool:
        """Whether standard output is for programs."""

    @property
    def tenant(self) -> str | None:
        """For whom an administrator acts."""

    def connection(self) -> Connection:
        """Return the gateway's address and key. Raises Unavailable where none is known."""

    def client(self, *, timeout_s: float = ...) -> AbstractAsyncContextManager[Client]:
        """Return a client."""

    def call(self, method: str, path: str) -> Any:
        """Make one request outside of an event loop."""


def session_of(ctx: typer.Context) -> Session:
    """Return the session of a command that ``standby`` runs. Raises Unavailable where it is run in another way."""
    if ctx.obj is None:
        raise Unavailable("bench was not started by the standby command", remedy="run `standby bench …`")
    found: Session = ctx.obj
    return found


def bounded_time(option: str, text: str) -> float:
    """Return an option's time in seconds. Raises InvalidInput where it is none, or for ever."""
    seconds = parse_duration(text)
    if not 0.0 < seconds < FOREVER:
        raise InvalidInput(f"{option} {text!r} is not possible", remedy="give a time above 0, e.g. 30s")
    return seconds
