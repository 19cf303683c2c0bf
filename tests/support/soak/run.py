"""One soak: load, blows, and what must be true at its end."""

from __future__ import annotations

import asyncio
import random
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from support.deployment import AS_SHIPPED, Deployment, deployment
from support.fake_engine_spec import Option
from support.more_nodes import more_nodes
from support.soak.callers import Caller, Tally
from support.soak.chaos import Chaos

CALLERS: Final = 24
GRACE_S: Final = 4
SETTLE_S: Final = 60.0
_ENDPOINTS: Final[dict[str, dict[str, Option]]] = {
    "steady": {"token_delay_ms": 8},
    "slow": {"token_delay_ms": 40, "spawn_child": True},
    "brief": {},
}
_POLICY: Final[dict[str, Any]] = {
    "slots": 4,
    "max_instances": 3,
    "scale_in_after": "3s",
    "keep_ready": "1s",
    "keep_asleep": "2s",
    "drain_limit": "5s",
}


@dataclass
class Soaked:
    """The figures of a soak; ``troubles`` tells of each thing that nothing explains, ``blows`` what was done."""

    requests: int = 0
    ok: int = 0
    explicit_errors: int = 0
    cut_by_kill: int = 0
    spliced: int = 0
    double: int = 0
    unexplained: int = 0
    in_flight_end: int = 0
    seconds: float = 0.0
    seed: int = 0
    blows: dict[str, int] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether everything is explained, and nothing is left."""
        return not (self.spliced or self.double or self.unexplained or self.in_flight_end or self.troubles)

    def line(self) -> dict[str, Any]:
        """The figures as they are printed."""
        values = asdict(self)
        return {**values, "troubles": len(self.troubles)}


async def soak(seconds: float, seed: int, folder: Path | None = None) -> Soaked:
    """Run two gateways, two nodes with fake engines, a controller and a nats-server under load and blows for ``seconds``.

    At the end no process of it may be left: that raises AssertionError.
    """
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        environment = {**AS_SHIPPED, "STANDBY_SHUTDOWN_GRACE_S": str(GRACE_S), "STANDBY_HEARTBEAT_S": "0.3"}
        async with deployment(folder or Path(temporary), gateways=2, environment=environment) as there:
            return await _soaked(there, seconds, seed)


async def _soaked(there: Deployment, seconds: float, seed: int) -> Soaked:
    tally = Tally()
    async with more_nodes(there, "n2") as more:
        for name, knobs in _ENDPOINTS.items():
            await there.endpoint(name, knobs=knobs, memory_mb=128, **_POLICY)
        chaos = Chaos(there, {"n1": there.stack.children["node"], **more}, random.Random(seed))
        callers = [
            Caller(there, number, list(_ENDPOINTS), chaos.blows, tally, random.Random(f"{seed}/{number}"))
            for number in range(CALLERS)
        ]
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, over.set)
        await asyncio.gather(chaos.run(over), *(caller.run(over) for caller in callers))
        in_flight = await _settled(there, tally)
    counts = tally.counts
    return Soaked(
        requests=counts["requests"],
        ok=counts["ok"],
        explicit_errors=counts["explicit_errors"],
        cut_by_kill=counts["cut_by_kill"],
        spliced=counts["spliced"],
        double=counts["double"],
        unexplained=counts["unexplained"],
        in_flight_end=in_flight,
        seconds=seconds,
        seed=seed,
        blows=dict(chaos.blows.counts),
        troubles=tally.troubles,
    )


async def _settled(there: Deployment, tally: Tally) -> int:
    """Wait until nothing is in flight anywhere and every endpoint is at zero; return what still is in flight."""
    left = 0

    async def quiet() -> bool:
        nonlocal left
        with suppress(httpx.TransportError):
            left = await _in_flight(there)
            return left == 0
        return False

    async def at_zero() -> bool:
        shown = [await there.show(name) for name in _ENDPOINTS]
        return not any(one["state"] in {"ready", "draining", "starting"} for item in shown for one in item["instances"])

    for reached, why in ((quiet, "nothing is in flight"), (at_zero, "every endpoint is at zero")):
        try:
            await there.until(reached, why, SETTLE_S)
        except AssertionError as error:
            tally.troubles.append(f"{error}: {[await there.show(name) for name in _ENDPOINTS]}")
    return left


async def _in_flight(there: Deployment) -> int:
    """Requests in flight or waiting, as each gateway counts them, and in flight as each door does."""
    total = 0.0
    for name in _ENDPOINTS:
        for metric in ("standby_requests_in_flight", "standby_requests_queued"):
            total += await there.total(metric, name)
        total += sum(one["in_flight"] for one in (await there.show(name))["instances"])
    return int(total)
