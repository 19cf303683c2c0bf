"""Who counts as a caller on this machine, and may read ``/metrics`` without a key."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from standby.gateway.app import _is_local


def a_request(client: str | None = "127.0.0.1", version: str = "1.1", **headers: str) -> Request:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    address = None if client is None else (client, 1)
    return Request({"type": "http", "client": address, "http_version": version, "headers": lines})


@pytest.mark.parametrize("client", ["127.0.0.1", "::1"])
def test_a_direct_caller_on_this_machine_is_local(client: str) -> None:
    assert _is_local(a_request(client, user_agent="curl"))


@pytest.mark.parametrize(
    "request_",
    [
        a_request("10.0.0.1"),
        a_request(None),
        a_request(x_forwarded_for="127.0.0.1"),
        a_request(x_forwarded_proto="https"),
        a_request(forwarded="for=1.2.3.4"),
        a_request(x_real_ip="1.2.3.4"),
        a_request(via="1.1 proxy"),
        a_request(version="1.0"),
    ],
)
def test_a_proxy_on_this_machine_does_not_make_its_callers_local(request_: Request) -> None:
    """Nginx forwards as HTTP/1.0 and without a word about its caller, unless it is told otherwise."""
    assert not _is_local(request_)
