"""An update of an endpoint: what its variants need before it takes over, and how it ends. Pure.

The config before it serves until every variant of the new one has what it needs; then the endpoint's record changes, and
only then the instances of the old one leave. An instance of the new config that fails for good ends the update: the record
keeps its config and tells why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from standby.controller import scaling
from standby.controller.actions import SettleUpdate
from standby.controller.served import Served
from standby.controller.status import NO_CAPACITY
from standby.controller.view import NEVER, EndpointView, Placed
from standby.domain.endpoint import Failure

# A first or second failed start may be chance; the node tries again by itself within seconds.
GIVE_UP_AFTER: Final = 3
# How long an update waits for room beside what serves.
ROOM_PATIENCE_S: Final = 60.0
# Of how much of the past the highest concurrency counts as what the new instances must take.
_LOOK_BACK_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A variant of the update's config and its instances on living nodes; ``need`` of them must be ready."""

    served: Served
    placed: tuple[Placed, ...]
    need: int

    @property
    def failure(self) -> Failure | None:
        """Why it cannot be brought up, once that is certain."""
        return failed_for_good(self.placed)

    @property
    def complete(self) -> bool:
        """It has what it needs."""
        return sum(placed.ready for placed in self.placed) >= self.need


def failed_for_good(placed: Sequence[Placed]) -> Failure | None:
    """Return why one of the instances does not start, once that is certain."""
    failures = (one.failure for one in placed if one.failed)
    return next((one for one in failures if one is not None and one.attempts >= GIVE_UP_AFTER), None)


def needed(served: Served, endpoint: EndpointView, now: float, *, active: bool) -> int:
    """Return how many instances of a variant must be ready before the update takes over.

    ``active``: something of the endpoint, or of the backend that it follows, is up or asked for. At zero an update needs
    nothing but ``min_ready``: the next request wakes what is new.
    """
    policy = served.variant.policy
    if not active or served.share == 0:
        return policy.min_ready
    demand, share = (endpoint.demand, served.share) if served.follows is None else (served.follows, 1.0)
    return max(1, policy.min_ready, scaling.needed(demand.peak_since(now - _LOOK_BACK_S), share, policy))


def settle(
    endpoint: EndpointView, arrivals: Sequence[Arrival], no_room: str | None, now: float
) -> tuple[SettleUpdate | None, float]:
    """Return how the update ends, or None while it goes on, and when to look again without any news."""
    wanted = endpoint.record.pending_config
    failure = next((one.failure for one in arrivals if one.failure is not None), None)
    if failure is not None:
        return _ended(endpoint, f"an instance of config {wanted} failed: {failure.reason}", failure), NEVER
    if all(one.complete for one in arrivals):
        return _ended(endpoint, f"config {wanted} has what it needs"), NEVER
    if no_room is None:
        return None, NEVER
    if endpoint.demand.valid and endpoint.demand.concurrency == 0:
        return _ended(endpoint, f"no room beside what serves ({no_room}), and nobody asks"), NEVER
    due = endpoint.pending_at + ROOM_PATIENCE_S
    if now < due:
        return None, due
    return _ended(endpoint, no_room, Failure(reason=no_room, code=NO_CAPACITY)), NEVER


def _ended(endpoint: EndpointView, reason: str, failure: Failure | None = None) -> SettleUpdate:
    record = endpoint.record
    return SettleUpdate(
        key=endpoint.key,
        revision=endpoint.revision,
        tenant=record.tenant,
        endpoint=record.name,
        failure=failure,
        reason=f"the update {'takes over' if failure is None else 'is rolled back'}: {reason}",
    )
