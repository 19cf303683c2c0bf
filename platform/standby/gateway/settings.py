"""Settings of the gateway."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from standby.domain.settings import Settings
from standby.gateway.request_ends import RequestLog
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
        description="32 bytes in URL-safe base64 that seal tenants' access keys and store credentials, the same on every "
        "gateway and node; older keys may follow after a space, and still open what they sealed",
    )
    secrets_key_file: Path | None = Field(default=None, description="file that holds what STANDBY_SECRETS_KEY would")
    secrets_key_command: str | None = Field(
        default=None, description="command line, run without a shell, that prints what STANDBY_SECRETS_KEY would"
    )
    key_trust_s: float = Field(
        default=300.0,
        gt=0,
        description="a gateway cut off from the bus for longer lets nobody in, since it cannot hear of revoked keys",
    )
    region: str = Field(
        default="us-east-1", pattern=r"^[a-z0-9-]{1,32}$", description="AWS region that stands in ARNs and in `standby aws`"
    )
    aws_strict: bool = Field(
        default=False, description="answer AWS clients as AWS does where standby allows more, e.g. refuse what serverless lacks"
    )
    max_body_bytes: int = Field(
        default=6 * 1024 * 1024, ge=1, description="largest body of a request; the default is SageMaker's real-time limit"
    )
    serverless_body_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1, description="largest body and answer of a serverless endpoint's invocation"
    )
    invocation_limit_s: float = Field(
        default=60.0, gt=0, description="how long an engine may take for an invocation that does not stream"
    )
    stream_limit_s: float = Field(default=480.0, gt=0, description="how long an engine may take for one that streams")
    stream_heartbeat_s: float = Field(
        default=10.0,
        ge=0,
        description="silence after which a stream for OpenAI's clients gets a comment, and before its first token its head, "
        "so that nothing on the way cuts it; errors then ride in the stream; 0: never",
    )
    retry_linger_s: float = Field(
        default=5.0, ge=0, description="how long an invocation goes on whose AWS SDK has left and may ask again"
    )
    retry_kept_s: float = Field(
        default=20.0, gt=0, description="how long the answer of such an invocation is kept for the SDK's retry"
    )
    retry_kept_bytes: int = Field(default=32 * 1024 * 1024, ge=0, description="bytes of such answers, all together")
    async_body_bytes: int = Field(
        default=16 * 1024 * 1024, ge=1, description="largest input and answer of an asynchronous invocation"
    )
    async_queue_bytes: int = Field(
        default=1024 * 1024 * 1024,
        ge=1024 * 1024,
        description="bytes of asynchronous invocations that may wait in the queue, made so when the queue is",
    )
    async_locations: str = Field(
        default="",
        description="prefixes, separated by spaces, below which asynchronous invocations may read and write with the "
        "platform's own keys; {tenant} stands for the caller's account, e.g. s3://results/{tenant}/; empty: everywhere "
        "but where other tenants' results go",
    )
    shadow_by_tenants: bool = Field(
        default=False,
        description="let tenants' keys that may manage endpoints mark requests as tests (x-standby-shadow), which no metering "
        "counts; administrators' keys always may",
    )
    request_traces: int = Field(
        default=2000, ge=0, le=1_000_000, description="past requests that `standby requests` can show; 0: none"
    )
    queue_bytes: int = Field(default=512 * 1024 * 1024, ge=0, description="body bytes that may wait, all endpoints together")
    open_sources: bool = Field(default=False, description="let tenants register file:// sources and any endpoint_url")
    allow_pickles: bool = Field(default=False, description="let models be registered whose files can run code when loaded")
    allow_remote_code: bool = Field(default=False, description="let models be registered that bring Python code of their own")
    shutdown_grace_s: float = Field(default=30.0, ge=0, description="how long open requests may go on after SIGTERM")
    drain_notice_s: float = Field(
        default=0.0,
        ge=0,
        description="how long after SIGTERM the gateway still accepts, with /readyz failing, so that load balancers see it",
    )
    max_staleness_s: float = Field(default=90.0, gt=0, description="older local copies make /readyz fail")
    request_log: RequestLog = Field(
        default=RequestLog.ERRORS,
        description="which requests get a line in the log when they have ended: none, errors (not the caller's own) or all; "
        "ids, outcome and times, never a text",
    )
    log_level: LogLevel = Field(default="info", description="debug, info, warning or error")
    log_format: LogFormat = Field(default="human", description="human, or json: one object per line")
    port_file: str | None = Field(default=None, description="where to write the port that was bound, for port 0")
