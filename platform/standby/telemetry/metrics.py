"""Every metric's name, labels and buckets, defined once.

Labels come from the registry only (endpoint, instance and node names); anything a caller invents is ``other``.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from standby.telemetry.lean import LeanCounter, LeanHistogram, LeanSummary

REGISTRY: Final = CollectorRegistry()

_WAIT_BUCKETS: Final = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    20,
    30,
    50,
    60,
    120,
    300,
)

REQUESTS: Final = LeanCounter(
    "standby_requests",
    "Requests that ended, by outcome",
    ("tenant", "endpoint", "outcome"),
    registry=REGISTRY,
)
IN_FLIGHT: Final = Gauge(
    "standby_requests_in_flight", "Requests inside this gateway", ("tenant", "endpoint"), registry=REGISTRY
)
QUEUED: Final = Gauge("standby_requests_queued", "Requests in the waiting room", ("tenant", "endpoint"), registry=REGISTRY)
QUEUED_BYTES: Final = Gauge("standby_queued_bytes", "Body bytes in the waiting room", ("tenant", "endpoint"), registry=REGISTRY)
ASYNC_QUEUED: Final = Gauge(
    "standby_async_queued",
    "Asynchronous invocations that are not over, in all gateways together",
    ("tenant", "endpoint"),
    registry=REGISTRY,
)
QUEUE_WAIT: Final = LeanHistogram(
    "standby_queue_wait_seconds",
    "From arrival to dispatch, by the rung the request found",
    ("tenant", "endpoint", "rung"),
    buckets=_WAIT_BUCKETS,
    registry=REGISTRY,
)
FIRST_BYTE: Final = LeanHistogram(
    "standby_time_to_first_byte_seconds",
    "From arrival, queue included, to the first byte of the answer",
    ("tenant", "endpoint", "rung"),
    buckets=_WAIT_BUCKETS,
    registry=REGISTRY,
)
DURATION: Final = LeanHistogram(
    "standby_request_duration_seconds",
    "From arrival to the last byte",
    ("tenant", "endpoint", "rung"),
    buckets=_WAIT_BUCKETS,
    registry=REGISTRY,
)
PROMPT_TOKENS: Final = LeanCounter(
    "standby_prompt_tokens",
    "Tokens of prompts that engines were asked with; estimated: 1 where it had to be reckoned from their bytes",
    ("tenant", "endpoint", "estimated"),
    registry=REGISTRY,
)
COMPLETION_TOKENS: Final = LeanCounter(
    "standby_completion_tokens",
    "Tokens that engines generated; estimated: 1 where a stream's events had to be counted",
    ("tenant", "endpoint", "estimated"),
    registry=REGISTRY,
)
BILLED_REQUESTS: Final = LeanCounter(
    "standby_billed_requests",
    "Requests that used tokens, each once whatever attempts it took; ending: whole or partial (broken off, caller left)",
    ("tenant", "endpoint", "ending"),
    registry=REGISTRY,
)
REQUEUED: Final = Counter(
    "standby_requests_requeued",
    "Attempts that a door refused before the engine saw them",
    ("reason",),
    registry=REGISTRY,
)
# CloudWatch's metrics of AWS/SageMaker by their own names and dimensions; the unit stands in brackets.
_AWS_LABELS: Final = ("tenant", "EndpointName", "VariantName", "InferenceComponentName")
AWS_INVOCATIONS: Final = LeanCounter(
    "standby_aws_Invocations", "CloudWatch's Invocations (None)", _AWS_LABELS, registry=REGISTRY
)
AWS_4XX: Final = LeanCounter(
    "standby_aws_Invocation4XXErrors",
    "CloudWatch's Invocation4XXErrors (None): the engine answered 4xx, or the request was throttled or not to be served",
    _AWS_LABELS,
    registry=REGISTRY,
)
AWS_5XX: Final = LeanCounter(
    "standby_aws_Invocation5XXErrors",
    "CloudWatch's Invocation5XXErrors (None): the engine answered 5xx, failed, or took too long",
    _AWS_LABELS,
    registry=REGISTRY,
)
AWS_MODEL_LATENCY: Final = LeanSummary(
    "standby_aws_ModelLatency",
    "CloudWatch's ModelLatency (Microseconds): from the dispatch to the last byte of the answer",
    _AWS_LABELS,
    registry=REGISTRY,
)
AWS_OVERHEAD_LATENCY: Final = LeanSummary(
    "standby_aws_OverheadLatency",
    "CloudWatch's OverheadLatency (Microseconds): from arrival to dispatch, a cold start included",
    _AWS_LABELS,
    registry=REGISTRY,
)
AWS_MODEL_SETUP_TIME: Final = LeanSummary(
    "standby_aws_ModelSetupTime",
    "CloudWatch's ModelSetupTime (Microseconds): each climb to ready that requests here waited for, once",
    _AWS_LABELS,
    registry=REGISTRY,
)
AWS_CONCURRENT_UTILIZATION: Final = Gauge(
    "standby_aws_ServerlessConcurrentExecutionsUtilization",
    "CloudWatch's ServerlessConcurrentExecutionsUtilization (None, 0 to 1): this gateway's part; add the gateways up",
    _AWS_LABELS,
    registry=REGISTRY,
)
AWS_PROVISIONED_EXECUTIONS: Final = Gauge(
    "standby_aws_ServerlessProvisionedConcurrencyExecutions",
    "CloudWatch's ServerlessProvisionedConcurrencyExecutions (Count): this gateway's part; add the gateways up",
    _AWS_LABELS,
    registry=REGISTRY,
)
AWS_PROVISIONED_UTILIZATION: Final = Gauge(
    "standby_aws_ServerlessProvisionedConcurrencyUtilization",
    "CloudWatch's ServerlessProvisionedConcurrencyUtilization (None, 0 to 1): this gateway's part; add the gateways up",
    _AWS_LABELS,
    registry=REGISTRY,
)
AWS_PROVISIONED_INVOCATIONS: Final = LeanCounter(
    "standby_aws_ServerlessProvisionedConcurrencyInvocations",
    "CloudWatch's ServerlessProvisionedConcurrencyInvocations (Count)",
    _AWS_LABELS,
    registry=REGISTRY,
)
AWS_SPILLOVER_INVOCATIONS: Final = LeanCounter(
    "standby_aws_ServerlessProvisionedConcurrencySpilloverInvocations",
    "CloudWatch's ServerlessProvisionedConcurrencySpilloverInvocations (Count)",
    _AWS_LABELS,
    registry=REGISTRY,
)
AWS: Final = (
    AWS_INVOCATIONS,
    AWS_4XX,
    AWS_5XX,
    AWS_MODEL_LATENCY,
    AWS_OVERHEAD_LATENCY,
    AWS_MODEL_SETUP_TIME,
    AWS_CONCURRENT_UTILIZATION,
    AWS_PROVISIONED_EXECUTIONS,
    AWS_PROVISIONED_UTILIZATION,
    AWS_PROVISIONED_INVOCATIONS,
    AWS_SPILLOVER_INVOCATIONS,
)

ACTIVATIONS: Final = Counter(
    "standby_activations",
    "Climbs to ready, by the rung they started from",
    ("node", "rung", "outcome"),
    registry=REGISTRY,
)
ACTIVATION_SECONDS: Final = Histogram(
    "standby_activation_seconds",
    "Seconds from the assignment to ready",
    ("node", "rung"),
    buckets=_WAIT_BUCKETS,
    registry=REGISTRY,
)
INSTANCES: Final = Gauge("standby_instances", "Instances on this node, by state", ("node", "state"), registry=REGISTRY)
RESIDENT_BYTES: Final = Gauge("standby_resident_bytes", "Host memory held by engines", ("node",), registry=REGISTRY)
RESERVED_BYTES: Final = Gauge("standby_reserved_bytes", "Host memory promised to instances", ("node",), registry=REGISTRY)
CACHE_BYTES: Final = Gauge("standby_cache_bytes", "Bytes in the artifact cache", ("node",), registry=REGISTRY)
ORPHANS: Final = Counter(
    "standby_orphans_reaped",
    "Engine processes of an earlier life that were ended",
    ("node",),
    registry=REGISTRY,
)
BUS_DISCONNECTED: Final = Gauge(
    "standby_bus_disconnected_seconds", "How long the bus has been away; 0 when connected", registry=REGISTRY
)
BUS_ERRORS: Final = Gauge("standby_bus_errors", "Errors that the bus connection reported since start", registry=REGISTRY)
BUS_SLOW_CONSUMER_DROPS: Final = Gauge(
    "standby_bus_slow_consumer_drops", "Messages dropped because a subscriber was too slow", registry=REGISTRY
)
VIEW_STALENESS: Final = Gauge(
    "standby_view_staleness_seconds",
    "Age of the last confirmation of the local copy",
    ("table",),
    registry=REGISTRY,
)
