"""Every failure of the NATS library becomes one of our own tree, with a remedy."""

from __future__ import annotations

import nats.errors
import nats.js.errors
import pytest

from standby.bus.translate import is_wrong_revision, translated
from standby.domain.errors import BusUnavailable, PayloadTooLarge, StandbyError


@pytest.mark.parametrize(
    ("raised", "expected", "said"),
    [
        (nats.errors.TimeoutError(), BusUnavailable, "outcome unknown"),
        (TimeoutError(), BusUnavailable, "outcome unknown"),
        (nats.errors.NoRespondersError(), BusUnavailable, "no stream answers"),
        (nats.js.errors.NoStreamResponseError(), BusUnavailable, "no stream answers"),
        (nats.errors.ConnectionClosedError(), BusUnavailable, "connection is closed"),
        (nats.errors.OutboundBufferLimitError(), BusUnavailable, "buffer limit"),
        (
            nats.js.errors.APIError(code=503, description="insufficient resources", err_code=10023),
            BusUnavailable,
            "insufficient",
        ),
        (nats.errors.MaxPayloadError(), PayloadTooLarge, "larger"),
        (ConnectionResetError("reset by peer"), BusUnavailable, "reset by peer"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_translation(raised: Exception, expected: type[StandbyError], said: str) -> None:
    with pytest.raises(expected, match=said) as caught, translated("write leases/a", "nats://host:4222"):
        raise raised
    assert "nats://host:4222: write leases/a" in caught.value.message
    assert caught.value.remedy
    assert caught.value.__cause__ is raised


def test_our_own_mistakes_are_not_hidden() -> None:
    with pytest.raises(KeyError), translated("anything", "anywhere"):
        raise KeyError("bug")


@pytest.mark.parametrize(("code", "wrong"), [(10071, True), (10164, True), (10037, False), (None, False)])
def test_a_lost_race_is_told_by_its_code(code: int | None, wrong: bool) -> None:
    assert is_wrong_revision(nats.js.errors.APIError(code=400, err_code=code)) is wrong
