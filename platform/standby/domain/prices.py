"""Prices: what each step of the ladder costs on a node, measured."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from standby.domain.model import EngineKind
from standby.domain.values import Record, Value


class Transition(StrEnum):
    """The steps of the ladder that have a price. Climbs end with the first generated token."""

    FETCH = "cold→staged"
    START = "staged→ready"
    FORK = "zygote→ready"
    WAKE = "asleep→ready"
    SLEEP = "ready→asleep"
    PUSH_OUT = "asleep→staged"
    STOP = "ready→staged"


class Price(Value):
    """One transition of one model on one node. ``seconds`` is an exponential average, ``p95`` over the last samples."""

    seconds: float = Field(ge=0)
    p95: float = Field(ge=0)
    samples: int = Field(ge=1)
    last: float = Field(ge=0, description="the newest measured duration in seconds")
    at: float = Field(description="when it was last measured, seconds since the epoch")


class Footprint(Value):
    """Measured memory of one instance of a model with given options, in bytes. None: not measured yet."""

    awake: int | None = Field(default=None, description="host memory of the whole process tree (PSS where the kernel says it)")
    asleep: int | None = Field(default=None, description="the same while asleep: the residue")
    peak: int | None = Field(default=None, description="highest while it started")
    device_awake: int | None = None
    device_asleep: int | None = None


class ModelPrices(Value):
    """Everything measured of one model with given engine options."""

    engine: EngineKind
    digest: str = Field(description="of the model's manifest")
    transitions: Mapping[str, Price] = Field(default_factory=dict, description="e.g. staged→ready, ready→asleep")
    footprint: Footprint = Footprint()


class NodePrices(Record):
    """What a node has measured; only that node writes it. Key of ``models``: model digest and options digest."""

    node: str
    models: Mapping[str, ModelPrices] = Field(default_factory=dict)
    hatch: Mapping[EngineKind, Price] = Field(default_factory=dict, description="of a zygote, from nothing")
    updated_at: float
