"""A gateway whose port is taken says what its caller can change."""

from __future__ import annotations

import socket

import pytest

from standby.domain.errors import ConfigurationError
from standby.gateway import main


def test_the_option_is_named_before_the_setting() -> None:
    """Under ``standby up`` the setting alone would be no advice: the command gives its gateways their ports."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match="cannot listen") as raised:
            main._listen("127.0.0.1", taken.getsockname()[1])

    remedy = raised.value.remedy or ""
    assert 0 < remedy.index("--port") < remedy.index("STANDBY_GATEWAY_PORT")
