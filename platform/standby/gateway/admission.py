"""May a request wait? Pure: bounded by count and bytes per variant, and by bytes over all endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from standby.domain.endpoint import Endpoint, EndpointStatus, ScalePolicy

# A first or second failed start may be chance, and the node tries again within about three seconds; from the third on
# a caller is better served by the reason than by a wait (field case B12).
FAST_FAIL_AFTER = 3


class Verdict(StrEnum):
    """What admission says."""

    WAIT = "wait"
    QUEUE_FULL = "queue_full"
    THROTTLED = "throttled"
    FAILED = "failed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Room:
    """The waiting room of one variant in this gateway, and all rooms together."""

    requests: int
    body_bytes: int
    all_bytes: int
    all_bytes_limit: int


@dataclass(frozen=True, slots=True)
class Admission:
    """The verdict with its reason."""

    verdict: Verdict
    reason: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A variant's requests that this gateway has under way, and the slots that it sees.

    ``slots`` are those of all ready instances; ``room`` says that some of them are free all the same: not asked for a moment,
    or not of the instance to which a session belongs.
    """

    granted: int
    waiting: int
    slots: int
    room: bool


def hopeless(endpoint: Endpoint, variant: str, now: float) -> Admission | None:
    """Return a refusal if waiting cannot help: the endpoint is being deleted, or the variant fails again and again."""
    if endpoint.status is EndpointStatus.DELETING:
        return Admission(Verdict.GONE, "the endpoint is being deleted")
    failure = endpoint.failure
    if endpoint.status is not EndpointStatus.FAILED or failure is None or failure.attempts < FAST_FAIL_AFTER:
        return None
    if failure.variant not in ("", variant):
        return None
    # Once the retry is due somebody must ask, or an endpoint whose instance was given up would never be tried again.
    if failure.next_retry_at is None or failure.next_retry_at <= now:
        return None
    first = f": {failure.first_error}" if failure.first_error else ""
    reason = f"{failure.reason}{first} ({failure.attempts} attempts)"
    return Admission(Verdict.FAILED, reason, max(1.0, failure.next_retry_at - now))


def throttled(limit: int, seen: UnderWay, *, again: bool) -> Admission | None:
    """Return a refusal for a request that found no free slot, if it goes beyond the variant's concurrency limit.

    Every slot that the limit allows is at a door: what finds them taken is beyond it. While there are fewer (nothing is
    ready, or another instance is on its way) at most as many requests as the limit wait here; other gateways may have
    as many, and the doors decide who is within it. ``again`` marks one that was within it already.
    """
    if seen.slots >= limit and not seen.room:
        return Admission(Verdict.THROTTLED, f"{limit} requests are under way, which is the concurrency limit", 1.0)
    if not again and seen.granted + seen.waiting >= limit:
        reason = f"{seen.granted} requests are under way and {seen.waiting} wait, the concurrency limit is {limit}"
        return Admission(Verdict.THROTTLED, reason, 1.0)
    return None


def may_wait(policy: ScalePolicy, room: Room, body_bytes: int) -> Admission:
    """Return whether a request of ``body_bytes`` has room to wait."""
    if room.requests + 1 > policy.queue_requests:
        return Admission(
            Verdict.QUEUE_FULL,
            f"{room.requests} requests wait, the limit is {policy.queue_requests}",
            retry_after_s=1.0,
        )
    if room.body_bytes + body_bytes > policy.queue_bytes:
        return Admission(
            Verdict.QUEUE_FULL,
            f"{room.body_bytes} body bytes wait, the limit is {policy.queue_bytes}",
            retry_after_s=1.0,
        )
    if room.all_bytes + body_bytes > room.all_bytes_limit:
        return Admission(
            Verdict.QUEUE_FULL,
            f"{room.all_bytes} body bytes wait in this gateway, the limit is {room.all_bytes_limit}",
            retry_after_s=1.0,
        )
    return Admission(Verdict.WAIT, "waits for a slot")
