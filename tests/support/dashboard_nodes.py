"""Panels about nodes, and about what memory and time are spent on."""

from __future__ import annotations

from typing import Final

from support.dashboard_panels import OF_ENDPOINT, OF_NODE, Panel, mean, percentiles, stat

NODE: Final = (
    stat(
        "Held of the host's memory",
        "percentunit",
        f"max(node:standby_resident_bytes:ratio{{{OF_NODE}}})",
        (0.8, "orange"),
        (0.92, "red"),
    ),
    stat(
        "Fullest device",
        "percentunit",
        f"max(node_device:standby_device_memory:ratio{{{OF_NODE}}})",
        (0.8, "orange"),
        (0.92, "red"),
    ),
    stat("Cordoned devices", "short", f"sum(standby_device_cordoned{{{OF_NODE}}})", (1, "red")),
    stat(
        "On processors beside GPUs",
        "short",
        f"sum(standby_off_device_instances{{{OF_NODE}}})",
        (1, "red"),
        description="Instances whose engine computes on processors although the node has fit GPUs.",
    ),
    stat("Orphans reaped", "short", f"sum(standby_orphans_reaped_total{{{OF_NODE}}}) or vector(0)", (1, "orange")),
    stat(
        "Canaries amiss",
        "short",
        f"sum(increase(standby_canary_mismatches_total{{{OF_NODE}}}[1h])) or vector(0)",
        (1, "red"),
    ),
    Panel(
        "Instances by rung", "short", ((f"sum by (rung) (standby_ladder_instances{{{OF_NODE}}})", "{{rung}}"),), stacked=True
    ),
    Panel("Instances by state", "short", ((f"sum by (state) (standby_instances{{{OF_NODE}}})", "{{state}}"),), stacked=True),
    Panel(
        "Host memory",
        "bytes",
        (
            (f"standby_resident_bytes{{{OF_NODE}}}", "{{node}} held"),
            (f"standby_reserved_bytes{{{OF_NODE}}}", "{{node}} promised"),
            (f"standby_memory_capacity_bytes{{{OF_NODE}}}", "{{node}} allowed"),
        ),
    ),
    Panel(
        "Device memory",
        "bytes",
        (
            (f"standby_device_memory_used_bytes{{{OF_NODE}}}", "{{device}} held"),
            (f"standby_device_memory_reserved_bytes{{{OF_NODE}}}", "{{device}} promised"),
            (f"standby_device_memory_total_bytes{{{OF_NODE}}}", "{{device}} has"),
        ),
    ),
    Panel(
        "The parts of a climb, mean",
        "s",
        ((mean("standby_activation_phase_seconds", OF_NODE, "rung, phase"), "from {{rung}}: {{phase}}"),),
        "Added up they are a climb from that rung.",
        stacked=True,
    ),
    Panel(
        "Climbs now, and the day before",
        "s",
        (
            (f"node_rung:standby_activation_seconds:mean30m{{{OF_NODE}}}", "{{node}} from {{rung}}, half an hour"),
            (f"node_rung:standby_activation_seconds:mean1d{{{OF_NODE}}}", "{{node}} from {{rung}}, the day before"),
        ),
    ),
    Panel("How long a climb takes", "s", percentiles("standby_activation_seconds", OF_NODE, "rung")),
    Panel(
        "Climbs by outcome in a minute",
        "short",
        (
            (
                f"60 * sum by (rung, outcome) (rate(standby_activations_total{{{OF_NODE}}}[$__rate_interval]))",
                "{{rung}} {{outcome}}",
            ),
        ),
        stacked=True,
    ),
    Panel(
        "Pushed out in a minute",
        "short",
        ((f"60 * sum by (what) (rate(standby_evictions_total{{{OF_NODE}}}[$__rate_interval]))", "{{what}}"),),
        stacked=True,
    ),
    Panel(
        "Engines that failed, in a quarter of an hour",
        "short",
        ((f"sum by (node, engine) (increase(standby_engine_failures_total{{{OF_NODE}}}[15m]))", "{{node}} {{engine}}"),),
        thresholds=((3, "red"),),
    ),
    Panel(
        "Requests at the door",
        "reqps",
        ((f"sum by (result) (rate(standby_door_requests_total{{{OF_NODE}}}[$__rate_interval]))", "{{result}}"),),
        stacked=True,
    ),
    Panel("Artifact cache", "bytes", ((f"standby_cache_bytes{{{OF_NODE}}}", "{{node}}"),)),
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
    stat("Memory held now", "decgbytes", f"sum(endpoint:standby_held_gb:rate5m{{{OF_ENDPOINT}}})"),
    stat("… while nothing was in flight", "decgbytes", f"sum(endpoint:standby_wasted_gb:rate5m{{{OF_ENDPOINT}}})"),
    stat(
        "Wasted share in a day",
        "percentunit",
        f"sum(increase(standby_idle_byte_seconds_total{{{OF_ENDPOINT}}}[1d]))"
        f" / (sum(increase(standby_resident_byte_seconds_total{{{OF_ENDPOINT}}}[1d])) > 0)",
    ),
    stat(
        "Held in a day",
        "currencyUSD",
        f"sum(increase(standby_resident_byte_seconds_total{{{OF_ENDPOINT}}}[1d])) / 1e9 / 3600 * $usd_per_gb_hour",
        description="GB-hours of host memory, at the price above.",
    ),
    stat(
        "Wasted in a day",
        "currencyUSD",
        f"sum(increase(standby_idle_byte_seconds_total{{{OF_ENDPOINT}}}[1d])) / 1e9 / 3600 * $usd_per_gb_hour",
    ),
    stat(
        "For a thousand requests",
        "currencyUSD",
        f"1000 * (sum(increase(standby_resident_byte_seconds_total{{{OF_ENDPOINT}}}[1d])) / 1e9 / 3600 * $usd_per_gb_hour)"
        f' / (sum(increase(standby_requests_total{{{OF_ENDPOINT},outcome="ok"}}[1d])) > 0)',
    ),
    Panel(
        "Memory held, by rung",
        "decgbytes",
        ((f"sum by (rung) (rate(standby_resident_byte_seconds_total{{{OF_ENDPOINT}}}[$__rate_interval])) / 1e9", "{{rung}}"),),
        "GB·s in each second.",
        stacked=True,
    ),
    Panel(
        "Memory held while nothing was in flight, by rung",
        "decgbytes",
        ((f"sum by (rung) (rate(standby_idle_byte_seconds_total{{{OF_ENDPOINT}}}[$__rate_interval])) / 1e9", "{{rung}}"),),
        stacked=True,
    ),
    Panel(
        "Ten endpoints that waste most",
        "decgbytes",
        ((f"topk(10, endpoint:standby_wasted_gb:rate5m{{{OF_ENDPOINT}}})", "{{tenant}}/{{endpoint}}"),),
    ),
    Panel(
        "Tokens for each GB·s held",
        "short",
        (
            (
                (
                    f"endpoint:standby_completion_tokens:rate5m{{{OF_ENDPOINT}}}"
                    f" / (endpoint:standby_held_gb:rate5m{{{OF_ENDPOINT}}} > 0)"
                ),
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
