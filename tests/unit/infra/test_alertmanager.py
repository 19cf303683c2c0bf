"""The routes: each severity has a receiver, and names in inhibition rules are alerts that exist."""

from __future__ import annotations

import re

import yaml

from support import promql

CONFIG = yaml.safe_load((promql.INFRA / "alertmanager" / "alertmanager.yml").read_text())


def test_every_severity_has_a_receiver_of_its_own() -> None:
    routes = {
        re.fullmatch(r'severity="(p\d)"', matcher)[1]: route["receiver"]  # type: ignore[index]
        for route in CONFIG["route"]["routes"]
        for matcher in route["matchers"]
    }
    severities = {alert["labels"]["severity"] for alert in promql.alerts()}
    assert routes == {severity: severity for severity in severities}
    assert {receiver["name"] for receiver in CONFIG["receivers"]} == severities


def test_graver_alerts_are_repeated_sooner() -> None:
    units = {"m": 1, "h": 60, "d": 1440}
    default = CONFIG["route"]["repeat_interval"]
    repeats = [route.get("repeat_interval", default) for route in CONFIG["route"]["routes"]]
    minutes = [int(text[:-1]) * units[text[-1]] for text in repeats]
    assert minutes == sorted(minutes)
    assert minutes[0] < minutes[-1]


def test_inhibition_names_alerts_that_exist() -> None:
    names = {alert["alert"] for alert in promql.alerts()}
    for rule in CONFIG["inhibit_rules"]:
        for matcher in [*rule["source_matchers"], *rule["target_matchers"]]:
            if (found := re.fullmatch(r'alertname[!=~]+"(.+)"', matcher)) is not None:
                assert set(found[1].split("|")) <= names


def test_addresses_are_placeholders_and_secrets_are_files() -> None:
    for receiver in CONFIG["receivers"]:
        (webhook,) = receiver["webhook_configs"]
        assert webhook["url"].startswith("http://127.0.0.1:")
        assert webhook["send_resolved"]
        assert list(webhook["http_config"]["authorization"]) == ["credentials_file"]
