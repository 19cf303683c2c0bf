"""Uvicorn that ends when it is told to: its own loop looks every tenth of a second, and its end sleeps for another one."""

from __future__ import annotations

import asyncio
import contextlib

import uvicorn

from standby.gateway.drain import GatewayServer

_LOOK_S = 0.002


class _HearsAtOnce(uvicorn.Server):
    """Wakes when ``should_exit`` is set, however that is done."""

    def __init__(self, config: uvicorn.Config, *more: object, **options: object) -> None:
        self._told = asyncio.Event()
        super().__init__(config, *more, **options)

    @property
    def should_exit(self) -> bool:
        return self._told.is_set()

    @should_exit.setter
    def should_exit(self, told: bool) -> None:
        if told:
            self._told.set()
        else:
            self._told.clear()

    async def main_loop(self) -> None:
        """Wait for the end; the tick fills in the headers that every answer has."""
        await self.on_tick(0)
        await self._told.wait()


class PromptServer(_HearsAtOnce):
    """What is open at the end gets the grace of the configuration, as it does from uvicorn, and not a moment more."""

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override] # none are given
        assert not sockets
        for server in self.servers:
            server.close()
        for connection in tuple(self.server_state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # uvicorn keeps them in plain sets
                    await asyncio.sleep(_LOOK_S)
        for task in tuple(self.server_state.tasks):
            task.cancel()


class PromptGatewayServer(_HearsAtOnce, GatewayServer):
    """The gateway's own server, whose drain is its own."""
