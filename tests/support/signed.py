"""Requests signed as botocore signs them, and a world of keys to check them in."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from standby.domain.access import AccessKey, ApiKey, Tenant
from standby.domain.errors import NotAuthenticated
from standby.host.sealing import SealingKey
from standby.sagemaker.auth.access_keys import issue
from standby.sagemaker.auth.authenticator import Authenticator
from standby.sagemaker.auth.caller import Caller
from standby.sagemaker.auth.vault import Vault
from standby.sagemaker.errors import AwsError

NOW = 1_767_225_600.0
TENANT = "123456789012"
SEALING = SealingKey(bytes(32))
HOST = "127.0.0.1:8080"


@dataclass(frozen=True)
class Signed:
    """A request as a server gets it."""

    method: str
    path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def header(self, name: str) -> str:
        return dict(self.headers)[name.encode()].decode()

    def with_part(self, part: str, value: bytes) -> Signed:
        """The same with another path, query or body."""
        parts = {"path": self.path, "query": self.query, "body": self.body, part: value}
        return Signed(self.method, parts["path"], parts["query"], self.headers, parts["body"])

    def with_header(self, name: str, value: bytes | None) -> Signed:
        """The same with another value of a header, or without it."""
        rest = tuple(pair for pair in self.headers if pair[0] != name.encode())
        more = () if value is None else ((name.encode(), value),)
        return Signed(self.method, self.path, self.query, rest + more, self.body)


@dataclass(frozen=True)
class Entry:
    value: Any


@dataclass
class Records:
    """A copy of a table that the test changes by itself."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def put(self, name: str, value: Any) -> None:
        self.entries[name] = Entry(value)


@dataclass
class World:
    """An authenticator over records of the test."""

    keys: Records = field(default_factory=Records)
    tenants: Records = field(default_factory=Records)
    sealing: SealingKey | None = SEALING
    age: float = 0.0
    own: dict[str, ApiKey] = field(default_factory=dict)
    refusals: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.vault = Vault(self.keys, self.tenants, self.sealing)
        self.authenticator = Authenticator(
            self.vault,
            self._own_key,
            staleness=lambda: self.age,
            trust_s=60.0,
            refused=lambda key_id, error: self.refusals.append((key_id, error.code)),
        )

    def key(self, **how: Any) -> tuple[AccessKey, Credentials]:
        """Make a key; returns its record and what a client holds."""
        how = {"tenant": TENANT, "name": "ci", "sealing": SEALING, "now": NOW, **how}
        record, pair = issue(**how)
        self.keys.put(record.id, record)
        return record, Credentials(record.id, pair.secret, pair.token)

    def change(self, record: AccessKey, **fields: Any) -> None:
        self.keys.put(record.id, record.model_copy(update=fields))
        self.vault.changed(record.id)

    def disable(self, tenant: str) -> None:
        self.tenants.put(tenant, Tenant(id=tenant, created_at=NOW, disabled_at=NOW))

    def check(self, request: Signed, *, now: float = NOW, service: str | None = "sagemaker") -> Caller:
        return self.authenticator.authenticate(
            request.method, request.path, request.query, request.headers, request.body, now=now, service=service
        )

    def _own_key(self, token: str) -> ApiKey:
        if token not in self.own:
            raise NotAuthenticated("no")
        return self.own[token]


def refusal(act: Callable[[], Any]) -> AwsError:
    """Return the error with which ``act`` is refused."""
    with pytest.raises(AwsError) as refused:
        act()
    return refused.value


@contextmanager
def signing_at(now: float) -> Iterator[None]:
    """Let botocore sign as if it were ``now``."""
    moment = dt.datetime.fromtimestamp(now, dt.UTC)
    with mock.patch("botocore.auth.get_current_datetime", return_value=moment):
        yield


def signed(
    credentials: Credentials,
    *,
    method: str = "POST",
    path: str = "/",
    body: bytes = b"{}",
    headers: Mapping[str, str] | None = None,
    service: str = "sagemaker",
    region: str = "eu-west-1",
    now: float = NOW,
    expires: int | None = None,
) -> Signed:
    """Sign by header, or with ``expires`` by query."""
    request = AWSRequest(method=method, url=f"http://{HOST}{path}", data=body, headers=dict(headers or {}))
    if expires is None:
        auth = SigV4Auth(credentials, service, region)
    else:
        # A presigned POST keeps its body only where botocore cannot move it into the query.
        request = AWSRequest(method=method, url=f"http://{HOST}{path}", headers=dict(headers or {}))
        auth = SigV4QueryAuth(credentials, service, region, expires=expires)
        body = b""
    with signing_at(now):
        auth.add_auth(request)
    parts = urlsplit(request.url)
    wire = [(b"host", HOST.encode()), (b"user-agent", b"test"), (b"amz-sdk-invocation-id", b"i")]
    for name, value in request.headers.items():
        wire.append((name.lower().encode(), value if isinstance(value, bytes) else str(value).encode()))
    return Signed(method, parts.path.encode() or b"/", parts.query.encode(), tuple(wire), body)


def bearer_token(
    credentials: Credentials, *, region: str = "us-east-1", expires: int = 43_200, now: float = NOW, **changes: str
) -> str:
    """Make a token as SageMaker's own generator does; ``changes``: action, service, method, host, version."""
    host = changes.get("host", "sagemaker.amazonaws.com")
    request = AWSRequest(
        method=changes.get("method", "POST"),
        url=f"https://{host}/",
        headers={"host": host},
        params={"Action": changes.get("action", "CallWithBearerToken")},
    )
    with signing_at(now):
        SigV4QueryAuth(credentials, changes.get("service", "sagemaker"), region, expires=expires).add_auth(request)
    url = request.url.removeprefix("https://") + changes.get("version", "&Version=1")
    return "sagemaker-api-key-" + base64.b64encode(url.encode()).decode()
