"""What is sent: bodies in the forms that endpoints take, and the heads of requests."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import pydantic_core

from standby.bench.values import Planned
from standby.domain.errors import InvalidInput
from standby.telemetry.redact import mask


class Form(StrEnum):
    """How a body says what is asked."""

    CHAT = "chat"  # OpenAI's chat completions
    COMPLETIONS = "completions"  # OpenAI's completions
    INPUTS = "inputs"  # {"inputs": …, "parameters": …}, as model containers on SageMaker take it


@dataclass(frozen=True, slots=True)
class Asking:
    """How bodies are made. ``extra``: members of the body beside ours, which win; ``model`` empty: the body names none."""

    form: Form = Form.CHAT
    model: str = ""
    stream: bool = True
    usage: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, planned: Planned) -> bytes:
        """Return the body of one request."""
        return pydantic_core.to_json({**self._content(planned), **self.extra})

    def _content(self, planned: Planned) -> dict[str, Any]:
        if self.form is Form.INPUTS:
            content: dict[str, Any] = {"inputs": planned.prompt, "parameters": {"max_new_tokens": planned.max_tokens}}
        else:
            content = {"max_tokens": planned.max_tokens, "temperature": 0}
            if self.model:
                content["model"] = self.model
            if self.form is Form.CHAT:
                content["messages"] = [{"role": "user", "content": planned.prompt}]
            else:
                content["prompt"] = planned.prompt
            if self.stream and self.usage:
                # Without it the tokens of a stream can only be estimated from its events.
                content["stream_options"] = {"include_usage": True}
        if self.stream:
            content["stream"] = True
        return content


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server listens: an ``http://`` or ``https://`` URL, taken apart."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """The URL without its path."""
        return f"{self.scheme}://{self.authority}"

    def tls(self) -> ssl.SSLContext | None:
        """Return the system's trust for ``https``."""
        return ssl.create_default_context() if self.scheme == "https" else None


def place_of(url: str) -> Place:
    """Return the parts of a URL; its path comes without a slash at its end. Raises InvalidInput."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(f"this is no URL: {mask(str(error))}", remedy="e.g. http://127.0.0.1:8000/v1") from error
    # First: where there may be a password or a key, the URL is not to be repeated, neither here nor in a report.
    if "@" in url or parts.query or parts.fragment:
        raise InvalidInput(f"the URL of {host} has a user, a query or a fragment", remedy="give the key by --target-key")
    if parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidInput(f"{url!r} is no http or https URL", remedy="e.g. http://127.0.0.1:8000/v1")
    return Place(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/"))


def head_of(place: Place, path: str, headers: Mapping[bytes, bytes]) -> bytes:
    """Return a request's head up to what is each request's own. Raises InvalidInput for a header that would break it."""
    lines = [b"POST %b HTTP/1.1\r\nhost: %b\r\n" % (path.encode(), place.authority.encode())]
    for name, value in headers.items():
        if b"\r" in value or b"\n" in value:
            raise InvalidInput(f"the value of {name.decode()} has a line break", remedy="give it without one")
        lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)
