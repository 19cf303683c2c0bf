"""Demand: what a gateway says of an endpoint's traffic; sent at once on an arrival at zero, and with each beat."""

from __future__ import annotations

from pydantic import Field

from standby.domain.values import Record


class Demand(Record):
    """One gateway's view of one variant of an endpoint. Ages, not times of day, so that clocks need not agree."""

    gateway: str
    boot_id: str
    sequence: int = Field(ge=0, description="grows with every message of this gateway")
    tenant: str
    endpoint: str
    variant: str = Field(default="", description="the variant that is asked for; empty: the endpoint as a whole")
    backend: str = Field(default="", description="the variant's backend that is meant; empty: it has none")
    in_flight: int = Field(ge=0)
    queued: int = Field(ge=0)
    queued_bytes: int = Field(default=0, ge=0)
    idle: float = Field(ge=0, description="seconds since the last arrival or the last end of a request")
    oldest_arrival_at: float | None = Field(default=None, description="of a waiting request, by the gateway's clock")
    arrivals: int | None = Field(
        default=None, ge=0, description="requests that went to an instance since the desk was opened; None: not told"
    )


class GatewayBeat(Record):
    """Every variant of every endpoint that a gateway has seen traffic for, sent every second: the lease on its counts."""

    gateway: str
    boot_id: str
    sequence: int = Field(ge=0)
    demands: tuple[Demand, ...] = ()
