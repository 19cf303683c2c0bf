"""Keeps requests that kill engines from killing the next one: what the dispatcher asks the book of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from standby.domain.errors import PoisonRequest
from standby.gateway.course import Work
from standby.gateway.desk import Grant
from standby.gateway.poison import Death, PoisonBook, Standing, Verdict, fingerprint
from standby.gateway.quarantine import Quarantine


@dataclass
class PoisonGuard:
    """``monotonic`` is a clock in seconds. A request's fingerprint is computed only when it is needed, and once."""

    monotonic: Callable[[], float]
    book: PoisonBook = field(default_factory=PoisonBook)
    quarantine: Quarantine = field(default_factory=Quarantine)

    def standing(self, work: Work) -> Standing:
        """Return what is known of a request. Raises PoisonRequest where it is convicted."""
        who = work.who
        if not work.mark:
            if not self.book.concerns(who):
                return Standing.UNKNOWN
            work.mark = fingerprint(who, work.job.body)
        now = self.monotonic()
        conviction = self.book.conviction(work.mark, now)
        if conviction is not None:
            left = max(1.0, conviction.until - now)
            raise PoisonRequest(
                f"endpoint {who.endpoint!r} refuses this request for {left:.0f} s more: {conviction.reason}",
                remedy="change the request; the same body would end another engine",
                retry_after_s=left,
            )
        return self.book.standing(work.mark, now)

    @asynccontextmanager
    async def alone(self, work: Work) -> AsyncIterator[None]:
        """Wait until no other grave suspect of the endpoint runs. Raises WaitExceeded."""
        endpoint = work.desk.route.endpoint
        lane = self.quarantine.alone((endpoint.tenant, endpoint.name), work.desk.route.policy.max_cold_wait)
        async with AsyncExitStack() as stack:
            began = self.monotonic()
            try:
                await stack.enter_async_context(lane)
            finally:
                work.quarantined_s += self.monotonic() - began
            yield

    def died(self, work: Work, grant: Grant, *, read: bool, in_flight: int) -> Verdict:
        """An engine has died with this request in flight; ``read``: it certainly had read it.

        ``in_flight`` is how many there were, of all gateways, this one included.
        """
        death = Death(grant.instance, grant.epoch, grant.alone and in_flight <= 1, read)
        return self.book.died(work.who, self._mark(work), death, self.monotonic())

    def faulty(self, work: Work, grant: Grant, *, read: bool) -> None:
        """An engine has answered with a fault of its own: it may be at its end without its socket's telling."""
        self.book.faulty(work.who, self._mark(work), Death(grant.instance, grant.epoch, grant.alone, read), self.monotonic())

    def answered(self, work: Work) -> None:
        """An engine has answered this request."""
        if work.mark:
            self.book.answered(work.mark)

    def engine_failed(self, instance: str, epoch: int) -> None:
        """A node says that an engine has failed while it was ready."""
        self.book.engine_failed(instance, epoch, self.monotonic())

    @staticmethod
    def _mark(work: Work) -> str:
        work.mark = work.mark or fingerprint(work.who, work.job.body)
        return work.mark
