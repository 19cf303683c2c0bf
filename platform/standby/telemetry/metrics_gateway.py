"""What a gateway counts of its requests."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

from standby.telemetry.lean import LeanCounter, LeanHistogram
from standby.telemetry.metrics_registries import GATEWAY, TOKEN_BUCKETS, WAIT_BUCKETS

REQUESTS: Final = LeanCounter(
    "standby_requests",
    "Requests that ended, by outcome",
    ("tenant", "endpoint", "outcome"),
    registry=GATEWAY,
)
IN_FLIGHT: Final = Gauge("standby_requests_in_flight", "Requests inside this gateway", ("tenant", "endpoint"), registry=GATEWAY)
QUEUED: Final = Gauge("standby_requests_queued", "Requests in the waiting room", ("tenant", "endpoint"), registry=GATEWAY)
QUEUED_BYTES: Final = Gauge("standby_queued_bytes", "Body bytes in the waiting room", ("tenant", "endpoint"), registry=GATEWAY)
ASYNC_QUEUED: Final = Gauge(
    "standby_async_queued",
    "Asynchronous invocations that are not over, in all gateways together",
    ("tenant", "endpoint"),
    registry=GATEWAY,
)
QUEUE_WAIT: Final = LeanHistogram(
    "standby_queue_wait_seconds",
    "From arrival to dispatch, by the rung the request found",
    ("tenant", "endpoint", "rung"),
    buckets=WAIT_BUCKETS,
    registry=GATEWAY,
)
FIRST_BYTE: Final = LeanHistogram(
    "standby_time_to_first_byte_seconds",
    "From arrival, queue included, to the first byte of the answer",
    ("tenant", "endpoint", "rung"),
    buckets=WAIT_BUCKETS,
    registry=GATEWAY,
)
DURATION: Final = LeanHistogram(
    "standby_request_duration_seconds",
    "From arrival to the last byte",
    ("tenant", "endpoint", "rung"),
    buckets=WAIT_BUCKETS,
    registry=GATEWAY,
)
PROMPT_TOKENS: Final = LeanCounter(
    "standby_prompt_tokens",
    "Tokens of prompts that engines were asked with; estimated: 1 where it had to be reckoned from their bytes",
    ("tenant", "endpoint", "estimated"),
    registry=GATEWAY,
)
COMPLETION_TOKENS: Final = LeanCounter(
    "standby_completion_tokens",
    "Tokens that engines generated; estimated: 1 where a stream's events had to be counted",
    ("tenant", "endpoint", "estimated"),
    registry=GATEWAY,
)
BILLED_REQUESTS: Final = LeanCounter(
    "standby_billed_requests",
    "Requests that used tokens, each once whatever attempts it took; ending: whole or partial (broken off, caller left)",
    ("tenant", "endpoint", "ending"),
    registry=GATEWAY,
)
SHADOW_REQUESTS: Final = Counter(
    "standby_shadow_requests",
    "Requests that were marked as tests (x-standby-shadow) by a key that may: served, and in no other counter of requests or "
    "tokens, CloudWatch's included",
    ("tenant", "endpoint"),
    registry=GATEWAY,
)
REQUEUED: Final = Counter(
    "standby_requests_requeued",
    "Attempts that a door refused before the engine saw them",
    ("reason",),
    registry=GATEWAY,
)
TIME_TO_FIRST_TOKEN: Final = LeanHistogram(
    "standby_time_to_first_token_seconds",
    "From arrival, queue and cold start included, to the first complete event of a streamed answer",
    ("tenant", "endpoint", "rung"),
    buckets=WAIT_BUCKETS,
    registry=GATEWAY,
)
TIME_PER_OUTPUT_TOKEN: Final = LeanHistogram(
    "standby_time_per_output_token_seconds",
    "Time between the first and the last event of a streamed answer, for each event after the first",
    ("tenant", "endpoint"),
    buckets=TOKEN_BUCKETS,
    registry=GATEWAY,
)
SLOTS: Final = Gauge(
    "standby_slots",
    "Requests that the ready instances take at once, without those on lost nodes",
    ("tenant", "endpoint"),
    registry=GATEWAY,
)
BREAKERS: Final = Gauge(
    "standby_breakers",
    "Instances by the state of this gateway's breaker: closed, open or half_open",
    ("tenant", "endpoint", "state"),
    registry=GATEWAY,
)
BREAKERS_OPENED: Final = LeanCounter(
    "standby_breakers_opened",
    "Breakers that opened, each relapse of a probed one counted again",
    ("tenant", "endpoint"),
    registry=GATEWAY,
)
POISON_CONVICTIONS: Final = LeanCounter(
    "standby_poison_convictions",
    "Requests that this gateway holds to have killed their engines",
    ("tenant", "endpoint"),
    registry=GATEWAY,
)
