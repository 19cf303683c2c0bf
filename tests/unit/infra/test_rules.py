"""Prometheus' own checks of rules and configuration, and what every alert must tell an operator."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from standby.cli.main import app
from standby.domain import errors
from support import promql
from support.reference import ROOT

PROMETHEUS = promql.INFRA / "prometheus"
TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
PAGE = (ROOT / "docs" / "observability.md").read_text()
ALERTS = promql.alerts()
NAMES = sorted({alert["alert"] for alert in ALERTS})
WANTED = {
    "PendingBacklog", "ColdStartRegression", "DeviceMismatch", "StaleBus", "BreakerOpen", "ResidencyHigh", "OrphanFound",
    "NoLeader", "TargetDown", "EngineFailures", "ErrorRatio", "DeviceCordoned", "PoisonRequest",
}  # fmt: skip
# Outcomes that are no error's code: see standby.gateway.cloudwatch.
OUTCOMES = {"ok", "client_gone", "joined", "engine_4xx", "ValidationError"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)


def promtool(*arguments: str | Path) -> str:
    ran = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=150, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@needs_promtool
@pytest.mark.parametrize("path", promql.RULE_FILES, ids=lambda path: path.stem)
def test_promtool_finds_nothing_wrong_with_the_rules(path: Path) -> None:
    assert "SUCCESS" in promtool("check", "rules", path)


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_configuration(tmp_path: Path) -> None:
    """Also with each commented example as the only job; Debian's build knows no Kubernetes, which is therefore left out."""
    shutil.copytree(PROMETHEUS / "rules", tmp_path / "rules")
    text = (PROMETHEUS / "prometheus.yml").read_text()
    shipped = yaml.safe_load(text)
    jobs = [
        yaml.safe_load(re.sub(r"(?m)^  # ?", "", example))[0] for example in re.findall(r"  # - job_name(?:.*\n  #)+.*", text)
    ]
    assert ["static_configs" in job for job in jobs] == ["kubernetes_sd_configs" not in job for job in jobs] == [True, False]
    (tmp_path / "key").touch()
    for number, job in enumerate([*shipped["scrape_configs"], *jobs]):
        job.pop("kubernetes_sd_configs", None)
        if "authorization" in job:
            job["authorization"]["credentials_file"] = str(tmp_path / "key")
        (tmp_path / f"{number}.yml").write_text(yaml.safe_dump({**shipped, "scrape_configs": [job]}))
        promtool("check", "config", tmp_path / f"{number}.yml")


@needs_promtool
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_alerts_fire_do_not_fire_just_below_and_resolve(path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", path)


@pytest.mark.parametrize("name", NAMES)
def test_every_alert_is_tested_firing_and_silent(name: str) -> None:
    """With each of its severities; and silent again after it fired."""
    severities, silent_after = set(), False
    for path in TESTS:
        for case in yaml.safe_load(path.read_text())["tests"]:
            looks = [look for look in case.get("alert_rule_test", []) if look["alertname"] == name]
            severities |= {firing["exp_labels"]["severity"] for look in looks for firing in look["exp_alerts"]}
            fired = [number for number, look in enumerate(looks) if look["exp_alerts"]]
            silent_after |= bool(fired) and not looks[-1]["exp_alerts"]
    assert severities == {alert["labels"]["severity"] for alert in ALERTS if alert["alert"] == name}
    assert silent_after


def test_there_are_the_alerts_that_an_operator_needs() -> None:
    assert set(NAMES) == WANTED


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert['alert']}-{alert['labels']['severity']}")
def test_every_alert_says_what_how_much_and_what_to_do(alert: dict[str, Any]) -> None:
    """The remedy is a command that exists, with options that it has; the runbook is a section of the page."""
    assert alert["labels"]["severity"] in {"p0", "p1", "p2"}
    assert re.fullmatch(r"\d+[sm]", alert["for"])
    notes = alert["annotations"]
    assert notes["summary"]
    assert "{{ $value" in notes["description"]
    assert notes["runbook_url"] == f"docs/observability.md#{alert['alert'].lower()}"
    assert f"\n### {alert['alert']}\n" in PAGE
    quoted = re.findall(r"`([^`]+)`", notes["description"].replace("\n", " "))
    commands = [re.sub(r"\{\{[^}]*\}\}", "x", text).split()[1:] for text in quoted if text.startswith("standby ")]
    assert commands
    for arguments in commands:
        ran = CliRunner().invoke(app, [*arguments, "--help"])
        assert ran.exit_code == 0, (arguments, ran.output)
    help_of_create = CliRunner().invoke(app, ["endpoints", "create", "--help"], terminal_width=200).output
    assert [option for option in quoted if option.startswith("--") and option not in help_of_create] == []


def test_every_expression_names_only_what_is_exposed() -> None:
    wrong = {rule.get("record") or rule["alert"]: promql.complaints(rule["expr"]) for rule in promql.rules()}
    assert {name: found for name, found in wrong.items() if found} == {}


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        ("standby_requestz_total", ["nobody exposes standby_requestz_total"]),
        ("standby_requests", ["nobody exposes standby_requests"]),
        ('rate(standby_requests_total{model="m"}[5m])', ["standby_requests_total has no label model"]),
        (
            "sum by (rung) (standby_requests_queued)",
            ["standby_requests_queued is added up by rung, which it does not have"],
        ),
    ],
)
def test_the_check_of_expressions_finds_what_is_wrong(expr: str, found: list[str]) -> None:
    assert promql.complaints(expr) == found


def test_what_is_no_error_is_an_outcome_that_exists() -> None:
    """A code that was renamed would count as an error, and page somebody for what callers do."""
    (expr,) = (rule["expr"] for rule in promql.rules() if rule.get("record") == "endpoint:standby_errors:rate5m")
    (listed,) = re.findall(r'outcome!~"([^"]+)"', expr)
    codes = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.StandbyError)}
    assert set(listed.split("|")) <= codes | OUTCOMES
