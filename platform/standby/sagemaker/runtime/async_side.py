"""Asynchronous invocations as one part of a gateway: what takes them and what carries them out."""

from __future__ import annotations

from standby.sagemaker.runtime.asking import Understanding
from standby.sagemaker.runtime.async_accept import AsyncService
from standby.sagemaker.runtime.async_context import AsyncContext
from standby.sagemaker.runtime.async_lanes import AsyncLanes
from standby.sagemaker.runtime.async_run import Execution
from standby.sagemaker.runtime.async_worker import AsyncWorker
from standby.sagemaker.runtime.contract import AsgiScope, Invoker, Receive, Send
from standby.sagemaker.runtime.dialects import Declared
from standby.sagemaker.runtime.routes import RuntimeRoute


class AsyncSide:
    """``start`` it when the gateway's copies are there, ``stop`` it before them; calling it serves a request."""

    def __init__(self, context: AsyncContext, invoker: Invoker, understanding: Understanding, declared: Declared) -> None:
        execution = Execution(invoker, declared, context.region, context.body_bytes)
        self.worker = AsyncWorker(context, execution)
        self._lanes = AsyncLanes(context, self.worker)
        self._service = AsyncService(context, invoker, understanding, self._lanes.knock)

    async def __call__(self, route: RuntimeRoute, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one InvokeEndpointAsync."""
        await self._service(route, scope, receive, send)

    async def start(self) -> None:
        """Begin to work on what waits. Raises BusUnavailable."""
        await self._lanes.start()

    async def stop(self) -> None:
        """Stop; what is under way goes back into the queue."""
        await self._lanes.stop()
