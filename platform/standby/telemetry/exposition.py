"""A process's metrics on a loopback port, for processes that serve nothing else by HTTP: the library's server, in a thread.

The figures are brought up to date by the event loop that owns them before they are told. A loop that hangs does not hang
the scrape, which then tells what was known: that is when somebody looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Metric, start_http_server

from standby.domain.errors import ConfigurationError

_log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
REFRESH_LIMIT_S: Final = 1.0


class _Fresh(CollectorRegistry):
    """A registry that asks the event loop for the present before it tells; called by the server's threads."""

    def __init__(self, told: CollectorRegistry, refresh: Callable[[], None]) -> None:
        super().__init__()
        self._told = told
        self._refresh = refresh
        self._loop = asyncio.get_running_loop()

    def collect(self) -> Iterable[Metric]:
        self._ask()
        return self._told.collect()

    def restricted_registry(self, names: Iterable[str]) -> CollectorRegistry:  # type: ignore[override] # the library wraps it alike
        self._ask()
        return self._told.restricted_registry(names)  # type: ignore[return-value] # as above

    def _ask(self) -> None:
        done: Future[None] = Future()

        def run() -> None:
            try:
                self._refresh()
            finally:
                done.set_result(None)

        # The loop may be closed by now, or busy.
        with contextlib.suppress(RuntimeError, TimeoutError):
            self._loop.call_soon_threadsafe(run)
            done.result(REFRESH_LIMIT_S)


@asynccontextmanager
async def exposed(
    registry: CollectorRegistry, port: int | None, refresh: Callable[[], None], *, variable: str, port_file: str | None = None
) -> AsyncIterator[None]:
    """Serve ``registry`` at ``http://127.0.0.1:port/metrics`` meanwhile; ``port`` None: not at all, 0: at any free one.

    ``refresh`` runs in the caller's event loop before each answer. The port really bound is logged, and written into
    ``port_file``. Raises ConfigurationError naming ``variable`` where the port is taken.
    """
    if port is None:
        yield
        return
    try:
        server, thread = await asyncio.to_thread(start_http_server, port, HOST, _Fresh(registry, refresh))
    except OSError as error:
        raise ConfigurationError(
            f"the metrics cannot be served at {HOST}:{port}: {os.strerror(error.errno or 0)}",
            remedy=f"set {variable} to a free port, or to 0 for any",
        ) from error
    bound = server.server_address[1]
    _log.info("metrics are served", extra={"url": f"http://{HOST}:{bound}/metrics"})
    if port_file is not None:
        Path(port_file).write_text(str(bound))
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)
