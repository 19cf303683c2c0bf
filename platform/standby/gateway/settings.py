"""Settings of the gateway."""

from __future__ import annotations

from pydantic import Field, SecretStr

from standby.domain.settings import Settings
from standby.telemetry.logs import LogFormat, LogLevel


class GatewaySettings(Settings):
    """Read from ``STANDBY_…``; secrets are never logged."""

    gateway_name: str = Field(default="gateway", description="name in events and demand; unique per process")
    gateway_host: str = Field(default="127.0.0.1", description="address to listen at")
    gateway_port: int = Field(default=8080, ge=0, le=65535, description="port to listen at; 0: any free one")
    node_token: SecretStr = Field(description="secret that gateways show to doors, the same on all of them")
    key_pepper: SecretStr = Field(description="secret mixed into the digests of bearer keys")
    admin_key: SecretStr | None = Field(default=None, description="full bearer key that is made an administrator's at start")
    secrets_key: SecretStr | None = Field(
        default=None,
        description="32 bytes in URL-safe base64 that seal tenants' store credentials, the same on every gateway and node",
    )
    max_body_bytes: int = Field(
        default=6 * 1024 * 1024, ge=1, description="largest body of a request; the default is SageMaker's real-time limit"
    )
    queue_bytes: int = Field(default=512 * 1024 * 1024, ge=0, description="body bytes that may wait, all endpoints together")
    open_sources: bool = Field(default=False, description="let tenants register file:// sources and any endpoint_url")
    allow_pickles: bool = Field(default=False, description="let models be registered whose files can run code when loaded")
    allow_remote_code: bool = Field(default=False, description="let models be registered that bring Python code of their own")
    shutdown_grace_s: float = Field(default=30.0, ge=0, description="how long open requests may go on after SIGTERM")
    max_staleness_s: float = Field(default=90.0, gt=0, description="older local copies make /readyz fail")
    log_level: LogLevel = Field(default="info", description="debug, info, warning or error")
    log_format: LogFormat = Field(default="human", description="human, or json: one object per line")
    port_file: str | None = Field(default=None, description="where to write the port that was bound, for port 0")
