"""A short soak: engines, gateways and nodes die at random under load, and every ending is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.soak.run import soak

# Beyond the soak itself: answers that are still waited for, and until everything is at zero.
pytestmark = pytest.mark.timeout(400)

SECONDS = 25


async def test_every_ending_is_explained(tmp_path: Path) -> None:
    """Field cases B20, B26, B30: counters end at zero, nothing twice, nothing spliced, every failure told."""
    soaked = await soak(SECONDS, seed=6, folder=tmp_path)
    assert soaked.clean, (soaked.line(), soaked.troubles[:10])
    assert soaked.ok > soaked.requests / 2, soaked.line()
    assert sum(soaked.blows.values()) > SECONDS / 8, soaked.blows
