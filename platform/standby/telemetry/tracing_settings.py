"""Settings of traces, the same for gateways and nodes."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from standby.domain.settings import Settings

_PATH: Final = "/v1/traces"


class TracingSettings(Settings):
    """Without an endpoint nothing is traced, and a caller's ``traceparent`` passes through as it came."""

    otlp_endpoint: str | None = Field(
        default=None,
        description="where spans go by OTLP over HTTP, e.g. http://collector:4318 (/v1/traces is added); unset: nowhere. Needs "
        "the extra `otlp`",
    )
    otlp_headers: SecretStr | None = Field(
        default=None, description="headers for that place, name=value, separated by commas; engines never get them"
    )
    trace_ratio: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="share of requests that are traced, by trace id; errors and cold starts always are",
    )
    trace_callers: bool = Field(
        default=True, description="whether a caller's own decision, the flag in his traceparent, counts instead of the ratio"
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http:// or https:// URL")
        return value

    @field_validator("otlp_headers")
    @classmethod
    def _are_headers(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            headers_of(value.get_secret_value())
        return value

    @property
    def otlp_url(self) -> str | None:
        """The whole URL of the collector's route for traces."""
        return None if self.otlp_endpoint is None else traces_url(self.otlp_endpoint)

    @property
    def engines_url(self) -> str | None:
        """The same for engines; None where it takes a secret: no engine is given one. A collector on the node needs none."""
        return self.otlp_url if self.otlp_headers is None else None


def traces_url(endpoint: str) -> str:
    """Return the URL for traces at an endpoint, which may name it already."""
    base = endpoint.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH


def headers_of(text: str) -> dict[str, str]:
    """Return headers by name. Raises ValueError where a pair has no name; no value is repeated."""
    found: dict[str, str] = {}
    for number, pair in enumerate(filter(None, (part.strip() for part in text.split(","))), start=1):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"pair {number} is not name=value")
        found[name.strip().lower()] = value.strip()
    return found
