"""The loop behind the control plane: what is wrong with one endpoint's records keeps no other one waiting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from standby.domain.errors import BusUnavailable, Unavailable
from standby.sagemaker.control.background import Background
from support.waiting import until

TENANT = "000000000000"


class Endpoints(Background):
    """Concludes by name: ``bad…`` have a record that cannot be read, ``away`` finds the bus away once."""

    def __init__(self) -> None:
        copies = SimpleNamespace(
            **{name: SimpleNamespace(entries={}) for name in ("endpoints", "endpoint_configs", "models", "aws")}
        )
        records = SimpleNamespace(copies=copies, tables=SimpleNamespace(endpoint_configs=None, models=None, aws=None))
        super().__init__(cast("Any", records), cast("Any", None), look_s=0.001)
        self.good: list[str] = []
        self.away = 1

    async def conclude(self, tenant: str, name: str) -> bool:
        if name.startswith("bad"):
            raise Unavailable(f"record {name} cannot be read")
        if name == "away" and self.away:
            self.away -= 1
            raise BusUnavailable("away")
        self.good.append(name)
        return True


@pytest.mark.parametrize("good", ["e", "away"])
async def test_an_endpoint_with_an_unreadable_record_keeps_no_other_one_waiting(good: str) -> None:
    background = Endpoints()
    for number in range(9):
        background.watch(TENANT, f"bad{number}")
    background.watch(TENANT, good)
    await background.start()
    try:
        await until(lambda: background.good == [good])
    finally:
        await background.stop()
