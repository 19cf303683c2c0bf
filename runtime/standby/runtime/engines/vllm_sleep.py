"""Puts a vLLM engine on a GPU to sleep and wakes it, over its development routes, and believes none of their 200s."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from standby.domain.errors import EngineError
from standby.runtime.engine_http import Answer, request
from standby.wire.pool import Address

LEVELS: Final = (1, 2)
_WEIGHTS_DROPPED: Final = 2
_SHOWN_BYTES: Final = 200
_ASK_LIMIT_S: Final = 5.0
_MOVE_LIMIT_S: Final = 180.0


class SleepControl:
    """Requests to one engine. Levels: 1 moves the weights to host memory, 2 drops them; both drop the key-value cache."""

    def __init__(self, address: Address, *, move_limit_s: float = _MOVE_LIMIT_S) -> None:
        self._address = address
        self._move_limit_s = move_limit_s

    async def sleep(self, level: int) -> None:
        """Fall asleep once nothing runs; the default of vLLM would abort what runs. Raises EngineError.

        That the engine says 200 proves nothing (field case B13): afterwards it must say that it sleeps.
        """
        await self._post("/sleep", level=level, mode="wait")
        if not await self.sleeping():
            raise EngineError(f"engine accepted to sleep at level {level} and says that it does not sleep")

    async def wake(self, level: int) -> None:
        """Take the weights, then the key-value cache; nothing happens to an engine that is awake. Raises EngineError.

        Weights that were dropped are read again before anything can be generated from what lies in their place.
        """
        if not await self.sleeping():
            return
        await self._post("/wake_up", tags="weights")
        if level == _WEIGHTS_DROPPED:
            await self._post("/collective_rpc", {"method": "reload_weights"})
        await self._post("/wake_up", tags="kv_cache")
        if await self.sleeping():
            raise EngineError("engine says that it sleeps after it was woken", remedy="stop it and start it again")

    async def sleeping(self) -> bool:
        """Return what the engine says, by way of its core. Raises EngineError where it does not say."""
        answer = await self._ask("GET", "/is_sleeping", None, _ASK_LIMIT_S)
        content = answer.json()
        said = content.get("is_sleeping") if isinstance(content, dict) else None
        if answer.status != HTTPStatus.OK or not isinstance(said, bool):
            raise EngineError(
                f"engine does not say whether it sleeps: {_words(answer)}",
                remedy="see its log; it is started with routes for it",
            )
        return said

    async def _post(self, path: str, payload: object = None, **query: Any) -> None:
        target = f"{path}?{urlencode(query)}" if query else path
        answer = await self._ask("POST", target, payload, self._move_limit_s)
        if answer.status != HTTPStatus.OK:
            raise EngineError(f"engine answered POST {target} with {_words(answer)}")

    async def _ask(self, method: str, target: str, payload: object, limit_s: float) -> Answer:
        try:
            async with asyncio.timeout(limit_s):
                return await request(self._address, method, target, payload)
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            raise EngineError(f"engine did not answer {method} {target} within {limit_s:g} s: {error!r}") from error


def _words(answer: Answer) -> str:
    return f"{int(answer.status)}: {answer.body[:_SHOWN_BYTES].decode(errors='replace')}"
