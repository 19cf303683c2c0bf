"""What an operator may set for the controller."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import Any

from pydantic import Field

from standby.controller.economics import HIGHEST_PRICE, PriceVector, preset
from standby.controller.economy import DEFAULT_BUDGET, Economy
from standby.controller.prewarm import Budget
from standby.domain.endpoint import PricePreset
from standby.domain.settings import Settings
from standby.telemetry.logs import LogFormat, LogLevel


def _default_name() -> str:
    return f"{socket.gethostname().partition('.')[0]}-{os.getpid()}"


def _price(what: str) -> Any:
    text = f"price of {what}; unset: the preset's"
    return Field(default=None, ge=0, le=HIGHEST_PRICE, allow_inf_nan=False, description=text)


class ControllerSettings(Settings):
    """Environment variables ``STANDBY_CONTROLLER_*`` and ``STANDBY_PRICE_*``; times in seconds."""

    controller_name: str = Field(
        default_factory=_default_name, min_length=1, description="name in the lease and in events; unset: host and process id"
    )
    controller_lease_ttl: float = Field(
        default=5.0, ge=0.5, le=60.0, description="silence after which another controller takes over"
    )
    price_preset: PricePreset = Field(
        default=PricePreset.BALANCED,
        description="what a second's wait weighs against GB·s of memory: frugal (25), balanced (100) or snappy (400)",
    )
    price_device: float | None = _price(
        "one GB of device memory for a second; without GPUs the processors' memory is the device"
    )
    price_host: float | None = _price("one GB of host memory beside a device for a second")
    price_disk: float | None = _price("one GB of disk for a second")
    price_wait: float | None = _price("a second that a caller waits")
    prewarm_share: float = Field(
        default=DEFAULT_BUDGET.share,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="of a node's free device memory, for climbs ahead of demand; 0: none",
    )
    controller_metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="loopback port for the controller's /metrics; unset: off, 0: any free one"
    )
    metrics_port_file: str | None = Field(default=None, description="where to write the metrics' port that was bound")
    log_level: LogLevel = Field(default="info", description="debug, info, warning or error")
    log_format: LogFormat = Field(default="human", description="human, or json: one object per line")

    @property
    def prices(self) -> PriceVector:
        """The preset's weights with whatever was set beside it."""
        prices = preset(self.price_preset.value)
        if self.price_wait is not None:
            prices = prices.with_wait(self.price_wait)
        given = {"device": self.price_device, "host": self.price_host, "disk": self.price_disk}
        return replace(prices, **{name: value for name, value in given.items() if value is not None})

    @property
    def economy(self) -> Economy:
        """What the controller decides by, before anything was measured."""
        return Economy(preset=self.price_preset, prices=self.prices, budget=Budget(share=self.prewarm_share))
