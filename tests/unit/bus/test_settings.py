"""Bus settings: strict, and never showing a password."""

from __future__ import annotations

import pytest

from standby.bus.settings import BusSettings
from standby.domain.errors import ConfigurationError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("nats://user:s3cret@host:4222", "nats://host:4222"),
        ("user:s3cret@host:4222", "nats://host:4222"),
        ("nats://a:s3cret@one:1, nats://b:s3cret@two:2", "nats://one:1,nats://two:2"),
    ],
)
def test_shown_url_has_no_credentials(url: str, shown: str) -> None:
    assert BusSettings(nats_url=url).shown_url == shown


def test_several_servers_are_several() -> None:
    assert BusSettings(nats_url="nats://one:1, nats://two:2,").servers == ["nats://one:1", "nats://two:2"]


def test_password_is_not_in_the_representation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDBY_NATS_PASSWORD", "s3cret")
    settings = BusSettings.load()
    assert settings.nats_password is not None
    assert settings.nats_password.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(settings)


def test_wrong_values_are_named_by_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDBY_NATS_REPLICAS", "0")
    monkeypatch.setenv("STANDBY_NATS_PING_INTERVAL", "soon")
    with pytest.raises(ConfigurationError) as caught:
        BusSettings.load()
    assert "STANDBY_NATS_REPLICAS" in caught.value.message
    assert "STANDBY_NATS_PING_INTERVAL" in caught.value.message
