"""The Grafana dashboards below ``infra/grafana/``, made from plain tables: ``make reference`` writes them.

A panel is its title, its unit and its queries; places on the page follow from the order. Each query is a pair: PromQL, and
the legend in Grafana's words. ``$tenant``, ``$endpoint`` and ``$node`` are the dashboard's own variables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from support.dashboard_nodes import ECONOMICS, NODE
from support.dashboard_panels import Panel
from support.dashboard_requests import ENDPOINT, OVERVIEW

FOLDER: Final = Path(__file__).parents[2] / "infra" / "grafana" / "dashboards"
_COLUMNS: Final = 24
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_NAMES: Final[Mapping[str, str]] = {
    "tenant": "label_values(standby_requests_in_flight, tenant)",
    "endpoint": 'label_values(standby_requests_in_flight{tenant=~"$tenant"}, endpoint)',
    "node": "label_values(standby_memory_capacity_bytes, node)",
}


class Dashboard(NamedTuple):
    """One dashboard: ``uid`` is also the name of its file; ``choices`` are variables that its queries use."""

    uid: str
    title: str
    choices: tuple[str, ...]
    panels: Sequence[Panel]


DASHBOARDS: Final = (
    Dashboard("standby-overview", "standby: overview", (), OVERVIEW),
    Dashboard("standby-endpoint", "standby: endpoint", ("tenant", "endpoint"), ENDPOINT),
    Dashboard("standby-node", "standby: node", ("node",), NODE),
    Dashboard("standby-economics", "standby: economics", ("tenant", "endpoint", "usd_per_gb_hour"), ECONOMICS),
)


def files() -> Iterator[tuple[Path, str]]:
    """Yield path and content of every dashboard's file."""
    for dashboard in DASHBOARDS:
        yield FOLDER / f"{dashboard.uid}.json", json.dumps(_model(dashboard), indent=1) + "\n"


def _model(dashboard: Dashboard) -> dict[str, Any]:
    """Return the dashboard as Grafana 9 and later import it."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["standby"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "type": "dashboards",
                "title": "standby",
                "tags": ["standby"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "annotations": {"list": [_alerts()]},
        "templating": {"list": [_datasource(), *(_variable(name) for name in dashboard.choices)]},
        "panels": list(_placed(dashboard.panels)),
    }


def _placed(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    """Yield panels from left to right and downward; a row is as high as its highest panel."""
    x = y = row = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _COLUMNS:
            x, y, row = 0, y + row, 0
        yield _panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": panel.height})
        x, row = x + panel.width, max(row, panel.height)


def _panel(number: int, panel: Panel, place: Mapping[str, int]) -> dict[str, Any]:
    single = panel.kind == "stat"
    custom: dict[str, Any] = {} if single else {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 8}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    steps = [{"color": "green", "value": None}, *({"color": color, "value": at} for at, color in panel.thresholds)]
    options = (
        {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "area"}
        if single
        else {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi"},
        }
    )
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": dict(place),
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": custom, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expr, "legendFormat": legend, "editorMode": "code"}
            for at, (expr, legend) in enumerate(panel.queries)
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus", "refresh": 1}


def _variable(name: str) -> dict[str, Any]:
    if name not in _NAMES:
        return {"name": name, "type": "textbox", "label": "USD for a GB of memory in an hour", "query": "0.005"}
    return {
        "name": name,
        "type": "query",
        "label": name,
        "datasource": _SOURCE,
        "definition": _NAMES[name],
        "query": {"query": _NAMES[name], "refId": "names"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
    }


def _alerts() -> dict[str, Any]:
    """Mark on every graph when an alert fired."""
    return {
        "name": "alerts",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": 'ALERTS{alertstate="firing"}',
        "titleFormat": "{{alertname}} {{severity}}",
        "textFormat": "{{tenant}} {{endpoint}} {{node}}",
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, content in files():
        path.write_text(content)
