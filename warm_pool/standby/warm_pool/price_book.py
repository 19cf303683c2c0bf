"""What each step of the ladder has cost on this node, by model and options. Pure; every measurement is a new book."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Self

from pydantic import Field

from standby.domain.instance import Rung
from standby.domain.model import EngineKind
from standby.domain.prices import Footprint, ModelPrices, NodePrices, Price, Transition
from standby.domain.values import Record, Value
from standby.warm_pool.price_key import PriceKey

WEIGHT_OF_NEWEST: Final = 0.3
RECENT: Final = 32
# Every new version of a model has a new digest: only the models measured last are kept.
MOST_MODELS: Final = 200
UNMEASURED_GAIN_S: Final = 5.0

Seconds = float
Prices = Mapping[Transition, "Series"]


class Series(Value):
    """The measurements of one step, in seconds: an exponential average, so that a slow disk of yesterday is forgotten."""

    seconds: Seconds = Field(ge=0, allow_inf_nan=False)
    recent: tuple[Seconds, ...] = Field(min_length=1, max_length=RECENT, description="newest last")
    samples: int = Field(ge=1)
    at: float

    @classmethod
    def first(cls, seconds: Seconds, at: float) -> Self:
        """Return the series of one measurement."""
        return cls(seconds=seconds, recent=(seconds,), samples=1, at=at)

    def observe(self, seconds: Seconds, at: float) -> Self:
        """Return the series after one more measurement."""
        average = self.seconds + WEIGHT_OF_NEWEST * (seconds - self.seconds)
        recent = (*self.recent, seconds)[-RECENT:]
        return type(self)(seconds=average, recent=recent, samples=self.samples + 1, at=at)

    def price(self) -> Price:
        """Return the price that follows; p95 is the nearest rank among the last measurements."""
        rank = math.ceil(0.95 * len(self.recent)) - 1
        return Price(
            seconds=self.seconds, p95=sorted(self.recent)[rank], samples=self.samples, last=self.recent[-1], at=self.at
        )


class Priced(Value):
    """The steps of one model with given options."""

    engine: EngineKind
    digest: str
    steps: Prices = Field(default_factory=dict)

    @property
    def at(self) -> float:
        """When the newest of them was measured."""
        return max((series.at for series in self.steps.values()), default=0.0)

    def seconds(self, step: Transition) -> float | None:
        """Return the average of a step; None: not measured yet."""
        series = self.steps.get(step)
        return None if series is None else series.seconds

    @property
    def to_ready(self) -> dict[Rung, float]:
        """Seconds from a rung until ready, of the rungs that were measured; cold is the fetch and the start together."""
        fetch, start = self.seconds(Transition.FETCH), self.seconds(Transition.START)
        found = {
            Rung.COLD: None if fetch is None or start is None else fetch + start,
            Rung.STAGED: start,
            Rung.ZYGOTE: self.seconds(Transition.FORK),
            Rung.ASLEEP: self.seconds(Transition.WAKE),
        }
        return {rung: seconds for rung, seconds in found.items() if seconds is not None}


class PriceBook(Record):
    """Models by ``PriceKey.text``, the one measured last at the end; ``hatch`` is of zygotes, from nothing until ready."""

    models: Mapping[str, Priced] = Field(default_factory=dict)
    hatch: Mapping[EngineKind, Series] = Field(default_factory=dict)

    def observe(self, key: PriceKey, step: Transition, seconds: float, at: float) -> Self:
        """Return the book after one more measurement; ``at`` in seconds since the epoch."""
        known = self.models.get(key.text, Priced(engine=key.engine, digest=key.digest))
        steps = {**known.steps, step: _after(known.steps.get(step), seconds, at)}
        others = [(name, priced) for name, priced in self.models.items() if name != key.text][-(MOST_MODELS - 1) :]
        newest = known.model_copy(update={"steps": steps})
        return self.model_copy(update={"models": {**dict(others), key.text: newest}})

    def observe_hatch(self, engine: EngineKind, seconds: float, at: float) -> Self:
        """Return the book after a zygote has hatched."""
        return self.model_copy(update={"hatch": {**self.hatch, engine: _after(self.hatch.get(engine), seconds, at)}})

    @property
    def table(self) -> dict[str, dict[Rung, float]]:
        """Model digest → rung → seconds until ready, as placement reads them; of several options, those measured last."""
        found: dict[str, dict[Rung, float]] = {}
        for priced in sorted(self.models.values(), key=lambda priced: priced.at):
            found.setdefault(priced.digest, {}).update(priced.to_ready)
        return {digest: rungs for digest, rungs in found.items() if rungs}

    def seconds(self, digest: str, rung: Rung) -> float | None:
        """Return the seconds from ``rung`` to ready; None: not measured yet."""
        return self.table.get(digest, {}).get(rung)

    def gain_of_sleep(self, digest: str) -> float:
        """Return the seconds that a wake saves over the next best climb; a guess of 5 s until both were measured."""
        rungs = self.table.get(digest, {})
        lower = [rungs[rung] for rung in (Rung.ZYGOTE, Rung.STAGED) if rung in rungs]
        if Rung.ASLEEP not in rungs or not lower:
            return UNMEASURED_GAIN_S
        return max(0.0, min(lower) - rungs[Rung.ASLEEP])

    def announced(self, node: str, footprints: Mapping[str, Footprint], now: float) -> NodePrices:
        """Return what the node says of its prices; ``footprints`` by ``PriceKey.text``."""
        models = {
            name: ModelPrices(
                engine=priced.engine,
                digest=priced.digest,
                transitions={step.value: series.price() for step, series in priced.steps.items()},
                footprint=footprints.get(name, Footprint()),
            )
            for name, priced in self.models.items()
        }
        hatch = {engine: series.price() for engine, series in self.hatch.items()}
        return NodePrices(node=node, models=models, hatch=hatch, updated_at=now)


def _after(series: Series | None, seconds: float, at: float) -> Series:
    # A clock that was set back between two looks must not make a price that no reader accepts.
    seconds = max(0.0, seconds)
    return Series.first(seconds, at) if series is None else series.observe(seconds, at)
