"""Panels about requests: the overview, and one endpoint."""

from __future__ import annotations

from typing import Final

from support.dashboard_panels import AWS_OF_ENDPOINT, OF_ENDPOINT, Panel, mean, percentiles, stat

OVERVIEW: Final = (
    stat("Requests", "reqps", 'sum(rate(standby_requests_total{outcome!="joined"}[$__rate_interval]))'),
    stat(
        "Failed",
        "percentunit",
        "sum(endpoint:standby_errors:rate5m) / (sum(endpoint:standby_requests:rate5m) > 0)",
        (0.005, "orange"),
        (0.03, "red"),
        description="What callers did not cause, of the last five minutes' requests.",
    ),
    stat("In flight", "short", "sum(standby_requests_in_flight)"),
    stat("Waiting", "short", "sum(standby_requests_queued)", (1, "orange"), (20, "red")),
    stat("Alerts", "short", 'count(ALERTS{alertstate="firing"}) or vector(0)', (1, "red")),
    stat(
        "Bus away",
        "s",
        "max(standby_bus_disconnected_seconds)",
        (1, "orange"),
        (3, "red"),
        description="The longest that any process has been without NATS.",
    ),
    Panel(
        "The ladder: instances by rung",
        "short",
        (("sum by (rung) (standby_ladder_instances)", "{{rung}}"),),
        "Cold and staged hold no memory; ready serves.",
        stacked=True,
    ),
    Panel(
        "Requests by outcome",
        "reqps",
        (("sum by (outcome) (rate(standby_requests_total[$__rate_interval]))", "{{outcome}}"),),
        stacked=True,
    ),
    Panel(
        "Time to the first token",
        "s",
        percentiles("standby_time_to_first_token_seconds", ""),
        "Streamed answers, from arrival; queue and cold start included.",
    ),
    Panel(
        "Waiting, in flight, and slots of ready instances",
        "short",
        (
            ("sum(standby_requests_queued)", "waiting"),
            ("sum(standby_requests_in_flight)", "in flight"),
            ("sum(max by (tenant, endpoint) (standby_slots))", "slots"),
        ),
    ),
    Panel(
        "Climbs to ready in a minute",
        "short",
        (("60 * sum by (rung, outcome) (rate(standby_activations_total[$__rate_interval]))", "from {{rung}}: {{outcome}}"),),
        stacked=True,
    ),
    Panel("How long a climb takes", "s", percentiles("standby_activation_seconds", "", "rung")),
    Panel(
        "Memory of hosts and devices",
        "percentunit",
        (
            ("node:standby_resident_bytes:ratio", "{{node}}"),
            ("node_device:standby_device_memory:ratio", "{{node}} {{device}}"),
        ),
        "Held by engines, of what they may have; of a device, held by whomever.",
        thresholds=((0.8, "orange"), (0.92, "red")),
    ),
    Panel("Tokens", "short", (("sum(endpoint:standby_completion_tokens:rate5m)", "generated in a second"),)),
    Panel(
        "Decisions in a minute",
        "short",
        (("60 * sum by (action) (rate(standby_decisions_total[$__rate_interval]))", "{{action}}"),),
        stacked=True,
    ),
    Panel(
        "The controller: who leads, and how long a plan takes",
        "s",
        (
            ("standby_leader", "{{controller}} leads"),
            *percentiles("standby_plan_seconds", ""),
        ),
    ),
    Panel(
        "Age of the local copies of tables",
        "s",
        (("max by (component, instance) (standby_view_staleness_seconds)", "{{component}} {{instance}}"),),
        thresholds=((60, "orange"), (75, "red")),
    ),
    Panel(
        "Trouble with the bus",
        "short",
        (
            ("max by (component, instance) (standby_bus_disconnected_seconds)", "seconds away, {{component}} {{instance}}"),
            ("sum by (component, instance) (standby_bus_errors)", "errors, {{component}} {{instance}}"),
            ("sum by (component, instance) (standby_bus_slow_consumer_drops)", "messages dropped, {{component}} {{instance}}"),
        ),
    ),
    Panel(
        "Spans of traces in a second",
        "short",
        (
            ("sum(rate(standby_spans_exported_total[$__rate_interval]))", "taken by the collector"),
            ("sum by (reason) (rate(standby_spans_dropped_total[$__rate_interval]))", "lost: {{reason}}"),
        ),
        "Nothing where no collector is named.",
    ),
)

ENDPOINT: Final = (
    stat("Requests", "reqps", f'sum(rate(standby_requests_total{{{OF_ENDPOINT},outcome!="joined"}}[$__rate_interval]))'),
    stat(
        "Failed in an hour",
        "percentunit",
        f"max(endpoint:standby_errors:ratio_rate1h{{{OF_ENDPOINT}}})",
        (0.005, "orange"),
        (0.072, "red"),
    ),
    stat("Waiting", "short", f"sum(standby_requests_queued{{{OF_ENDPOINT}}})", (1, "orange"), (20, "red")),
    stat("Slots", "short", f"sum(max by (tenant, endpoint) (standby_slots{{{OF_ENDPOINT}}}))"),
    stat(
        "Open breakers",
        "short",
        f'max(sum by (instance) (standby_breakers{{{OF_ENDPOINT},state=~"open|half_open"}}))',
        (1, "red"),
    ),
    stat("Invocations in the background", "short", f"max(standby_async_queued{{{OF_ENDPOINT}}})"),
    Panel("Time to the first token", "s", percentiles("standby_time_to_first_token_seconds", OF_ENDPOINT)),
    Panel(
        "Time to the first token, by the rung that the request found",
        "s",
        (percentiles("standby_time_to_first_token_seconds", OF_ENDPOINT, "rung")[1],),
        "What a wake, and what a cold start costs callers.",
    ),
    Panel("Time for each further token", "s", percentiles("standby_time_per_output_token_seconds", OF_ENDPOINT)),
    Panel("Arrival to the last byte", "s", percentiles("standby_request_duration_seconds", OF_ENDPOINT)),
    Panel("Wait in the queue, by rung", "s", percentiles("standby_queue_wait_seconds", OF_ENDPOINT, "rung")),
    Panel("Arrival to the first byte", "s", percentiles("standby_time_to_first_byte_seconds", OF_ENDPOINT)),
    Panel(
        "Requests by outcome",
        "reqps",
        ((f"sum by (outcome) (rate(standby_requests_total{{{OF_ENDPOINT}}}[$__rate_interval]))", "{{outcome}}"),),
        stacked=True,
    ),
    Panel(
        "Waiting, in flight, slots",
        "short",
        (
            (f"sum(standby_requests_queued{{{OF_ENDPOINT}}})", "waiting"),
            (f"sum(standby_requests_in_flight{{{OF_ENDPOINT}}})", "in flight"),
            (f"sum(max by (tenant, endpoint) (standby_slots{{{OF_ENDPOINT}}}))", "slots"),
        ),
    ),
    Panel(
        "Tokens in a second",
        "short",
        (
            (f"sum(rate(standby_prompt_tokens_total{{{OF_ENDPOINT}}}[$__rate_interval]))", "of prompts"),
            (f"sum(rate(standby_completion_tokens_total{{{OF_ENDPOINT}}}[$__rate_interval]))", "generated"),
        ),
    ),
    Panel(
        "Instances by the state of a gateway's breaker",
        "short",
        (
            (f"max by (state) (sum by (state, instance) (standby_breakers{{{OF_ENDPOINT}}}))", "{{state}}"),
            (f"sum(increase(standby_breakers_opened_total{{{OF_ENDPOINT}}}[$__rate_interval]))", "opened"),
            (
                f"sum(increase(standby_poison_convictions_total{{{OF_ENDPOINT}}}[$__rate_interval]))",
                "requests that kill engines",
            ),
        ),
    ),
    Panel(
        "Billed requests, and bytes that wait",
        "short",
        (
            (
                f"sum by (ending) (rate(standby_billed_requests_total{{{OF_ENDPOINT}}}[$__rate_interval]))",
                "{{ending}}, in a second",
            ),
            (
                f"sum(rate(standby_shadow_requests_total{{{OF_ENDPOINT}}}[$__rate_interval]))",
                "of tests and not billed, in a second",
            ),
            (f"sum(standby_queued_bytes{{{OF_ENDPOINT}}})", "bytes in the waiting room"),
        ),
    ),
    Panel(
        "Attempts refused before the engine saw them, all endpoints",
        "reqps",
        (("sum by (reason) (rate(standby_requests_requeued_total[$__rate_interval]))", "{{reason}}"),),
    ),
    Panel(
        "CloudWatch's names: invocations and errors",
        "reqps",
        (
            (f"sum(rate(standby_aws_Invocations_total{{{AWS_OF_ENDPOINT}}}[$__rate_interval]))", "Invocations"),
            (f"sum(rate(standby_aws_Invocation4XXErrors_total{{{AWS_OF_ENDPOINT}}}[$__rate_interval]))", "Invocation4XXErrors"),
            (f"sum(rate(standby_aws_Invocation5XXErrors_total{{{AWS_OF_ENDPOINT}}}[$__rate_interval]))", "Invocation5XXErrors"),
        ),
    ),
    Panel(
        "CloudWatch's names: means",
        "µs",
        (
            (mean("standby_aws_ModelLatency", AWS_OF_ENDPOINT, "EndpointName"), "ModelLatency {{EndpointName}}"),
            (mean("standby_aws_OverheadLatency", AWS_OF_ENDPOINT, "EndpointName"), "OverheadLatency {{EndpointName}}"),
            (mean("standby_aws_ModelSetupTime", AWS_OF_ENDPOINT, "EndpointName"), "ModelSetupTime {{EndpointName}}"),
        ),
    ),
    Panel(
        "CloudWatch's names: concurrency",
        "percentunit",
        (
            (
                f"sum(standby_aws_ServerlessConcurrentExecutionsUtilization{{{AWS_OF_ENDPOINT}}})",
                "ServerlessConcurrentExecutionsUtilization",
            ),
            (
                f"sum(standby_aws_ServerlessProvisionedConcurrencyUtilization{{{AWS_OF_ENDPOINT}}})",
                "provisioned",
            ),
        ),
    ),
    Panel(
        "CloudWatch's names: provisioned concurrency",
        "short",
        (
            (f"sum(standby_aws_ServerlessProvisionedConcurrencyExecutions{{{AWS_OF_ENDPOINT}}})", "executions"),
            (
                f"sum(rate(standby_aws_ServerlessProvisionedConcurrencyInvocations_total{{{AWS_OF_ENDPOINT}}}[$__rate_interval]))",
                "invocations in a second",
            ),
            (
                f"sum(rate(standby_aws_ServerlessProvisionedConcurrencySpilloverInvocations_total{{{AWS_OF_ENDPOINT}}}[$__rate_interval]))",
                "spillover in a second",
            ),
        ),
    ),
)
