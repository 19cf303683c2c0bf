"""Durations, names and settings: what people type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.domain.durations import FOREVER, format_duration, parse_duration
from standby.domain.endpoint import ScalePolicy
from standby.domain.errors import ConfigurationError, InvalidInput
from standby.domain.names import check_name, check_served_name, check_tenant
from standby.domain.settings import Settings

pytestmark = pytest.mark.decision


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("5m", 300), ("1h30m", 5400), ("7d", 604800), ("12", 12), (1.5, 1.5), ("forever", FOREVER)],
)
def test_durations_are_read(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5 minutes", "-1s", "1s2", "m", "1e3", -1])
def test_nonsense_is_refused(text: str | float) -> None:
    with pytest.raises(InvalidInput):
        parse_duration(text)


@given(st.floats(min_value=0, max_value=1e9))
def test_every_duration_is_written(seconds: float) -> None:
    assert format_duration(seconds)


def test_policies_survive_storage() -> None:
    policy = ScalePolicy.model_validate({"keep_ready": "2s", "keep_staged": "forever"})
    assert ScalePolicy.model_validate_json(policy.model_dump_json()) == policy
    assert policy.keep_staged == FOREVER


def test_policy_bounds_must_agree() -> None:
    with pytest.raises(ValueError, match="min_ready 2 is above max_instances 1"):
        ScalePolicy(min_ready=2)


@pytest.mark.parametrize("name", ["a", "smol-135m", "A9", "x" * 63])
def test_legal_names(name: str) -> None:
    assert check_name("model", name) == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "a.b", "a/b", "x" * 64, "ä", "a b"])
def test_illegal_names_are_explained(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not legal"):
        check_name("model", name)


def test_served_names_may_hold_slashes() -> None:
    assert check_served_name("HuggingFaceTB/SmolLM2-135M") == "HuggingFaceTB/SmolLM2-135M"
    for bad in ("/a", "a//b", "a/", "", "a b", "x" * 129):
        with pytest.raises(InvalidInput):
            check_served_name(bad)


def test_tenants_are_twelve_digits() -> None:
    assert check_tenant("123456789012") == "123456789012"
    with pytest.raises(InvalidInput):
        check_tenant("12345678901")


class _Settings(Settings):
    some_port: int = 1
    some_name: str


def test_settings_name_the_variable_the_value_and_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDBY_SOME_PORT", "many")
    with pytest.raises(ConfigurationError) as error:
        _Settings.load()
    assert "STANDBY_SOME_PORT" in str(error.value)
    assert "'many'" in str(error.value)
    assert "STANDBY_SOME_NAME" in str(error.value)
