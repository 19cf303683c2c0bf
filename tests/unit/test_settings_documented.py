"""Every variable that a process reads stands in docs/settings.md with its meaning, and wrong values are named."""

from __future__ import annotations

import re

import pytest

from standby.domain.errors import ConfigurationError
from standby.gateway.settings import GatewaySettings
from support import reference

PAGE = (reference.ROOT / "docs" / "settings.md").read_text()


def test_every_settings_class_is_in_the_table() -> None:
    assert reference.settings_classes() == {cls.__name__ for cls in reference.READERS}


@pytest.mark.parametrize(("name", "described"), [(name, info.description) for name, info, _ in reference.fields()])
def test_every_setting_says_what_it_means(name: str, described: str | None) -> None:
    assert described
    assert f"| `{reference.variable(name)}` |" in PAGE


def test_the_page_is_what_the_classes_say() -> None:
    """``make reference`` writes it again."""
    assert reference.settings_page() == PAGE


def test_no_variable_is_read_that_the_page_does_not_name() -> None:
    """Variables without a settings class too: the command line's, and those between a node and its engines."""
    named = reference.variables_in_source()
    assert {"STANDBY_URL", "STANDBY_ENGINE_PARENT", "STANDBY_NATS_URL"} <= named
    assert named - set(re.findall(r"`(STANDBY_\w+)`", PAGE)) == set()


def test_variables_outside_the_classes_are_still_read() -> None:
    assert {*reference.COMMAND_LINE, *reference.BETWEEN_PROCESSES} <= reference.variables_in_source()


@pytest.mark.parametrize("level", ["loud", " ", "infos"])
def test_an_unknown_log_level_is_named(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("STANDBY_LOG_LEVEL", level)
    with pytest.raises(ConfigurationError, match="STANDBY_LOG_LEVEL"):
        GatewaySettings.load(node_token="t", key_pepper="p")


@pytest.mark.parametrize("level", ["info", "INFO", "Warning"])
def test_log_levels_are_taken_in_any_case(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("STANDBY_LOG_LEVEL", level)
    assert GatewaySettings.load(node_token="t", key_pepper="p").log_level == level
