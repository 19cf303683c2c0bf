"""What an operator may set for the controller."""

from __future__ import annotations

import os
import socket

from pydantic import Field

from standby.domain.settings import Settings
from standby.telemetry.logs import LogFormat, LogLevel


def _default_name() -> str:
    return f"{socket.gethostname().partition('.')[0]}-{os.getpid()}"


class ControllerSettings(Settings):
    """Environment variables ``STANDBY_CONTROLLER_*``; times in seconds."""

    controller_name: str = Field(
        default_factory=_default_name, min_length=1, description="name in the lease and in events; unset: host and process id"
    )
    controller_lease_ttl: float = Field(
        default=5.0, ge=0.5, le=60.0, description="silence after which another controller takes over"
    )
    log_level: LogLevel = Field(default="info", description="debug, info, warning or error")
    log_format: LogFormat = Field(default="human", description="human, or json: one object per line")
