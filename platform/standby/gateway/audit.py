"""Audit: who changed what may be done, and who was refused, as events for administrators."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

from standby.domain.events import AnyEvent, AuditEvent
from standby.sagemaker.dispatch import Audited
from standby.sagemaker.errors import AwsError

# One refusal in this time for each key and code: a client with a wrong secret tries again and again.
QUIET_S: Final = 60.0
MAX_REMEMBERED: Final = 1000


class Audit:
    """``publish`` queues an event and returns at once; ``now`` in seconds since the epoch."""

    def __init__(self, publish: Callable[[AnyEvent], Awaitable[None]], source: str, now: Callable[[], float]) -> None:
        self._publish = publish
        self._source = source
        self._now = now
        self._told: dict[tuple[str, str], float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def tell(
        self, *, tenant: str, who: str, action: str, outcome: Literal["done", "refused"], target: str = "", reason: str = ""
    ) -> None:
        """Publish what somebody did, or was not allowed to do."""
        await self._publish(
            AuditEvent(
                id=secrets.token_hex(8),
                at=self._now(),
                source=self._source,
                tenant=tenant,
                who=who,
                action=action,
                target=target,
                outcome=outcome,
                reason=reason,
            )
        )

    async def control(self, done: Audited) -> None:
        """Publish an operation of the AWS control plane."""
        good = done.outcome == "ok"
        await self.tell(
            tenant=done.caller.tenant,
            who=done.caller.key_id,
            action=f"{done.service}:{done.operation}",
            target=_named(done.request),
            outcome="done" if good else "refused",
            reason="" if good else done.outcome,
        )

    def refused(self, key_id: str, error: AwsError) -> None:
        """Publish a refused signature, once a minute for each key and code; unknown keys count as one."""
        about, now = (key_id, error.code), self._now()
        if now - self._told.get(about, -QUIET_S) < QUIET_S:
            return
        while len(self._told) >= MAX_REMEMBERED:
            del self._told[next(iter(self._told))]
        self._told[about] = now
        telling = self.tell(tenant="", who=key_id, action="signature", outcome="refused", reason=error.code)
        task = asyncio.get_running_loop().create_task(telling)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _named(request: Mapping[str, Any]) -> str:
    """Return the name of what an operation is about: members of names and ARNs come first in every request."""
    names = (
        value for name, value in request.items() if isinstance(value, str) and name.endswith(("Name", "Arn", "ResourceId"))
    )
    return next(names, "")
