"""Where the bus is and how patiently it is spoken to."""

from __future__ import annotations

from functools import cached_property
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from standby.domain.settings import Settings


class BusSettings(Settings):
    """Environment variables ``STANDBY_NATS_*``; every time is in seconds."""

    nats_url: str = Field(default="nats://127.0.0.1:4222", description="one server, or several joined by commas")
    nats_user: str | None = Field(default=None, description="user at the bus")
    nats_password: SecretStr | None = Field(default=None, description="that user's password")
    nats_replicas: int = Field(default=1, ge=1, le=5, description="copies of every table and stream")
    # The library's own default of 120 s would sit on a dead connection for minutes.
    nats_ping_interval: float = Field(default=2.0, gt=0, description="between two pings of the server")
    nats_reconnect_wait: float = Field(default=0.25, gt=0, description="between two attempts to connect again")
    nats_connect_timeout: float = Field(default=5.0, gt=0, description="until the first connection is given up")
    nats_request_timeout: float = Field(default=5.0, gt=0, description="for one answer from the bus")
    nats_relist_interval: float = Field(default=30.0, gt=0, description="between full listings of a mirrored table")

    @property
    def servers(self) -> list[str]:
        """Each server's URL."""
        return [part.strip() for part in self.nats_url.split(",") if part.strip()]

    @cached_property
    def shown_url(self) -> str:
        """The servers without user and password, fit for messages and logs."""
        return ",".join(_without_credentials(url) for url in self.servers)


def _without_credentials(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
