"""How an error is told in each protocol, so that every SDK finds its code and its message."""

from __future__ import annotations

import json
from typing import Literal

from standby.sagemaker.errors import AwsError
from standby.sagemaker.shapes import cbor
from standby.sagemaker.shapes.answers import Headers
from standby.sagemaker.shapes.xml import error_document

Protocol = Literal["json", "rest-json", "query", "cbor"]

_CONTENT_TYPES: dict[Protocol, bytes] = {
    "json": b"application/x-amz-json-1.1",
    "rest-json": b"application/json",
    "query": b"text/xml",
    "cbor": b"application/cbor",
}


def head(protocol: Protocol, request_id: str) -> Headers:
    """Return the headers that every answer has, besides its length."""
    headers = [(b"content-type", _CONTENT_TYPES[protocol]), (b"x-amzn-requestid", request_id.encode())]
    if protocol == "cbor":
        headers.append((b"smithy-protocol", b"rpc-v2-cbor"))
    return headers


def error_answer(error: AwsError, *, protocol: Protocol, request_id: str) -> tuple[int, Headers, bytes]:
    """Return status, headers (without the length) and body of an error.

    SDKs read the code from ``__type`` of a JSON body and from ``x-amzn-errortype`` on the runtime; some read ``message``,
    some ``Message``; a message of None stays null, as with AWS's throttling.
    """
    headers = head(protocol, request_id)
    if error.retry_after_ms is not None:
        headers.append((b"x-amz-retry-after", str(error.retry_after_ms).encode()))
    body: bytes
    if protocol == "query":
        body = error_document(error.code, error.message or "", sender=error.status < 500, request_id=request_id)
    else:
        value = {"__type": error.code, "message": error.message, "Message": error.message, **error.members}
        if protocol == "cbor":
            headers.append((b"x-amzn-query-error", f"{error.code};{'Sender' if error.status < 500 else 'Receiver'}".encode()))
            body = cbor.encode(value)
        else:
            headers.append((b"x-amzn-errortype", error.code.encode()))
            body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return error.status, headers, body
