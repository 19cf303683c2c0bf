"""Requests signed by botocore and sent as they are, so that a test can spoil any part of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from support.aws_user import AwsUser
from support.signed import signing_at


@dataclass(frozen=True)
class Wire:
    """One request, ready to be sent."""

    url: str
    headers: Mapping[str, str]
    body: bytes

    def with_header(self, name: str, value: str) -> Wire:
        """The same with another value of a header."""
        return Wire(self.url, {**self.headers, name: value}, self.body)

    async def send(self, client: httpx.AsyncClient) -> httpx.Response:
        """Send it."""
        headers = {name.encode(): value.encode() for name, value in self.headers.items()}
        return await client.post(self.url, headers=headers, content=self.body)

    def raw(self, *more: str) -> bytes:
        """Write it as HTTP/1.1 with ``more`` lines in its head."""
        lines = [f"POST {urlsplit(self.url).path} HTTP/1.1", *(f"{name}: {value}" for name, value in self.headers.items())]
        return ("\r\n".join([*lines, *more]) + "\r\n\r\n").encode("latin-1") + self.body


def credentials_of(user: AwsUser) -> Credentials:
    """The user's pair as botocore holds it."""
    key = user.key
    return Credentials(key["aws_access_key_id"], key["aws_secret_access_key"], key.get("aws_session_token"))


def wire(
    user: AwsUser,
    path: str = "/",
    body: bytes = b"{}",
    *,
    headers: Mapping[str, str] | None = None,
    service: str = "sagemaker",
    at: float | None = None,
) -> Wire:
    """Sign a POST as botocore does, as if it were ``at``."""
    host = urlsplit(user.url).netloc
    request = AWSRequest("POST", user.url + path, {"host": host, **(headers or {})}, body)
    with signing_at(time.time() if at is None else at):
        SigV4Auth(credentials_of(user), service, "us-east-1").add_auth(request)
    return Wire(user.url + path, {name.lower(): str(value) for name, value in request.headers.items()}, body)


def control(user: AwsUser, operation: str, body: bytes = b"{}", **more: Any) -> Wire:
    """Sign a request of the control plane."""
    headers = {"x-amz-target": f"SageMaker.{operation}", "content-type": "application/x-amz-json-1.1"}
    return wire(user, "/", body, headers=headers, **more)
