"""From an endpoint's desk to an engine and back: wait for a slot, relay, account. What all data routes share.

Every request goes ``desk.enter → (desk.acquire → relay → desk.release)* → end``; whatever way it ends, the context
managers give back what it held. A caller who leaves cancels the request's own task, streaming or not (field case B25).
Which setback is followed by another attempt is the tier's table, ``standby.gateway.tiers``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from standby.domain.errors import (
    BusUnavailable,
    EngineDied,
    InvocationTimeout,
    StandbyError,
    Unavailable,
)
from standby.domain.priority import engine_priority
from standby.gateway import endings
from standby.gateway.accounts import Accounts
from standby.gateway.answer_headers import answer_headers
from standby.gateway.client_watch import ClientWatch
from standby.gateway.course import Course, OnGone, Work
from standby.gateway.desk import Desk, Grant
from standby.gateway.http import ClientGone
from standby.gateway.poison import REFUSED_FOR_S, Standing, Verdict
from standby.gateway.poison_guard import PoisonGuard
from standby.gateway.relay import AnswerCutOff, DoorClient, NotSent, OutcomeKind, RelayOutcome, RelayRequest
from standby.gateway.results import Result, ResultKind
from standby.gateway.tiers import DECLINABLE, NOT_STARTED, Setback, Step, next_step
from standby.gateway.traces import RequestTrace, Traces, attempt_of
from standby.sagemaker.errors import AwsError
from standby.sagemaker.runtime.asks import with_priority
from standby.sagemaker.runtime.contract import AnswerBroken, Arrival, ContainerAnswered, Headers, Job, Receive, Send
from standby.telemetry import metrics
from standby.wire.headers import Refusal

__all__ = ["Dispatcher", "OnGone"]

_log = logging.getLogger(__name__)

# Longer than a reconnect, shorter than a caller's patience: without the bus nothing at zero can be woken.
BUS_PATIENCE_S: Final = 5.0
SHUT_DOWN: Final = "the gateway is shutting down"
# Each request asks for them: up to Python 3.11 an enum's member takes ten times as long to look up as a name of the module.
_GIVE_UP: Final = Step.GIVE_UP
_ALONE: Final = Step.ALONE
_ELSEWHERE: Final = Step.ELSEWHERE
_CUT: Final = ResultKind.CUT
_LEFT: Final = OutcomeKind.CLIENT_GONE
_BROKEN: Final = OutcomeKind.BROKEN_MID_STREAM
_OK: Final = ResultKind.OK
_WORSE: Final = MappingProxyType({Verdict.CONVICTED: Setback.LETHAL, Verdict.GRAVE: Setback.GRAVE})


@dataclass
class Dispatcher:
    """``monotonic`` is a clock in seconds; ``bus_away`` says for how long the bus has been unreachable.

    ``on_ended`` gets what became of each request, in the request's own time: what it does with it, it does later.
    """

    doors: DoorClient
    accounts: Accounts
    node_token: str = field(repr=False)
    monotonic: Callable[[], float]
    bus_away: Callable[[], float]
    traces: Traces = field(default_factory=Traces)
    on_ended: Callable[[RequestTrace], None] | None = None
    guard: PoisonGuard = field(init=False)

    def __post_init__(self) -> None:
        self.guard = PoisonGuard(self.monotonic)

    async def run(
        self, desk: Desk, arrival: Arrival, job: Job, receive: Receive, send: Send, on_gone: OnGone | None = None
    ) -> str | None:
        """Carry out one request; see ``standby.sagemaker.runtime.contract.Invoker.run``. Raises ClientGone too."""
        account = self.accounts.shadow_of(desk) if job.shadow else self.accounts.of(desk)
        work = Work(desk, account, arrival, job, send)
        task = asyncio.current_task(self.doors.loop)
        assert task is not None
        course = Course(task, on_gone)
        # The server calls a caller who has got the whole answer "disconnected", too, in the very turn of the loop in which
        # the task is to be resumed with its outcome: the task goes first, or every success would count as a caller who left.
        watch = ClientWatch(receive, course.left_soon)
        try:
            with desk.enter():
                return await (self._attempts(work, course) if self.guard.book.empty else self._checked(work, course))
        except asyncio.CancelledError as cancelled:
            task.uncancel()
            return self._cancelled(work, course, cancelled)
        except (StandbyError, AwsError) as error:
            work.ended(error.code, str(error), _status_of(error))
            raise
        except ContainerAnswered as answered:
            work.ended(f"engine_{answered.status // 100}xx", str(answered), answered.status)
            raise
        except AnswerBroken as broken:
            work.ended("broken_stream", str(broken))
            return str(broken)
        except ClientGone:
            work.ended("client_gone", "the caller left")
            raise
        finally:
            course.over = True
            watch.stop()
            work.metered()
            trace = work.trace(self.monotonic())
            self.traces.add(trace)
            if self.on_ended is not None:
                self.on_ended(trace)

    # ---- at the desk -------------------------------------------------------------------------------------------

    @staticmethod
    def _cancelled(work: Work, course: Course, cancelled: asyncio.CancelledError) -> str:
        """Account for a request whose task was cancelled, and say why its answer broke off or raise what ended it."""
        error: StandbyError
        if course.gone:
            work.ended("client_gone", "the caller left")
            raise ClientGone from None
        if course.expired:
            error = InvocationTimeout(
                f"endpoint {work.desk.route.endpoint.name!r} had not answered {work.job.limit_s:g} s after it was asked",
                remedy="ask for a shorter answer, or stream it",
            )
        elif isinstance(cancelled, AnswerCutOff) and not work.job.whole:
            # The server's grace for open requests is over (field case B18).
            work.ended("broken_stream", SHUT_DOWN)
            return SHUT_DOWN
        else:
            error = Unavailable(SHUT_DOWN, remedy="retry", retry_after_s=1.0)
        work.ended(error.code, str(error), error.http_status)
        raise error from None

    async def _attempts(self, work: Work, course: Course) -> str | None:
        step = _ELSEWHERE
        while step is not _GIVE_UP:
            grant = await self._acquire(work)
            step = await self._attempt(work, grant, course)
            if step is _ALONE:
                return await self._quarantined(work, course)
        return work.words if work.ending == "broken_stream" else None

    def _acquire(self, work: Work) -> Awaitable[Grant]:
        desk, arrival, job = work.desk, work.arrival, work.job
        if not desk.has_ready and self.bus_away() > BUS_PATIENCE_S:
            raise BusUnavailable(
                f"endpoint {desk.route.endpoint.name!r} is at zero and the control plane is unreachable",
                remedy="retry later",
                retry_after_s=BUS_PATIENCE_S,
            )
        return desk.acquire(
            arrived=arrival.arrived + work.running_s,
            arrived_at=arrival.arrived_at,
            body_bytes=len(job.body),
            again=work.asked > 0,
            session=job.session,
            ask=job.ask,
            priority=work.priority,
            tried=work.tried,
        )

    async def _checked(self, work: Work, course: Course) -> str | None:
        """Let the request through, one grave suspect at a time. Raises PoisonRequest, WaitExceeded."""
        if self.guard.standing(work) is Standing.GRAVE:
            return await self._quarantined(work, course)
        return await self._attempts(work, course)

    async def _quarantined(self, work: Work, course: Course) -> str | None:
        async with self.guard.alone(work):
            # One with the same body may have been tried meanwhile, or another one convicted of it all.
            work.quarantined = self.guard.standing(work) is Standing.GRAVE
            if work.quarantined:
                return await self._attempts(work, course)
        return await self._attempts(work, course)

    # ---- one attempt -------------------------------------------------------------------------------------------

    async def _attempt(self, work: Work, grant: Grant, course: Course) -> Step:
        """Send the request to the granted instance; GIVE_UP: it has ended. Raises the error that ends it."""
        began = self.monotonic()
        work.rung = grant.rung
        work.waited_s = began - work.arrival.arrived - work.running_s
        if grant.queue_reason:
            work.queue_reason = grant.queue_reason
        kind, words, expiry = _CUT, "not sent", None
        setback: Setback | None = None
        first_byte_s: float | None = None
        attempt_id = work.next_id()
        span, headers = work.traced(grant)
        work.meter.on_start = None if grant.unread is None else grant.unread.read
        try:
            if not self.guard.book.empty and self.guard.standing(work) is Standing.GRAVE and not work.quarantined:
                # One with the same body has become one while this one waited: it is no other request.
                if work.retried:
                    raise _grave(work)
                return Step.ALONE
            if work.job.limit_s is not None:
                expiry = self._expiry(work, work.job.limit_s, course, began)
            request = self._request(work, grant, attempt_id, headers)
            extra = answer_headers(work.job, work.arrival, grant, work.waited_s, work.asked, traced=span != 0)
            try:
                outcome = await self.doors.relay(request, work.meter, extra_headers=extra)
            except BaseException as error:
                work.meter.asked = work.meter.asked or not isinstance(error, NotSent)
                kind, words = self._ended_by(error, course)
                if kind is ResultKind.ENGINE:
                    self.guard.faulty(work, grant, read=True)
                elif isinstance(error, ContainerAnswered):
                    self.guard.answered(work)
                raise
            kind, words = endings.kind_of(outcome), endings.words_of(outcome)
            if outcome.first_byte_at is not None:
                first_byte_s = outcome.first_byte_at - began
                work.first_byte_s = outcome.first_byte_at - work.arrival.arrived
                work.account.first_byte(work.first_byte_s, grant.rung)
            if kind is not _OK:
                setback = endings.setback_of(outcome)
            return self._conclude(work, grant, outcome, kind, setback)
        finally:
            if expiry is not None:
                expiry.cancel()
            lasted_s = self.monotonic() - began
            if setback not in NOT_STARTED:
                work.running_s += lasted_s
            work.attempted(attempt_of(attempt_id, grant, words, lasted_s, kind, began - work.arrival.arrived, span))
            work.usage = usage = work.meter.usage()
            streamed = work.job.ask.stream and work.meter.events
            work.desk.release(grant, Result(kind, lasted_s, first_byte_s, usage.prompt, usage.completion, streamed))

    def _request(self, work: Work, grant: Grant, attempt_id: str, headers: Headers) -> RelayRequest:
        job, body = work.job, work.job.body
        if grant.prioritised and grant.engine is not None and body[:1] == b"{":
            number = engine_priority(grant.engine, work.priority)
            if number is not None:
                body = with_priority(body, number)
        declinable = work.tier in DECLINABLE and not work.retried
        return RelayRequest(
            grant.address,
            grant.instance,
            grant.epoch,
            self.node_token,
            job.path,
            headers,
            body,
            attempt_id,
            "POST",
            declinable,
        )

    @staticmethod
    def _expiry(work: Work, limit_s: float, course: Course, now: float) -> asyncio.TimerHandle:
        if work.limit_at is None:
            work.limit_at = now + limit_s
        return course.loop.call_later(max(0.0, work.limit_at - now), course.expire)

    @staticmethod
    def _ended_by(error: BaseException, course: Course) -> tuple[ResultKind, str]:
        """Return whose doing it was that the relay was ended from outside, and how a trace says it."""
        if not isinstance(error, asyncio.CancelledError):
            return endings.kind_of_error(error), str(error)
        if course.gone:
            return ResultKind.CALLER, "the caller left"
        if not course.expired:
            return ResultKind.CUT, SHUT_DOWN
        if isinstance(error, AnswerCutOff):
            # Nothing against the instance: it did answer, or its caller was slow to read.
            return ResultKind.CUT, "not complete within the limit"
        return ResultKind.TIMEOUT, "no first byte within the limit"

    def _conclude(self, work: Work, grant: Grant, outcome: RelayOutcome, kind: ResultKind, setback: Setback | None) -> Step:
        """Return what comes next. Raises the error that ends the request, or what ``desk.refused`` does."""
        if kind is _OK:
            work.meter.asked = True
            self._over(work, grant, outcome)
            return _GIVE_UP
        work.meter.asked = work.meter.asked or setback in (None, Setback.MAYBE_BEGUN)
        if endings.engine_died(outcome):
            verdict = self.guard.died(work, grant, read=outcome.read, in_flight=outcome.gone)
            if setback is not None:
                setback = _WORSE.get(verdict, setback)
        elif kind is ResultKind.ENGINE and endings.of_the_engine(outcome):
            self.guard.faulty(work, grant, read=outcome.read or outcome.kind is OutcomeKind.DONE)
        if setback is None:
            self._over(work, grant, outcome)
            return _GIVE_UP
        if setback is Setback.REFUSED:
            self._refused(work, grant, outcome.reason)
        elif setback is not Setback.DECLINED:
            work.desk.unreachable(grant)
        step = next_step(work.tier, setback, retried=work.retried)
        if step is _GIVE_UP:
            raise _given_up(work, setback, outcome)
        if setback is Setback.NOT_BEGUN:
            work.limit_at = None
        if setback is not Setback.REFUSED:
            connect = outcome.kind is OutcomeKind.CONNECT_FAILED
            metrics.REQUEUED.labels("connect-failed" if connect else endings.LABELS[setback]).inc()
            work.retried = work.retried or step is Step.ELSEWHERE
            work.tried |= {grant.instance}
        return step

    def _over(self, work: Work, grant: Grant, outcome: RelayOutcome) -> None:
        """The caller has got an answer, or as much of one as there was. Raises ClientGone."""
        if outcome.kind is _LEFT:
            raise ClientGone
        if outcome.kind is _BROKEN:
            work.ended("broken_stream", f"the answer broke off in its middle ({outcome.reason})", outcome.status)
        else:
            status = outcome.status
            work.ended("ok" if status < 400 else f"engine_{status // 100}xx", endings.answered(status), status)
            if outcome.status < 500 and work.mark:
                self.guard.answered(work)
        work.account.served(grant, work.waited_s, self.monotonic() - work.arrival.arrived)

    @staticmethod
    def _refused(work: Work, grant: Grant, reason: str) -> None:
        metrics.REQUEUED.labels(reason).inc()
        if reason == Refusal.BAD_TOKEN:
            _log.error("a door refuses this gateway's STANDBY_NODE_TOKEN", extra={"door": f"{grant.address}"})
        # No engine has seen anything: its time has not begun.
        work.limit_at = None
        work.desk.refused(grant, reason)


def _given_up(work: Work, setback: Setback, outcome: RelayOutcome) -> StandbyError:
    """Return the error for a request whose last attempt has brought nothing."""
    name = work.desk.route.endpoint.name
    where = f"see 'standby endpoints show {name}'"
    match setback:
        case Setback.NOT_BEGUN:
            return Unavailable(
                f"no engine of endpoint {name!r} accepted the request ({outcome.reason})",
                remedy=f"retry; {where}",
                retry_after_s=1.0,
            )
        case Setback.GRAVE:
            return _grave(work)
        case Setback.LETHAL:
            remedy = f"change the request; the same one is refused for {REFUSED_FOR_S:g} s, since an engine died of it"
        case _:
            remedy = f"{where}; the request was {'repeated once' if work.retried else 'not repeated'}"
    return EngineDied(f"the engine of endpoint {name!r} failed before it answered ({outcome.reason})", remedy=remedy)


def _status_of(error: StandbyError | AwsError) -> int:
    return error.status if isinstance(error, AwsError) else error.http_status


def _grave(work: Work) -> StandbyError:
    """Return the error for a request with which two engines died, while others were in flight at both."""
    name = work.desk.route.endpoint.name
    return EngineDied(
        f"two engines of endpoint {name!r} died with this request in flight, which may be what they died of",
        remedy="ask again if it is not: it then runs while no other such request does, and is refused if another engine dies",
    )
