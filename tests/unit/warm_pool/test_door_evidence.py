"""What the end of an engine's connection says of the request that was on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from standby.warm_pool.door_evidence import ONE_READ, sight_of
from standby.wire.connection import Loss
from standby.wire.headers import Sight

UNIX = Path("/run/engine.sock")
TCP = ("127.0.0.1", 8000)


@pytest.mark.parametrize(
    ("address", "loss", "sent", "before", "sight"),
    [
        (UNIX, Loss.CLOSED, 10, Sight.NOTHING, Sight.ALL),
        (UNIX, Loss.CLOSED, 10 * ONE_READ, Sight.NOTHING, Sight.ALL),
        (UNIX, Loss.RESET, ONE_READ, Sight.NOTHING, Sight.NOTHING),
        (UNIX, Loss.RESET, ONE_READ + 1, Sight.NOTHING, Sight.PERHAPS),
        (UNIX, Loss.RESET, 10, Sight.ALL, Sight.ALL),
        (UNIX, Loss.RESET, ONE_READ + 1, Sight.ALL, Sight.ALL),
        (TCP, Loss.RESET, 10, Sight.NOTHING, Sight.PERHAPS),
        (TCP, Loss.CLOSED, 10, Sight.NOTHING, Sight.PERHAPS),
        (TCP, Loss.CLOSED, 10, Sight.ALL, Sight.ALL),
    ],
)
def test_what_an_engine_had_seen(address: Path | tuple[str, int], loss: Loss, sent: int, before: Sight, sight: Sight) -> None:
    assert sight_of(address, loss, sent, heard=False, before=before) is sight


@pytest.mark.parametrize("address", [UNIX, TCP])
@pytest.mark.parametrize("loss", Loss)
def test_an_engine_that_has_answered_a_byte_has_seen_it(address: Path | tuple[str, int], loss: Loss) -> None:
    assert sight_of(address, loss, 10, heard=True, before=Sight.NOTHING) is Sight.ALL
