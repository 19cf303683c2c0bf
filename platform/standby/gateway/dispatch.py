"""From an endpoint's desk to an engine and back: wait for a slot, relay, account. What all data routes share.

Every request goes ``desk.enter → (desk.acquire → relay → desk.release)* → end``; whatever way it ends, the context
managers give back what it held. A caller who leaves cancels the request's own task, streaming or not (field case B25).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from standby.domain.errors import BusUnavailable, EngineDied, InvocationTimeout, StandbyError, Unavailable
from standby.domain.instance import Activation, Phase
from standby.gateway.accounts import Account, Accounts
from standby.gateway.client_watch import ClientWatch
from standby.gateway.desk import Desk, Grant
from standby.gateway.errors import Headers
from standby.gateway.http import ClientGone
from standby.gateway.relay import AnswerCutOff, DoorClient, OutcomeKind, RelayOutcome, RelayRequest
from standby.sagemaker.errors import AwsError
from standby.sagemaker.runtime.contract import AnswerBroken, Arrival, ContainerAnswered, Job, Receive, Send
from standby.telemetry import metrics
from standby.wire.headers import Refusal

_log = logging.getLogger(__name__)

# Longer than a reconnect, shorter than a caller's patience: without the bus nothing at zero can be woken.
BUS_PATIENCE_S = 5.0
SHUT_DOWN = "the gateway is shutting down"

OnGone = Callable[[Callable[[], None]], None]


class _Work(NamedTuple):
    """A request at a desk."""

    desk: Desk
    account: Account
    arrival: Arrival
    job: Job
    send: Send


class _Course:
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


@dataclass
class Dispatcher:
    """``monotonic`` is a clock in seconds; ``bus_away`` says for how long the bus has been unreachable."""

    doors: DoorClient
    accounts: Accounts
    node_token: str = field(repr=False)
    monotonic: Callable[[], float]
    bus_away: Callable[[], float]

    async def run(
        self, desk: Desk, arrival: Arrival, job: Job, receive: Receive, send: Send, on_gone: OnGone | None = None
    ) -> str | None:
        """Carry out one request; see ``standby.sagemaker.runtime.contract.Invoker.run``. Raises ClientGone too."""
        work = _Work(desk, self.accounts.of(desk), arrival, job, send)
        task = asyncio.current_task()
        assert task is not None
        course = _Course(task, on_gone)
        # The server calls a caller who has got the whole answer "disconnected", too, in the very turn of the loop in which
        # the task is to be resumed with its outcome: the task goes first, or every success would count as a caller who left.
        watch = ClientWatch(receive, course.left_soon)
        try:
            with desk.enter():
                return await self._attempts(work, course)
        except asyncio.CancelledError as cancelled:
            task.uncancel()
            return self._cancelled(work, course, cancelled)
        except (StandbyError, AwsError) as error:
            work.account.ended(error.code)
            raise
        except ContainerAnswered as answered:
            work.account.ended(f"engine_{answered.status // 100}xx")
            raise
        except AnswerBroken as broken:
            work.account.ended("broken_stream")
            return str(broken)
        except ClientGone:
            work.account.ended("client_gone")
            raise
        finally:
            course.over = True
            watch.stop()

    # ---- at the desk -------------------------------------------------------------------------------------------

    @staticmethod
    def _cancelled(work: _Work, course: _Course, cancelled: asyncio.CancelledError) -> str:
        """Account for a request whose task was cancelled, and say why its answer broke off or raise what ended it."""
        error: StandbyError
        if course.gone:
            work.account.ended("client_gone")
            raise ClientGone from None
        if course.expired:
            error = InvocationTimeout(
                f"endpoint {work.desk.route.endpoint.name!r} had not answered {work.job.limit_s:g} s after it was asked",
                remedy="ask for a shorter answer, or stream it",
            )
        elif isinstance(cancelled, AnswerCutOff) and not work.job.whole:
            # The server's grace for open requests is over (field case B18).
            work.account.ended("broken_stream")
            return SHUT_DOWN
        else:
            error = Unavailable(SHUT_DOWN, remedy="retry", retry_after_s=1.0)
        work.account.ended(error.code)
        raise error from None

    async def _attempts(self, work: _Work, course: _Course) -> str | None:
        account, arrived = work.account, work.arrival.arrived
        again = False
        while True:
            grant = await self._acquire(work, again=again)
            dispatched = self.monotonic()
            limit_s = work.job.limit_s
            expiry = None if limit_s is None else course.loop.call_later(limit_s, course.expire)
            try:
                outcome = await self._attempt(work, grant, dispatched)
            finally:
                work.desk.release(grant)
                if expiry is not None:
                    expiry.cancel()
            if outcome is not None:
                account.ended(outcome[0])
                account.served(grant, dispatched - arrived, self.monotonic() - arrived)
                return outcome[1]
            again = True

    def _acquire(self, work: _Work, *, again: bool) -> Awaitable[Grant]:
        desk, arrival = work.desk, work.arrival
        if not desk.has_ready and self.bus_away() > BUS_PATIENCE_S:
            raise BusUnavailable(
                f"endpoint {desk.route.endpoint.name!r} is at zero and the control plane is unreachable",
                remedy="retry later",
                retry_after_s=BUS_PATIENCE_S,
            )
        return desk.acquire(
            arrived=arrival.arrived,
            arrived_at=arrival.arrived_at,
            body_bytes=len(work.job.body),
            again=again,
            session=work.job.session,
        )

    async def _attempt(self, work: _Work, grant: Grant, dispatched: float) -> tuple[str, str | None] | None:
        """Return how the request ended and why its answer broke off, or None when it must be queued again."""
        job, arrival = work.job, work.arrival
        request = RelayRequest(
            door=grant.address,
            instance=grant.instance,
            epoch=grant.epoch,
            token=self.node_token,
            path=job.path,
            headers=job.headers,
            body=job.body,
            request_id=arrival.request_id,
        )
        extra = _answer_headers(job, arrival, grant, dispatched - arrival.arrived)
        outcome = await self.doors.relay(request, work.send, extra_headers=extra)
        if outcome.first_byte_at is not None:
            work.account.first_byte(outcome.first_byte_at - arrival.arrived, grant.rung)
        return self._conclude(work.desk, grant, outcome)

    def _conclude(self, desk: Desk, grant: Grant, outcome: RelayOutcome) -> tuple[str, str | None] | None:
        match outcome.kind:
            case OutcomeKind.DONE:
                return "ok" if outcome.status < 400 else f"engine_{outcome.status // 100}xx", None
            case OutcomeKind.REFUSED:
                metrics.REQUEUED.labels(outcome.reason).inc()
                if outcome.reason == Refusal.BAD_TOKEN:
                    _log.error("a door refuses this gateway's STANDBY_NODE_TOKEN", extra={"door": f"{grant.address}"})
                desk.refused(grant, outcome.reason)
                return None
            case OutcomeKind.CONNECT_FAILED:
                metrics.REQUEUED.labels("connect-failed").inc()
                desk.unreachable(grant)
                return None
            case OutcomeKind.ENGINE_FAILED if not outcome.saw:
                metrics.REQUEUED.labels("engine-failed").inc()
                desk.unreachable(grant)
                return None
            case OutcomeKind.ENGINE_FAILED:
                # Not tried elsewhere: a request that was running when an engine died may be its end (field case B34).
                desk.unreachable(grant)
                raise EngineDied(
                    f"the engine of endpoint {desk.route.endpoint.name!r} failed before it answered ({outcome.reason})",
                    remedy=f"see 'standby endpoints show {desk.route.endpoint.name}'; the request was not repeated",
                )
            case OutcomeKind.CLIENT_GONE:
                raise ClientGone
            case OutcomeKind.BROKEN_MID_STREAM:
                return "broken_stream", f"the answer broke off in its middle ({outcome.reason})"


def _answer_headers(job: Job, arrival: Arrival, grant: Grant, waited: float) -> Headers:
    headers = [
        (b"x-request-id", arrival.echoed),
        (b"x-standby-instance", grant.instance.encode()),
        (b"x-standby-rung", grant.rung.label.encode()),
        (b"x-standby-wait-ms", b"%.1f" % (waited * 1000)),
        *job.extra,
    ]
    if job.aws:
        headers.append((b"x-amzn-invoked-production-variant", grant.variant.encode()))
        if grant.new_session is not None:
            headers.append((b"x-amzn-sagemaker-new-session-id", grant.new_session.encode()))
        if grant.closed_session is not None:
            headers.append((b"x-amzn-sagemaker-closed-session-id", grant.closed_session.encode()))
    if grant.activation is not None:
        headers.append((b"x-standby-activation", grant.activation.id.encode()))
        headers.append((b"x-standby-phases-ms", phases_header(grant.activation, waited)))
    return headers


def phases_header(activation: Activation, waited_s: float) -> bytes:
    """Return ``queued=1.2,placed=3.4,…`` in milliseconds.

    The node's phases are durations by its own clock; what remains of the wait is the time on the bus and in the
    controller, called ``placed``, so that no two machines' clocks are compared.
    """
    phases = {phase: activation.phases_ms[phase] for phase in Phase if phase in activation.phases_ms}
    placed = max(0.0, waited_s * 1000 - sum(phases.values()))
    ordered = {Phase.PLACED: placed, **phases}
    return ",".join(f"{phase.value}={ms:.1f}" for phase, ms in ordered.items()).encode()
