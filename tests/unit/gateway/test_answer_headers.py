"""What an answer's head says of the way that its request went."""

from __future__ import annotations

import pytest

from standby.gateway.answer_headers import answer_headers
from standby.sagemaker.runtime.contract import Arrival, Job
from standby.wire.headers import ROUTE
from support.past_requests import a_grant


@pytest.mark.parametrize(
    ("reason", "attempt", "told"),
    [
        ("least outstanding: 1 of 4", 1, b"least outstanding: 1 of 4"),
        ("the other one", 2, b"attempt 2: the other one"),
        ("adapter x\r\nset-cookie: a=b", 1, b"'adapter x\\r\\nset-cookie: a=b'"),
        ("größer", 1, b"'gr\\xf6\\xdfer'"),
        ("x" * 1000, 1, b"x" * 300),
    ],
)
def test_the_reason_is_one_line_whatever_a_caller_has_named(reason: str, attempt: int, told: bytes) -> None:
    grant = a_grant(reason=reason)
    headers = dict(answer_headers(Job("/v1/completions", [], b"{}", []), Arrival(0, 0, "g-1", b"mine"), grant, 0.5, attempt))
    assert headers[ROUTE] == told
    assert headers[b"x-request-id"] == b"mine"
