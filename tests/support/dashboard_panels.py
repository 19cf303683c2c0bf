"""What the dashboards show: title, unit, queries. See ``support.dashboards``, which makes Grafana's files of it."""

from __future__ import annotations

from typing import Final, NamedTuple

Query = tuple[str, str]

_E: Final = 'tenant=~"$tenant",endpoint=~"$endpoint"'
_AWS: Final = 'tenant=~"$tenant",EndpointName=~"$endpoint"'
_N: Final = 'node=~"$node"'
_SHARES: Final = (0.5, 0.95, 0.99)


class Panel(NamedTuple):
    """One panel; ``unit`` is Grafana's name of it. ``thresholds``: from which value on it has which colour."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str = ""
    kind: str = "timeseries"
    stacked: bool = False
    thresholds: tuple[tuple[float, str], ...] = ()
    width: int = 12
    height: int = 8


def _stat(title: str, unit: str, query: str, *thresholds: tuple[float, str], description: str = "") -> Panel:
    return Panel(title, unit, ((query, ""),), description, "stat", thresholds=thresholds, width=4, height=4)


def _percentiles(metric: str, matchers: str, by: str = "") -> tuple[Query, ...]:
    """Percentiles of a histogram, for each value of ``by``."""
    labels, legend = (f"{by}, le", f" {{{{{by}}}}}") if by else ("le", "")
    return tuple(
        (
            f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{matchers}}}[$__rate_interval])))",
            f"P{share * 100:.0f}{legend}",
        )
        for share in _SHARES
    )


def _mean(summary: str, matchers: str, by: str) -> str:
    """The mean of a summary or histogram; nothing while nothing was observed."""
    total = f"sum by ({by}) (rate({summary}_sum{{{matchers}}}[$__rate_interval]))"
    return f"{total} / (sum by ({by}) (rate({summary}_count{{{matchers}}}[$__rate_interval])) > 0)"


OVERVIEW: Final = (
    _stat("Requests", "reqps", 'sum(rate(standby_requests_total{outcome!="joined"}[$__rate_interval]))'),
    _stat(
        "Failed",
        "percentunit",
        "sum(endpoint:standby_errors:rate5m) / (sum(endpoint:standby_requests:rate5m) > 0)",
        (0.005, "orange"),
        (0.03, "red"),
        description="What callers did not cause, of the last five minutes' requests.",
    ),
    _stat("In flight", "short", "sum(standby_requests_in_flight)"),
    _stat("Waiting", "short", "sum(standby_requests_queued)", (1, "orange"), (20, "red")),
    _stat("Alerts", "short", 'count(ALERTS{alertstate="firing"}) or vector(0)', (1, "red")),
    _stat(
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
        _percentiles("standby_time_to_first_token_seconds", ""),
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
    Panel("How long a climb takes", "s", _percentiles("standby_activation_seconds", "", "rung")),
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
            *_percentiles("standby_plan_seconds", ""),
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
    _stat("Requests", "reqps", f'sum(rate(standby_requests_total{{{_E},outcome!="joined"}}[$__rate_interval]))'),
    _stat(
        "Failed in an hour",
        "percentunit",
        f"max(endpoint:standby_errors:ratio_rate1h{{{_E}}})",
        (0.005, "orange"),
        (0.072, "red"),
    ),
    _stat("Waiting", "short", f"sum(standby_requests_queued{{{_E}}})", (1, "orange"), (20, "red")),
    _stat("Slots", "short", f"sum(max by (tenant, endpoint) (standby_slots{{{_E}}}))"),
    _stat(
        "Open breakers",
        "short",
        f'max(sum by (instance) (standby_breakers{{{_E},state=~"open|half_open"}}))',
        (1, "red"),
    ),
    _stat("Invocations in the background", "short", f"max(standby_async_queued{{{_E}}})"),
    Panel("Time to the first token", "s", _percentiles("standby_time_to_first_token_seconds", _E)),
    Panel(
        "Time to the first token, by the rung that the request found",
        "s",
        (_percentiles("standby_time_to_first_token_seconds", _E, "rung")[1],),
        "What a wake, and what a cold start costs callers.",
    ),
    Panel("Time for each further token", "s", _percentiles("standby_time_per_output_token_seconds", _E)),
    Panel("Arrival to the last byte", "s", _percentiles("standby_request_duration_seconds", _E)),
    Panel("Wait in the queue, by rung", "s", _percentiles("standby_queue_wait_seconds", _E, "rung")),
    Panel("Arrival to the first byte", "s", _percentiles("standby_time_to_first_byte_seconds", _E)),
    Panel(
        "Requests by outcome",
        "reqps",
        ((f"sum by (outcome) (rate(standby_requests_total{{{_E}}}[$__rate_interval]))", "{{outcome}}"),),
        stacked=True,
    ),
    Panel(
        "Waiting, in flight, slots",
        "short",
        (
            (f"sum(standby_requests_queued{{{_E}}})", "waiting"),
            (f"sum(standby_requests_in_flight{{{_E}}})", "in flight"),
            (f"sum(max by (tenant, endpoint) (standby_slots{{{_E}}}))", "slots"),
        ),
    ),
    Panel(
        "Tokens in a second",
        "short",
        (
            (f"sum(rate(standby_prompt_tokens_total{{{_E}}}[$__rate_interval]))", "of prompts"),
            (f"sum(rate(standby_completion_tokens_total{{{_E}}}[$__rate_interval]))", "generated"),
        ),
    ),
    Panel(
        "Instances by the state of a gateway's breaker",
        "short",
        (
            (f"max by (state) (sum by (state, instance) (standby_breakers{{{_E}}}))", "{{state}}"),
            (f"sum(increase(standby_breakers_opened_total{{{_E}}}[$__rate_interval]))", "opened"),
            (f"sum(increase(standby_poison_convictions_total{{{_E}}}[$__rate_interval]))", "requests that kill engines"),
        ),
    ),
    Panel(
        "Billed requests, and bytes that wait",
        "short",
        (
            (f"sum by (ending) (rate(standby_billed_requests_total{{{_E}}}[$__rate_interval]))", "{{ending}}, in a second"),
            (f"sum(rate(standby_shadow_requests_total{{{_E}}}[$__rate_interval]))", "of tests and not billed, in a second"),
            (f"sum(standby_queued_bytes{{{_E}}})", "bytes in the waiting room"),
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
            (f"sum(rate(standby_aws_Invocations_total{{{_AWS}}}[$__rate_interval]))", "Invocations"),
            (f"sum(rate(standby_aws_Invocation4XXErrors_total{{{_AWS}}}[$__rate_interval]))", "Invocation4XXErrors"),
            (f"sum(rate(standby_aws_Invocation5XXErrors_total{{{_AWS}}}[$__rate_interval]))", "Invocation5XXErrors"),
        ),
    ),
    Panel(
        "CloudWatch's names: means",
        "µs",
        (
            (_mean("standby_aws_ModelLatency", _AWS, "EndpointName"), "ModelLatency {{EndpointName}}"),
            (_mean("standby_aws_OverheadLatency", _AWS, "EndpointName"), "OverheadLatency {{EndpointName}}"),
            (_mean("standby_aws_ModelSetupTime", _AWS, "EndpointName"), "ModelSetupTime {{EndpointName}}"),
        ),
    ),
    Panel(
        "CloudWatch's names: concurrency",
        "percentunit",
        (
            (
                f"sum(standby_aws_ServerlessConcurrentExecutionsUtilization{{{_AWS}}})",
                "ServerlessConcurrentExecutionsUtilization",
            ),
            (
                f"sum(standby_aws_ServerlessProvisionedConcurrencyUtilization{{{_AWS}}})",
                "provisioned",
            ),
        ),
    ),
    Panel(
        "CloudWatch's names: provisioned concurrency",
        "short",
        (
            (f"sum(standby_aws_ServerlessProvisionedConcurrencyExecutions{{{_AWS}}})", "executions"),
            (
                f"sum(rate(standby_aws_ServerlessProvisionedConcurrencyInvocations_total{{{_AWS}}}[$__rate_interval]))",
                "invocations in a second",
            ),
            (
                f"sum(rate(standby_aws_ServerlessProvisionedConcurrencySpilloverInvocations_total{{{_AWS}}}[$__rate_interval]))",
                "spillover in a second",
            ),
        ),
    ),
)

NODE: Final = (
    _stat(
        "Held of the host's memory",
        "percentunit",
        f"max(node:standby_resident_bytes:ratio{{{_N}}})",
        (0.8, "orange"),
        (0.92, "red"),
    ),
    _stat(
        "Fullest device", "percentunit", f"max(node_device:standby_device_memory:ratio{{{_N}}})", (0.8, "orange"), (0.92, "red")
    ),
    _stat("Cordoned devices", "short", f"sum(standby_device_cordoned{{{_N}}})", (1, "red")),
    _stat(
        "On processors beside GPUs",
        "short",
        f"sum(standby_off_device_instances{{{_N}}})",
        (1, "red"),
        description="Instances whose engine computes on processors although the node has fit GPUs.",
    ),
    _stat("Orphans reaped", "short", f"sum(standby_orphans_reaped_total{{{_N}}}) or vector(0)", (1, "orange")),
    _stat(
        "Canaries amiss",
        "short",
        f"sum(increase(standby_canary_mismatches_total{{{_N}}}[1h])) or vector(0)",
        (1, "red"),
    ),
    Panel("Instances by rung", "short", ((f"sum by (rung) (standby_ladder_instances{{{_N}}})", "{{rung}}"),), stacked=True),
    Panel("Instances by state", "short", ((f"sum by (state) (standby_instances{{{_N}}})", "{{state}}"),), stacked=True),
    Panel(
        "Host memory",
        "bytes",
        (
            (f"standby_resident_bytes{{{_N}}}", "{{node}} held"),
            (f"standby_reserved_bytes{{{_N}}}", "{{node}} promised"),
            (f"standby_memory_capacity_bytes{{{_N}}}", "{{node}} allowed"),
        ),
    ),
    Panel(
        "Device memory",
        "bytes",
        (
            (f"standby_device_memory_used_bytes{{{_N}}}", "{{device}} held"),
            (f"standby_device_memory_reserved_bytes{{{_N}}}", "{{device}} promised"),
            (f"standby_device_memory_total_bytes{{{_N}}}", "{{device}} has"),
        ),
    ),
    Panel(
        "The parts of a climb, mean",
        "s",
        ((_mean("standby_activation_phase_seconds", _N, "rung, phase"), "from {{rung}}: {{phase}}"),),
        "Added up they are a climb from that rung.",
        stacked=True,
    ),
    Panel(
        "Climbs now, and the day before",
        "s",
        (
            (f"node_rung:standby_activation_seconds:mean30m{{{_N}}}", "{{node}} from {{rung}}, half an hour"),
            (f"node_rung:standby_activation_seconds:mean1d{{{_N}}}", "{{node}} from {{rung}}, the day before"),
        ),
    ),
    Panel("How long a climb takes", "s", _percentiles("standby_activation_seconds", _N, "rung")),
    Panel(
        "Climbs by outcome in a minute",
        "short",
        (
            (
                f"60 * sum by (rung, outcome) (rate(standby_activations_total{{{_N}}}[$__rate_interval]))",
                "{{rung}} {{outcome}}",
            ),
        ),
        stacked=True,
    ),
    Panel(
        "Pushed out in a minute",
        "short",
        ((f"60 * sum by (what) (rate(standby_evictions_total{{{_N}}}[$__rate_interval]))", "{{what}}"),),
        stacked=True,
    ),
    Panel(
        "Engines that failed, in a quarter of an hour",
        "short",
        ((f"sum by (node, engine) (increase(standby_engine_failures_total{{{_N}}}[15m]))", "{{node}} {{engine}}"),),
        thresholds=((3, "red"),),
    ),
    Panel(
        "Requests at the door",
        "reqps",
        ((f"sum by (result) (rate(standby_door_requests_total{{{_N}}}[$__rate_interval]))", "{{result}}"),),
        stacked=True,
    ),
    Panel("Artifact cache", "bytes", ((f"standby_cache_bytes{{{_N}}}", "{{node}}"),)),
    Panel(
        "Processor time of each process, engines not counted",
        "percentunit",
        (("sum by (component, instance) (rate(process_cpu_seconds_total[$__rate_interval]))", "{{component}} {{instance}}"),),
    ),
    Panel(
        "Memory of each process, engines not counted",
        "bytes",
        (("process_resident_memory_bytes", "{{component}} {{instance}}"),),
    ),
)

ECONOMICS: Final = (
    _stat("Memory held now", "decgbytes", f"sum(endpoint:standby_held_gb:rate5m{{{_E}}})"),
    _stat("… while nothing was in flight", "decgbytes", f"sum(endpoint:standby_wasted_gb:rate5m{{{_E}}})"),
    _stat(
        "Wasted share in a day",
        "percentunit",
        f"sum(increase(standby_idle_byte_seconds_total{{{_E}}}[1d]))"
        f" / (sum(increase(standby_resident_byte_seconds_total{{{_E}}}[1d])) > 0)",
    ),
    _stat(
        "Held in a day",
        "currencyUSD",
        f"sum(increase(standby_resident_byte_seconds_total{{{_E}}}[1d])) / 1e9 / 3600 * $usd_per_gb_hour",
        description="GB-hours of host memory, at the price above.",
    ),
    _stat(
        "Wasted in a day",
        "currencyUSD",
        f"sum(increase(standby_idle_byte_seconds_total{{{_E}}}[1d])) / 1e9 / 3600 * $usd_per_gb_hour",
    ),
    _stat(
        "For a thousand requests",
        "currencyUSD",
        f"1000 * (sum(increase(standby_resident_byte_seconds_total{{{_E}}}[1d])) / 1e9 / 3600 * $usd_per_gb_hour)"
        f' / (sum(increase(standby_requests_total{{{_E},outcome="ok"}}[1d])) > 0)',
    ),
    Panel(
        "Memory held, by rung",
        "decgbytes",
        ((f"sum by (rung) (rate(standby_resident_byte_seconds_total{{{_E}}}[$__rate_interval])) / 1e9", "{{rung}}"),),
        "GB·s in each second.",
        stacked=True,
    ),
    Panel(
        "Memory held while nothing was in flight, by rung",
        "decgbytes",
        ((f"sum by (rung) (rate(standby_idle_byte_seconds_total{{{_E}}}[$__rate_interval])) / 1e9", "{{rung}}"),),
        stacked=True,
    ),
    Panel(
        "Ten endpoints that waste most",
        "decgbytes",
        ((f"topk(10, endpoint:standby_wasted_gb:rate5m{{{_E}}})", "{{tenant}}/{{endpoint}}"),),
    ),
    Panel(
        "Tokens for each GB·s held",
        "short",
        (
            (
                f"endpoint:standby_completion_tokens:rate5m{{{_E}}} / (endpoint:standby_held_gb:rate5m{{{_E}}} > 0)",
                "{{tenant}}/{{endpoint}}",
            ),
        ),
    ),
    Panel(
        "Processor time for each request, engines not counted",
        "s",
        (("component:standby_cpu_seconds:per_request5m", "{{component}}"),),
    ),
    Panel(
        "Sleepers, zygotes and artifacts that had to go, in a minute",
        "short",
        (("60 * sum by (what) (rate(standby_evictions_total[$__rate_interval]))", "{{what}}"),),
        stacked=True,
    ),
)
