"""Small HTTP helpers of the gateway's data routes: reading a bounded body, answering JSON, answering an error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pydantic_core
from starlette.types import Receive, Scope, Send

from standby.domain.errors import PayloadTooLarge, QueueFull, StandbyError
from standby.gateway.errors import error_body, error_headers
from standby.gateway.public_cycle import PublicCycle


@dataclass(slots=True)
class UploadRoom:
    """Bytes of bodies that are still arriving, over all callers: each is bounded, their number is not."""

    limit: int = 512 * 1024 * 1024
    body_bytes: int = 0


class ClientGone(Exception):
    """The caller hung up; nobody reads an answer any more."""


def first_headers(scope: Scope) -> dict[bytes, bytes]:
    """Return a request's headers by name in lower case: of several with one name the first."""
    return dict(reversed(scope["headers"]))


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first value of a request header, or None; ``name`` in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def body_at_hand(receive: Receive, limit: int) -> bytes | None:
    """Return the body where all of it came with its head, as nearly every one does: nothing need be awaited for it.

    None: ``read_body`` reads it. Raises PayloadTooLarge.
    """
    cycle = getattr(receive, "__self__", None)
    body = cycle.take_body() if isinstance(cycle, PublicCycle) else None
    if body is not None and len(body) > limit:
        raise _too_large(len(body), limit)
    return body


async def read_body(scope: Scope, receive: Receive, limit: int, uploads: UploadRoom) -> bytes:
    """Return the whole body. Raises PayloadTooLarge as soon as it is clear, QueueFull where too much arrives, ClientGone."""
    announced = header(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit:
        raise _too_large(int(announced), limit)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > limit:
            raise _too_large(len(body), limit)
        return body
    chunks = [body]
    size = len(body)
    uploads.body_bytes += size
    try:
        while message.get("more_body", False):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk = message.get("body", b"")
            size += len(chunk)
            uploads.body_bytes += len(chunk)
            if size > limit:
                raise _too_large(size, limit)
            if uploads.body_bytes > uploads.limit:
                raise QueueFull(
                    f"{uploads.body_bytes} body bytes are arriving at this gateway, the limit is {uploads.limit}",
                    remedy="retry later",
                    retry_after_s=1.0,
                )
            chunks.append(chunk)
    finally:
        uploads.body_bytes -= size
    return b"".join(chunks)


async def read_or_gone(uploads: UploadRoom, scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """Return the whole body as ``read_body`` does, None where the caller hung up."""
    try:
        return await read_body(scope, receive, limit, uploads)
    except ClientGone:
        return None


def _too_large(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the body has {size} bytes or more, the limit is {limit}",
        remedy="send less, or raise STANDBY_MAX_BODY_BYTES",
    )


async def send_json(send: Send, status: int, value: Any, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answer with a JSON value."""
    await send_bytes(send, status, pydantic_core.to_json(value), headers)


async def send_bytes(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answer with JSON bytes."""
    start = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: StandbyError, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Answer with an error of the tree."""
    await send_json(send, error.http_status, error_body(error), [*error_headers(error), *headers])
