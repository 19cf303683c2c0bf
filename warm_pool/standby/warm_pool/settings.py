"""Settings of the node agent."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
from pydantic import Field, SecretStr, field_validator

from standby.domain.errors import InvalidInput
from standby.domain.names import NAME_PATTERN
from standby.domain.settings import Settings
from standby.runtime.isolation_policy import DeviceSharing
from standby.telemetry.logs import LogFormat, LogLevel
from standby.warm_pool.engine_cache_shelf import check_setting


def _default_name() -> str:
    cleaned = "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname()).strip("-")
    return cleaned[:63].strip("-") or "node"


class NodeSettings(Settings):
    """Read from ``STANDBY_…``; sizes in bytes, times in seconds."""

    node_name: str = Field(
        default_factory=_default_name, pattern=NAME_PATTERN, description="name of the node; unset: the host's name"
    )
    node_token: SecretStr = Field(description="secret that gateways show to doors, the same on all of them")
    secrets_key: SecretStr | None = Field(
        default=None,
        description="32 bytes in URL-safe base64 that seal tenants' access keys and store credentials, the same on every "
        "gateway and node; older keys may follow after a space, and still open what they sealed",
    )
    secrets_key_file: Path | None = Field(default=None, description="file that holds what STANDBY_SECRETS_KEY would")
    secrets_key_command: str | None = Field(
        default=None, description="command line, run without a shell, that prints what STANDBY_SECRETS_KEY would"
    )
    state_dir: Path = Field(description="folder of artifact cache, engine sockets and logs; survives restarts")
    door_host: str = Field(default="127.0.0.1", description="address that gateways can reach; plain HTTP, keep it private")
    door_port: int = Field(default=0, ge=0, le=65535, description="port of the door; 0: any free one")
    memory_bytes: int = Field(
        default_factory=lambda: int(psutil.virtual_memory().total * 0.8),
        ge=1,
        description="host memory for engines; unset: 80 % of the machine's",
    )
    cache_bytes: int = Field(default=100 * 1024**3, ge=1, description="cap of the artifact cache")
    fetch_bytes_per_s: int | None = Field(default=None, ge=1, description="cap of all downloads together; unset: no cap")
    warm_bytes_per_s: int | None = Field(default=None, ge=1, description="cap of reading models ahead; unset: no cap")
    warm_reserve_bytes: int = Field(
        default_factory=lambda: int(psutil.virtual_memory().total * 0.05),
        ge=0,
        description="available memory that reading models ahead leaves; unset: 5 % of the machine's",
    )
    heartbeat_s: float = Field(default=2.0, gt=0, description="between two writings of the node's own record")
    stop_grace_s: float = Field(default=10.0, ge=0, description="from TERM to KILL of an engine's process group")
    probe_limit_s: float = Field(default=30.0, gt=0, description="for the few generated tokens that prove readiness")
    zygote_keep_s: float = Field(
        default=300.0, ge=0, description="from the last instance's leaving to the end of its engine's pre-imported process"
    )
    zygote_max_age_s: float = Field(default=86_400.0, gt=0, description="at which a zygote is replaced")
    zygote_max_growth: float = Field(
        default=1.5, gt=1, description="times a zygote's memory right after its imports, at which it is replaced"
    )
    engine_stall_s: float = Field(
        default=60.0, gt=0, description="work without progress, after which an engine is probed, and replaced if that fails"
    )
    engine_cores: int = Field(default=0, ge=0, description="processors that each CPU engine has for itself; 0: all share all")
    engine_cgroups: bool = Field(default=True, description="a cgroup for each engine, where the kernel lets us make one")
    device_sharing: DeviceSharing = Field(
        default=DeviceSharing.EXCLUSIVE_TENANT,
        description="exclusive-tenant, or shared: may two tenants use one GPU",
    )
    engine_cache_uri: str | None = Field(
        default=None,
        description="where compiled kernels are kept for all nodes: s3://bucket/prefix/, file:///folder/, or beside (the "
        "model's own artifacts); unset: on each node alone",
    )
    engine_cache_bytes: int = Field(default=2 * 1024**3, ge=1, description="cap of compiled kernels on this node")
    log_level: LogLevel = Field(default="info", description="debug, info, warning or error")
    log_format: LogFormat = Field(default="human", description="human, or json: one object per line")
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="loopback port for /metrics; unset: off, 0: any free one"
    )
    metrics_port_file: str | None = Field(default=None, description="where to write the metrics' port that was bound")

    @field_validator("engine_cache_uri")
    @classmethod
    def _a_place(cls, value: str | None) -> str | None:
        try:
            return None if value is None else check_setting(value)
        except InvalidInput as error:
            raise ValueError(str(error)) from error

    @field_validator("state_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()
