"""A standby endpoint in a comparison: its control API says on which rung it rests and what it holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from standby.bench.compare.held import Look, awake_bytes, held_gb_s, look_at
from standby.bench.compare.subject import Phases, looked_until
from standby.bench.compare.values import Holding, Reached
from standby.bench.load import Target
from standby.bench.session import Client, Session
from standby.bench.values import Sample
from standby.domain.errors import NotFound, StandbyError
from standby.domain.instance import InstanceState
from standby.host.tasks import end

_LOOK_S: Final = 0.5
_REST_S: Final = 0.05
_FALL_S: Final = 0.02
_READY: Final = InstanceState.READY.value


@dataclass
class StandbySubject:
    """``rung``: where a cold start shall begin; ``limit_s``: how long to wait for it.

    ``evict``: then the model is thrown out of the nodes' caches, too, so that it has to be fetched.
    """

    target: Target
    client: Client
    endpoint: str
    rung: str
    limit_s: float
    evict: bool = False
    looks: list[Look] = field(default_factory=list)
    _refused: str = ""
    _ready: int = 0
    _began: float = field(default_factory=time.monotonic)

    @property
    def kind(self) -> str:
        """What it is."""
        return f"standby endpoint {self.endpoint!r}"

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[StandbySubject]:
        """Look at what it holds while the block runs."""
        task = asyncio.create_task(self._watch())
        try:
            yield self
        finally:
            await end([task])

    async def to_zero(self) -> Reached:
        """Wait for the rung; where it does not come, the cold start begins from where it rests, and is told as that."""
        seen = ""

        async def rests() -> bool:
            nonlocal seen
            seen = await self._state()
            return seen == self.rung

        try:
            reached = await looked_until(rests, self.limit_s, _REST_S)
        except StandbyError as error:
            return Reached(ok=False, words=f"the gateway does not say on which rung it is: {error}", lost=True)
        if not reached:
            return Reached(ok=seen != _READY, words=f"{seen} after {self.limit_s:g} s of waiting for {self.rung}")
        words = f"waited for the rung {self.rung}: its own policy let it fall"
        if not self.evict:
            return Reached(ok=True, words=words)
        try:
            await self._evict()
        except StandbyError as error:
            return Reached(ok=False, words=f"the model cannot be thrown out of the caches: {error}")
        return Reached(ok=True, words=f"{words}; the model was thrown out of the nodes' caches")

    async def falling(self) -> Reached:
        """Wait until an instance that was ready is so no more."""
        seen, most = "", 0

        async def fell() -> bool:
            nonlocal seen, most
            seen = await self._state()
            most = max(most, self._ready)
            return self._ready < most or not self._ready

        try:
            reached = await looked_until(fell, self.limit_s, _FALL_S)
        except StandbyError as error:
            return Reached(ok=False, words=f"the gateway does not say when it falls: {error}", lost=True)
        if not reached:
            return Reached(ok=False, words=f"still ready after {self.limit_s:g} s without a request")
        left = f"{self._ready} of {most} instances still ready" if self._ready else seen
        return Reached(ok=True, words=left)

    async def phases(self, sample: Sample) -> Phases:
        """Return those that the answer names."""
        return sample.phases_ms

    async def ended(self) -> str:
        """Return what the gateway says of the endpoint, where that explains it."""
        try:
            view = await self._view()
        except StandbyError as error:
            return str(error)
        failure = view.get("failure")
        return f"the endpoint is {view['status']}: {failure['reason']}" if failure else ""

    async def holding(self) -> Holding:
        """Return what its instances held, by the looks so far."""
        if len(self.looks) < 2:
            return Holding(words=self._refused or "nobody looked")
        seconds = self.looks[-1].at_s - self.looks[0].at_s
        return Holding(
            gb_s=held_gb_s(self.looks),
            seconds=seconds,
            awake_bytes=awake_bytes(self.looks),
            words="its instances' host memory, as their node measures it, looked at twice a second",
        )

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            with suppress(StandbyError):
                await self._state()
            await asyncio.sleep(_LOOK_S)

    async def _evict(self) -> None:
        models = {str(variant["model"]) for variant in (await self._view())["variants"]}
        for model in sorted(models):
            with suppress(NotFound):  # no node has it: that is what is wanted
                await self.client.call("POST", "/api/v1/cache/orders", body={"action": "evict", "model": model})

    async def _state(self) -> str:
        """Return the state of its warmest instance; each look is kept."""
        try:
            instances = (await self._view())["instances"]
        except StandbyError as error:
            self._refused = str(error)
            raise
        look = look_at(instances, time.monotonic() - self._began)
        self._ready = sum(one["state"] == _READY for one in instances)
        self.looks.append(look)
        return look.state

    async def _view(self) -> dict[str, Any]:
        view: dict[str, Any] = await self.client.call("GET", f"/api/v1/endpoints/{quote(self.endpoint, safe='')}")
        return view


@asynccontextmanager
async def standby_subject(
    target: Target, session: Session, endpoint: str, *, rung: str, limit_s: float, evict: bool
) -> AsyncIterator[StandbySubject]:
    """Yield the endpoint, watched until the end of the block."""
    async with session.client(timeout_s=10.0) as client:
        subject = StandbySubject(target, client, endpoint, rung, limit_s, evict)
        async with subject.watched():
            yield subject
