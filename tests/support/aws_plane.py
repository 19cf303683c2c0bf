"""A control plane whose callers are who they say and whose operations answer by their shapes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from standby.domain.access import ALL_SCOPES
from standby.domain.access import Scope as KeyScope
from standby.gateway.http import UploadRoom, read_or_gone
from standby.sagemaker.auth.caller import Caller, user_arn
from standby.sagemaker.dispatch import Audit, ControlPlane, Operations
from support.asgi import Answer, ask

TENANT = "111122223333"
TARGETS = {"sagemaker": "SageMaker", "application-autoscaling": "AnyScaleFrontendService"}


def caller(scopes: tuple[KeyScope, ...] = ALL_SCOPES) -> Caller:
    """Return the one caller of these tests."""
    return Caller(TENANT, "SBKA0000000000000000", scopes, user_arn(TENANT, "tester"), "us-east-1")


def plane(
    operations: Operations,
    *,
    audit: Audit | None = None,
    scopes: tuple[KeyScope, ...] = ALL_SCOPES,
    asked: list[Any] | None = None,
) -> ControlPlane:
    """Return a control plane; ``asked`` gets what each signature was checked for."""

    def authenticate(
        method: str,
        raw_path: bytes,
        raw_query: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        *,
        now: float,
        service: str | None = "sagemaker",
    ) -> Caller:
        if asked is not None:
            asked.append((method, raw_path, raw_query, body, service))
        return caller(scopes)

    return ControlPlane(authenticate, operations, partial(read_or_gone, UploadRoom()), audit)


async def call(app: ControlPlane, service: str, name: str, request: Any, **more: Any) -> Answer:
    """Send an AWS JSON request."""
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    headers = [("X-Amz-Target", f"{TARGETS[service]}.{name}"), ("Content-Type", "application/x-amz-json-1.1")]
    return await ask(app, headers=[*headers, ("Content-Length", str(len(body)))], body=body, **more)
