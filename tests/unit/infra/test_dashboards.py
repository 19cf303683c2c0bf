"""Grafana's files are what the script makes, and each of their expressions can be parsed and names what is exposed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from support import dashboards, promql
from support.reference import defined_metrics

FILES = {path.stem: (path, content) for path, content in dashboards.files()}
MODELS: dict[str, dict[str, Any]] = {name: json.loads(content) for name, (_, content) in FILES.items()}
TARGETS = [
    pytest.param(target, id=f"{name}-{panel['id']}{target['refId']}")
    for name, model in MODELS.items()
    for panel in model["panels"]
    for target in panel["targets"]
]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_what_the_script_makes(name: str) -> None:
    """``make reference`` writes it again."""
    path, content = FILES[name]
    assert path.read_text() == content


def test_there_are_no_other_files() -> None:
    assert {path.stem for path in dashboards.FOLDER.iterdir()} == set(FILES)


@pytest.mark.parametrize("target", TARGETS)
def test_an_expression_names_only_what_is_exposed(target: dict[str, Any]) -> None:
    assert promql.complaints(promql.in_prometheus(target["expr"])) == []


@pytest.mark.parametrize("name", MODELS)
def test_a_dashboard_uses_its_variables_and_no_others(name: str) -> None:
    model = MODELS[name]
    listed = {variable["name"] for variable in model["templating"]["list"]} - {"datasource"}
    queries = [target["expr"] for panel in model["panels"] for target in panel["targets"]]
    used = {found for text in queries for found in re.findall(r"\$(\w+)", text)} - {"__rate_interval"}
    assert used == listed
    for variable in model["templating"]["list"]:
        if variable["type"] == "query":
            (series,) = re.findall(r"label_values\((standby_\w+)", variable["definition"])
            assert variable["name"] in promql.labels_of_series()[series]


@pytest.mark.parametrize("name", MODELS)
def test_panels_lie_side_by_side(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in MODELS[name]["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_every_metric_is_on_some_dashboard() -> None:
    """Directly, or through a recording rule."""
    shown = {selector.name for case in TARGETS for selector in promql.selectors(promql.in_prometheus(case.values[0]["expr"]))}  # type: ignore[index]
    for rule in promql.rules():
        if rule.get("record") in shown:
            shown |= {selector.name for selector in promql.selectors(rule["expr"])}
    missing = []
    for metric in defined_metrics():
        name = next(iter(metric.describe())).name
        if not {f"{name}{ending}" for ending in ("", "_total", "_bucket", "_sum", "_count")} & shown:
            missing.append(name)
    assert missing == []


def test_provisioning_names_what_dashboards_ask() -> None:
    folder = promql.INFRA / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "standby.yml").read_text())["datasources"]
    assert (source["type"], source["jsonData"]["timeInterval"]) == ("prometheus", "15s")
    (provider,) = yaml.safe_load((folder / "dashboards" / "standby.yml").read_text())["providers"]
    assert provider["type"] == "file"
