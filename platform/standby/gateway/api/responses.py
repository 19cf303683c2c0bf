"""What the control routes read and answer: JSON in, JSON out, one envelope for every error."""

from __future__ import annotations

import json
import math
from typing import Any, Final, TypeVar

import pydantic_core
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from standby.domain.errors import InvalidInput, MalformedJson, PayloadTooLarge, StandbyError
from standby.domain.instance import Rung
from standby.gateway.errors import error_body, error_headers

MAX_BODY_BYTES: Final = 1024 * 1024
JSON_TYPE: Final = "application/json"

Body = TypeVar("Body", bound=BaseModel)


def json_response(content: object, status: int = 200) -> Response:
    """Return ``content`` as JSON; records are turned into plain values, rungs into their names, infinity into ``forever``."""
    return Response(json.dumps(plain(content), ensure_ascii=False), status_code=status, media_type=JSON_TYPE)


def error_response(error: StandbyError) -> Response:
    """Return the error's envelope with its HTTP status, and ``retry-after`` where a retry helps."""
    response = json_response(error_body(error), error.http_status)
    for name, value in error_headers(error):
        response.headers[name.decode()] = value.decode()
    return response


def plain(content: Any) -> Any:
    """Return ``content`` in the types of JSON, which knows no infinity."""
    if isinstance(content, BaseModel):
        return plain(content.model_dump())
    if isinstance(content, dict):
        return {str(plain(name)): plain(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(item) for item in content]
    if isinstance(content, Rung):
        return content.label
    if isinstance(content, float) and math.isinf(content):
        return "forever"
    return content


async def read_body(request: Request, form: type[Body]) -> Body:
    """Return the request's JSON body as ``form``.

    Raises PayloadTooLarge above 1 MiB, MalformedJson, and InvalidInput naming each field and the rule it breaks.
    """
    raw = await _read_limited(request)
    try:
        content = pydantic_core.from_json(raw)
    except ValueError as error:
        raise MalformedJson(
            f"the body is not JSON: {error}", remedy=f"send a JSON object with content-type {JSON_TYPE}"
        ) from error
    if not isinstance(content, dict):
        raise InvalidInput(f"the body is a JSON {type(content).__name__}, not an object", remedy="send a JSON object")
    try:
        return form.model_validate(content)
    except ValidationError as error:
        faults = _faults(error, with_values=not _holds_secrets(form))
        raise InvalidInput(f"the body is not valid: {faults}", remedy="correct the named fields") from None


async def _read_limited(request: Request) -> bytes:
    # The declared length is only a hint: a chunked body has none, so the bytes themselves are counted.
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise PayloadTooLarge(
                f"the body is larger than {MAX_BODY_BYTES} bytes", remedy="control requests are small; send less"
            )
        chunks.append(chunk)
    return b"".join(chunks)


def _holds_secrets(form: type[BaseModel]) -> bool:
    return any("SecretStr" in str(field.annotation) for field in form.model_fields.values())


def _faults(error: ValidationError, *, with_values: bool) -> str:
    faults = []
    for part in error.errors(include_url=False):
        field = ".".join(str(step) for step in part["loc"]) or "body"
        given = "" if part["type"] == "missing" or not with_values else f" (got {str(part['input'])[:80]!r})"
        faults.append(f"{field}: {part['msg']}{given}")
    return "; ".join(faults)
