"""What is wrong with a PromQL expression about standby: ``complaints(expr)`` names metrics and labels that nobody exposes.

Known are the metrics of ``standby.telemetry``, those of every process, what Prometheus itself makes, and the recording rules
below ``infra/``, whose names say their labels.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import promql_parser
import yaml

from support.reference import defined_metrics

INFRA: Final = Path(__file__).parents[2] / "infra"
RULE_FILES: Final = tuple(sorted((INFRA / "prometheus" / "rules").glob("*.yml")))

_OF_TARGETS: Final = frozenset({"job", "instance", "component"})
_IN_KUBERNETES: Final = frozenset({"namespace", "pod"})
_ENDINGS: Final = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
    "gauge": ("",),
}
_LEVELS: Final[Mapping[str, frozenset[str]]] = {
    "endpoint": frozenset({"tenant", "endpoint"}),
    "node_rung": frozenset({"node", "rung"}),
    "node_rung_engine_version": frozenset({"node", "rung", "engine", "version"}),
    "node_device": frozenset({"node", "device", "kind"}),
    "node": frozenset({"node"}),
    "component": frozenset({"component"}),
}
_ALERTS: Final = frozenset({"alertname", "alertstate", "severity", "tenant", "endpoint", "node"})


def rules() -> list[dict[str, Any]]:
    """Return all rules of all groups, recording and alerting."""
    return [rule for path in RULE_FILES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """Return the alerting rules; several may have one name."""
    return [rule for rule in rules() if "alert" in rule]


@functools.cache
def labels_of_series() -> Mapping[str, frozenset[str]]:
    """Return every series' name with its labels."""
    found: dict[str, frozenset[str]] = {"up": _OF_TARGETS, "ALERTS": _ALERTS}
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"):
        found[name] = _OF_TARGETS | _IN_KUBERNETES
    for metric in defined_metrics():
        described = next(iter(metric.describe()))
        labels = frozenset(metric._labelnames) | _OF_TARGETS | _IN_KUBERNETES
        for ending in _ENDINGS[described.type]:
            found[described.name + ending] = labels | ({"le"} if ending == "_bucket" else set())
    for rule in rules():
        if "record" in rule:
            found[rule["record"]] = _LEVELS[rule["record"].partition(":")[0]]
    return found


def selectors(expr: str) -> list[promql_parser.VectorSelector]:
    """Return every selector in an expression. Raises ValueError where it cannot be parsed."""
    return [node for node in _nodes(promql_parser.parse(expr)) if isinstance(node, promql_parser.VectorSelector)]


def complaints(expr: str) -> list[str]:
    """Return what is wrong, in words. Raises ValueError where the expression cannot be parsed."""
    known, wrong = labels_of_series(), []
    for selector in selectors(expr):
        labels = known.get(selector.name or "")
        if labels is None:
            wrong.append(f"nobody exposes {selector.name}")
            continue
        unknown = {matcher.name for matcher in selector.matchers.matchers} - labels
        wrong += [f"{selector.name} has no label {name}" for name in sorted(unknown)]
    for node in _nodes(promql_parser.parse(expr)):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            inside = [item for item in _nodes(node.expr) if isinstance(item, promql_parser.VectorSelector)]
            wrong += [
                f"{selector.name} is added up by {name}, which it does not have"
                for selector in inside
                for name in node.modifier.labels
                if name not in known.get(selector.name or "", {name})
            ]
    return wrong


def in_prometheus(expr: str) -> str:
    """Return a dashboard's expression as Grafana would ask it where everything is chosen."""
    values = {"__rate_interval": "1m", "tenant": ".*", "endpoint": ".*", "node": ".*", "usd_per_gb_hour": "0.005"}
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expr)


def _nodes(expr: promql_parser.Expr) -> list[promql_parser.Expr]:
    """Return the expression's nodes, from the outside to the inside."""
    found: list[promql_parser.Expr] = []

    def visit(node: promql_parser.Expr) -> bool:
        found.append(node)
        return True

    promql_parser.walk(expr, visit)
    return found
