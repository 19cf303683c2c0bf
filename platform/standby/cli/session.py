"""What one call of the command line knows: the global options, and from them the client and the output."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from standby.cli.connection import Connection, default_state_dir, resolve

if TYPE_CHECKING:
    from standby.cli.client import Client

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(slots=True)
class Options:
    """The options before the command."""

    url: str | None = None
    key: str | None = None
    tenant: str | None = None
    state_dir: Path | None = None
    json: bool = False

    @property
    def folder(self) -> Path:
        """The state folder."""
        return self.state_dir if self.state_dir is not None else default_state_dir()

    def connection(self) -> Connection:
        """Return the gateway's address and key. Raises Unavailable where none is known."""
        return resolve(self.url, self.key, self.folder)

    def client(self, *, timeout_s: float = 60.0) -> Client:
        """Return a client; use it as an async context manager."""
        from standby.cli.client import Client  # noqa: PLC0415 (httpx costs 50 ms that --help must not pay)

        return Client(self.connection(), tenant=self.tenant, timeout_s=timeout_s)

    def call(
        self, method: str, path: str, *, body: object = None, params: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> Any:
        """Make one request and return the JSON answer. Raises the error of the tree that the reply names."""

        async def once() -> Any:
            async with self.client(timeout_s=timeout_s) as client:
                return await client.call(method, path, body=body, params=params)

        return asyncio.run(once())


def options(ctx: typer.Context, json: bool = False) -> Options:
    """Return the global options with the command's own ``--json`` added; for components that call us, too."""
    found = ctx.find_object(Options)
    if found is None:
        found = ctx.obj = Options()
    found.json = found.json or json
    return found
