"""CloudWatch's metrics of AWS/SageMaker by their own names and dimensions; the unit stands in brackets."""

from __future__ import annotations

from typing import Final

from prometheus_client import Gauge

from standby.telemetry.lean import LeanCounter, LeanSummary
from standby.telemetry.metrics_registries import GATEWAY

_AWS_LABELS: Final = ("tenant", "EndpointName", "VariantName", "InferenceComponentName")
AWS_INVOCATIONS: Final = LeanCounter(
    "standby_aws_Invocations", "CloudWatch's Invocations (None)", _AWS_LABELS, registry=GATEWAY
)
AWS_4XX: Final = LeanCounter(
    "standby_aws_Invocation4XXErrors",
    "CloudWatch's Invocation4XXErrors (None): the engine answered 4xx, or the request was throttled or not to be served",
    _AWS_LABELS,
    registry=GATEWAY,
)
AWS_5XX: Final = LeanCounter(
    "standby_aws_Invocation5XXErrors",
    "CloudWatch's Invocation5XXErrors (None): the engine answered 5xx, failed, or took too long",
    _AWS_LABELS,
    registry=GATEWAY,
)
AWS_MODEL_LATENCY: Final = LeanSummary(
    "standby_aws_ModelLatency",
    "CloudWatch's ModelLatency (Microseconds): from the dispatch to the last byte of the answer",
    _AWS_LABELS,
    registry=GATEWAY,
)
AWS_OVERHEAD_LATENCY: Final = LeanSummary(
    "standby_aws_OverheadLatency",
    "CloudWatch's OverheadLatency (Microseconds): from arrival to dispatch, a cold start included",
    _AWS_LABELS,
    registry=GATEWAY,
)
AWS_MODEL_SETUP_TIME: Final = LeanSummary(
    "standby_aws_ModelSetupTime",
    "CloudWatch's ModelSetupTime (Microseconds): each climb to ready that requests here waited for, once",
    _AWS_LABELS,
    registry=GATEWAY,
)
AWS_CONCURRENT_UTILIZATION: Final = Gauge(
    "standby_aws_ServerlessConcurrentExecutionsUtilization",
    "CloudWatch's ServerlessConcurrentExecutionsUtilization (None, 0 to 1): this gateway's part; add the gateways up",
    _AWS_LABELS,
    registry=GATEWAY,
)
AWS_PROVISIONED_EXECUTIONS: Final = Gauge(
    "standby_aws_ServerlessProvisionedConcurrencyExecutions",
    "CloudWatch's ServerlessProvisionedConcurrencyExecutions (Count): this gateway's part; add the gateways up",
    _AWS_LABELS,
    registry=GATEWAY,
)
AWS_PROVISIONED_UTILIZATION: Final = Gauge(
    "standby_aws_ServerlessProvisionedConcurrencyUtilization",
    "CloudWatch's ServerlessProvisionedConcurrencyUtilization (None, 0 to 1): this gateway's part; add the gateways up",
    _AWS_LABELS,
    registry=GATEWAY,
)
AWS_PROVISIONED_INVOCATIONS: Final = LeanCounter(
    "standby_aws_ServerlessProvisionedConcurrencyInvocations",
    "CloudWatch's ServerlessProvisionedConcurrencyInvocations (Count)",
    _AWS_LABELS,
    registry=GATEWAY,
)
AWS_SPILLOVER_INVOCATIONS: Final = LeanCounter(
    "standby_aws_ServerlessProvisionedConcurrencySpilloverInvocations",
    "CloudWatch's ServerlessProvisionedConcurrencySpilloverInvocations (Count)",
    _AWS_LABELS,
    registry=GATEWAY,
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
