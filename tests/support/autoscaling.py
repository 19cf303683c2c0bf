"""The examples below ``infra/autoscaling/`` and the queries in them."""

from __future__ import annotations

import re
from typing import Any

import yaml

from support.promql import INFRA


def documents() -> list[dict[str, Any]]:
    """Return every object of every file."""
    return [one for path in sorted((INFRA / "autoscaling").glob("*.yml")) for one in yaml.safe_load_all(path.read_text())]


def adapter() -> dict[str, Any]:
    """Return prometheus-adapter's own configuration, which lies as text in a ConfigMap."""
    (found,) = (one for one in documents() if one["kind"] == "ConfigMap")
    config: dict[str, Any] = yaml.safe_load(found["data"]["config.yaml"])
    return config


def queries() -> list[str]:
    """Return what KEDA asks, and what the adapter asks: which series there are, and how much."""
    found = [
        trigger["metadata"]["query"]
        for one in documents()
        if one["kind"] == "ScaledObject"
        for trigger in one["spec"]["triggers"]
    ]
    for rule in [*adapter()["rules"], *adapter()["externalRules"]]:
        series = re.sub(r"\{.*", "", rule["seriesQuery"])
        replaced = {"<<.Series>>": series, "<<.LabelMatchers>>": 'namespace=~".*"', "<<.GroupBy>>": "pod"}
        query = rule["metricsQuery"]
        for name, value in replaced.items():
            query = query.replace(name, value)
        found += [rule["seriesQuery"], query]
    return found
