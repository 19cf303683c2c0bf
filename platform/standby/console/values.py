"""What the console's pages are made from: the platform at one moment, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from standby.domain.endpoint import Endpoint
from standby.domain.instance import Instance
from standby.domain.node import Node

# One JSON object, of the types of JSON only.
Row = dict[str, Any]
EndpointKey = tuple[str, str]

SPARK_S: Final = 60


class Percentiles(NamedTuple):
    """Milliseconds; None where nothing was measured."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Traffic(NamedTuple):
    """One endpoint's traffic: counts since the gateway began, rates of the last seconds.

    ``spark``: requests of each second of the last minute, the oldest first, or empty where it had none.
    """

    in_flight: int = 0
    queued: int = 0
    requests: int = 0
    errors: int = 0
    rps: float = 0.0
    tokens_per_s: float = 0.0
    ttft_ms: Percentiles = Percentiles()
    spark: tuple[int, ...] = ()


class News(NamedTuple):
    """What happened in one scope, newest first; rows have an ``id``."""

    activations: tuple[Row, ...] = ()
    decisions: tuple[Row, ...] = ()
    events: tuple[Row, ...] = ()


class Scope(NamedTuple):
    """Whose names a viewer sees: one tenant's, or every tenant's where that is empty; nodes only as an administrator."""

    tenant: str
    admin: bool = False


class Moment(NamedTuple):
    """When, and of which gateway; ``at`` and ``since`` in seconds since the epoch, ``away_s``: without the bus."""

    at: float
    since: float
    gateway: str
    connected: bool = True
    away_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """The whole platform as one gateway knows it. ``saved_usd`` by endpoint; ``instances`` on ``silent`` nodes are left out."""

    moment: Moment
    endpoints: tuple[Endpoint, ...] = ()
    instances: tuple[Instance, ...] = ()
    nodes: tuple[Node, ...] = ()
    traffic: Mapping[EndpointKey, Traffic] = field(default_factory=dict)
    saved_usd: Mapping[EndpointKey, float] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
