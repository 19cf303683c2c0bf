"""The other gateways of the deployment: who they are, and what they know of past requests."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from standby.bus.connection import Bus
from standby.bus.subjects import ALL_BEATS, beat_subject, traces_subject
from standby.bus.subscription import Subscription
from standby.domain.errors import StandbyError
from standby.gateway.traces import Traces, view

# A gateway sends a beat every second.
_SILENT_S: Final = 5.0
_PATIENCE_S: Final = 0.5
_log = logging.getLogger(__name__)


@dataclass
class Neighbours:
    """``name`` is this gateway's; ``clock`` is monotonic seconds. Who is heard of is asked, who is silent is not waited for."""

    bus: Bus
    name: str
    traces: Traces
    clock: Callable[[], float]
    _heard: dict[str, float] = field(default_factory=dict)
    _subscriptions: list[Subscription] = field(default_factory=list)

    async def start(self) -> None:
        """Listen to the others and answer them. Raises BusUnavailable."""
        self._subscriptions.append(await self.bus.subscribe(ALL_BEATS, self._beat))
        self._subscriptions.append(await self.bus.serve(traces_subject(self.name), self._answer))

    async def stop(self) -> None:
        """Listen no longer."""
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._subscriptions.clear()

    @property
    def others(self) -> list[str]:
        """The gateways that were heard lately, without this one."""
        oldest = self.clock() - _SILENT_S
        self._heard = {name: at for name, at in self._heard.items() if at >= oldest}
        return sorted(self._heard)

    async def ask(self, question: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the requests that the others know of; those that do not answer in time are left out.

        ``question`` has the ``tenant``, and either an ``id`` or an ``endpoint`` (None: all) and a ``limit``.
        """
        answers = await asyncio.gather(*(self._ask(other, question) for other in self.others))
        return [trace for traces in answers for trace in traces]

    async def _ask(self, other: str, question: Mapping[str, Any]) -> list[dict[str, Any]]:
        try:
            answer = await self.bus.request(traces_subject(other), json.dumps(question).encode(), _PATIENCE_S)
            traces: list[dict[str, Any]] = json.loads(answer)
        except StandbyError as error:
            _log.info("gateway %s does not say what it knows of past requests: %s", other, error)
            return []
        return traces

    async def _answer(self, _subject: str, payload: bytes) -> bytes:
        return json.dumps(known(self.traces, json.loads(payload))).encode()

    def _beat(self, subject: str, _payload: bytes) -> None:
        if subject != beat_subject(self.name):
            self._heard[subject.rpartition(".")[2]] = self.clock()


def known(traces: Traces, question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what this gateway knows, of the tenant of the question only."""
    tenant: str = question["tenant"]
    if "id" in question:
        found = traces.find(tenant, question["id"])
        return [] if found is None else [view(found)]
    return [view(trace) for trace in traces.last(tenant, question["endpoint"], question["limit"])]
