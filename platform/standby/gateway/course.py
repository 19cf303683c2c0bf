"""One request under way: who may end its task and why it was ended, and what is noted of it until its trace is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from standby.domain.instance import Rung
from standby.domain.priority import Priority
from standby.domain.traffic import Tier
from standby.gateway.accounts import Account
from standby.gateway.desk import Desk
from standby.gateway.grants import Grant
from standby.gateway.metering import Meter, Usage
from standby.gateway.poison import Kept
from standby.gateway.tiers import priority_of
from standby.gateway.traces import AttemptTrace, RequestTrace
from standby.sagemaker.runtime.contract import Arrival, Headers, Job, Send
from standby.telemetry import trace_context
from standby.telemetry.spans import new_span_id

OnGone = Callable[[Callable[[], None]], None]

# A request that no engine accepts is queued again for as long as it may wait.
MOST_ATTEMPTS: Final = 32
# Each request asks for it: up to Python 3.11 an enum's member takes ten times as long to look up as a name of the module.
_COLD: Final = Rung.COLD


class Course:
    """Who may end a request's task, and why it was cancelled, if it was."""

    __slots__ = ("_on_gone", "_task", "expired", "gone", "loop", "over")

    def __init__(self, task: asyncio.Task[Any], on_gone: OnGone | None) -> None:
        self._task = task
        self._on_gone = on_gone
        self.loop = task.get_loop()
        self.gone = self.expired = self.over = False

    def left_soon(self) -> None:
        """The caller has left, as the server says."""
        self.loop.call_soon(self._left)

    def expire(self) -> None:
        """The engine had its time."""
        self.expired = True
        self._task.cancel()

    def _left(self) -> None:
        if self.over:
            return
        if self._on_gone is None:
            self._end()
        else:
            self._on_gone(self._end)

    def _end(self) -> None:
        if not self.over:
            self.gone = True
            self._task.cancel()


class Work:
    """A request at a desk. All its attempts belong to one account and one meter: it is counted once.

    ``tried``: instances that have failed it; ``retried``: it has had its one retry; ``running_s``: how long engines may
    have been at work on it, which is no waiting; ``limit_at``: when the engine's time is over; ``mark``: its fingerprint,
    once it was needed; ``quarantined``: no other grave suspect is running, for which it has waited ``quarantined_s``;
    ``rung``: what its last attempt found.
    """

    __slots__ = (
        "account",
        "arrival",
        "asked",
        "attempts",
        "desk",
        "ending",
        "first_byte_s",
        "job",
        "limit_at",
        "mark",
        "meter",
        "priority",
        "quarantined",
        "quarantined_s",
        "queue_reason",
        "retried",
        "rung",
        "running_s",
        "sampled",
        "status",
        "tier",
        "tried",
        "usage",
        "waited_s",
        "words",
    )

    def __init__(self, desk: Desk, account: Account, arrival: Arrival, job: Job, send: Send) -> None:
        traffic = desk.route.traffic
        self.desk = desk
        self.account = account
        self.arrival = arrival
        self.job = job
        self.meter = Meter(send, job.ask, desk.monotonic)
        self.tier: Tier = traffic.tier
        self.priority: Priority = priority_of(traffic.priority, job.ask.wished, job.priority)
        self.attempts: tuple[AttemptTrace, ...] = ()
        self.asked = 0
        self.tried: frozenset[str] = frozenset()
        self.retried = self.quarantined = False
        self.rung: Rung = _COLD
        self.limit_at: float | None = None
        self.mark = ""
        self.running_s = self.waited_s = self.quarantined_s = 0.0
        self.first_byte_s: float | None = None
        self.queue_reason = ""
        self.usage: Usage | None = None
        self.status = 0
        self.sampled = arrival.trace is not None and arrival.trace.sampled
        # Only a bug leaves it so.
        self.ending, self.words = "internal_error", ""

    @property
    def who(self) -> Kept:
        """What the book of poison requests knows it by, beside its fingerprint."""
        endpoint = self.desk.route.endpoint
        return Kept(endpoint.tenant, endpoint.name, len(self.job.body))

    def attempted(self, attempt: AttemptTrace) -> None:
        """Take down one attempt; of very many the first one and the last ones."""
        before = self.attempts
        if not before:
            self.attempts = (attempt,)
            return
        if len(before) >= MOST_ATTEMPTS:
            before = before[:1] + before[2 - MOST_ATTEMPTS :]
        self.attempts = (*before, attempt)

    def next_id(self) -> str:
        """Return the id of the next attempt: no two live requests of an engine have the same one (field case B34)."""
        self.asked += 1
        return self.arrival.request_id if self.asked == 1 else f"{self.arrival.request_id}.{self.asked}"

    def metered(self) -> None:
        """Note what it used and how its stream went, once, when it has ended in whatever way."""
        self.account.metered(self.meter)
        self.account.streamed(self.rung, self.meter, self.arrival.arrived)

    def traced(self, grant: Grant) -> tuple[int, Headers]:
        """Return the id of the next attempt's span, 0 for none, and the request's headers as the door gets them.

        What had to be woken is kept. Of an error nothing is known yet: where one shows itself, door and engine kept nothing.
        """
        head, headers = self.arrival.trace, self.job.headers
        if head is None:
            return 0, headers
        self.sampled = self.sampled or grant.activation is not None
        if not (self.sampled or head.told):
            return 0, trace_context.without(headers) if head.broken else headers
        span = new_span_id()
        flags = head.flags | trace_context.SAMPLED if self.sampled else head.flags & ~trace_context.SAMPLED
        return span, trace_context.replaced(headers, trace_context.Context(head.trace, span, flags), head.state)

    def ended(self, outcome: str, words: str = "", status: int = 0) -> None:
        """Count the request by how it ended, once; ``status``: what its caller is told, 0: nothing."""
        self.ending, self.words, self.status = outcome, words, status
        self.account.ended(outcome)

    def trace(self, now: float) -> RequestTrace:
        """Return what became of it."""
        arrival, route = self.arrival, self.desk.route
        lasted_s = now - arrival.arrived
        return RequestTrace(
            arrival,
            route.endpoint.tenant,
            route.endpoint.name,
            route.variant.name,
            self.tier,
            self.priority,
            self.waited_s if self.asked else lasted_s,
            self.queue_reason,
            self.attempts,
            self.ending,
            self.words,
            lasted_s,
            self.first_byte_s,
            self.usage,
            self.quarantined_s,
            self.job.path,
            route.endpoint.served_name,
            self.status,
            self.meter.events,
            None if self.meter.first_event_at is None else self.meter.first_event_at - arrival.arrived,
            self.sampled,
        )
