"""What an InvokeEndpointAsync asks for, checked against AWS's model and against the endpoint's config. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from standby.artifacts.location import parse_s3
from standby.domain.async_invocation import AsyncInvocation
from standby.domain.endpoint import Endpoint, EndpointConfig
from standby.domain.errors import InvalidInput
from standby.domain.model import SourceOptions
from standby.sagemaker.errors import runtime_validation
from standby.sagemaker.runtime.async_places import as_prefix
from standby.sagemaker.shapes.requests import parse_rest

OPERATION: Final = "InvokeEndpointAsync"
MAX_INLINE: Final = 128_000
DEFAULT_TTL_S: Final = 21_600
DEFAULT_LIMIT_S: Final = 900
_FIT_FOR_A_NAME: Final = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63}")
# Members that decide whether two requests are the same.
_TELLING: Final = (
    "InputLocation",
    "ContentType",
    "Accept",
    "CustomAttributes",
    "S3OutputPathExtension",
    "Filename",
    "RequestTTLSeconds",
    "InvocationTimeoutSeconds",
)


class Outputs(NamedTuple):
    """Where an endpoint's results go, and whose topics hear of them."""

    output: str
    failure: str
    success_topic: str
    error_topic: str


def parse(endpoint: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, *, https: bool) -> dict[str, Any]:
    """Return the request's members. Raises AwsError ValidationError for what AWS's model or its rules refuse.

    ``https``: inputs may be fetched from https addresses.
    """
    if len(body) > MAX_INLINE:
        raise runtime_validation(
            f"The inline body of {len(body)} bytes is above the limit of {MAX_INLINE} bytes: "
            "put it into S3 and give InputLocation."
        )
    asked = parse_rest(OPERATION, path={"EndpointName": endpoint}, headers=headers, body=body)
    location = asked.get("InputLocation")
    if location is None and not body:
        raise runtime_validation("Give exactly one of InputLocation and Body: there is neither.")
    if location is not None and body:
        raise runtime_validation("Give exactly one of InputLocation and Body: they are mutually exclusive, and both are there.")
    if location is not None and location.startswith("https://"):
        if not https:
            raise runtime_validation(f"InputLocation {location[:200]} is not an s3:// location: https is not allowed here.")
    elif location is not None:
        _check_object(location, "InputLocation")
    return asked


def outputs_of(config: EndpointConfig, endpoint: str) -> Outputs:
    """Return where results go. Raises AwsError ValidationError where the endpoint is not an asynchronous one."""
    there = config.request.get("AsyncInferenceConfig")
    if not there:
        raise runtime_validation(
            f"Endpoint {endpoint} does not support asynchronous inference: "
            "its endpoint configuration has no AsyncInferenceConfig."
        )
    if not config.variants:
        raise runtime_validation(f"Endpoint {endpoint} has inference components, which are not invoked asynchronously.")
    output = there.get("OutputConfig") or {}
    path = str(output.get("S3OutputPath") or "")
    if not path.startswith("s3://"):
        raise runtime_validation(f"The S3OutputPath {path[:200]!r} of endpoint {endpoint} is not an s3:// location.")
    topics = output.get("NotificationConfig") or {}
    failure = str(output.get("S3FailurePath") or path)
    if not failure.startswith("s3://"):
        raise runtime_validation(f"The S3FailurePath {failure[:200]!r} of endpoint {endpoint} is not an s3:// location.")
    return Outputs(path, failure, str(topics.get("SuccessTopic") or ""), str(topics.get("ErrorTopic") or ""))


def at_once(config: EndpointConfig) -> int:
    """Return how many of an endpoint's asynchronous invocations may be at work, over all gateways and instances."""
    client = (config.request.get("AsyncInferenceConfig") or {}).get("ClientConfig") or {}
    given = client.get("MaxConcurrentInvocationsPerInstance")
    total = 0
    for variant in config.variants:
        each = variant.policy.slots if given is None else int(given)
        total += min(each * variant.policy.max_instances, variant.limit or 10**9)
    return max(1, total)


def accepted(
    asked: Mapping[str, Any],
    body: bytes,
    endpoint: Endpoint,
    outputs: Outputs,
    *,
    inference_id: str,
    now: float,
    options: SourceOptions | None = None,
) -> AsyncInvocation:
    """Return the invocation; ``options`` say how the store of its places is reached.

    Raises AwsError ValidationError for locations that cannot be.
    """
    name = inference_id if _FIT_FOR_A_NAME.fullmatch(inference_id) else hashlib.sha256(inference_id.encode()).hexdigest()
    extension = str(asked.get("S3OutputPathExtension") or "").strip("/")
    folder = as_prefix(outputs.output) + (f"{extension}/" if extension else "")
    return AsyncInvocation(
        tenant=endpoint.tenant,
        endpoint=endpoint.name,
        endpoint_created_at=endpoint.created_at,
        inference_id=inference_id,
        digest=_digest(asked, body, endpoint, inference_id),
        accepted_at=now,
        ttl_s=asked.get("RequestTTLSeconds", DEFAULT_TTL_S),
        limit_s=asked.get("InvocationTimeoutSeconds", DEFAULT_LIMIT_S),
        input_uri=asked.get("InputLocation"),
        output_uri=_check_object(folder + (asked.get("Filename") or f"{name}.out"), "OutputLocation"),
        failure_uri=_check_object(f"{as_prefix(outputs.failure)}{name}-error.out", "FailureLocation"),
        options=options or SourceOptions(),
        content_type=asked.get("ContentType"),
        accept=asked.get("Accept"),
        custom_attributes=asked.get("CustomAttributes"),
        success_topic=outputs.success_topic,
        error_topic=outputs.error_topic,
    )


def repeatable_id(tenant: str, endpoint: str, invocation: bytes, asked: Mapping[str, Any], body: bytes) -> str:
    """Return the id for a request that names none: the same for each attempt of one SDK call, whichever gateway it meets."""
    whole = "\0".join((tenant, endpoint, invocation.decode("latin-1"), _told(asked)))
    made = hashlib.sha256(whole.encode() + b"\0" + body).hexdigest()
    return f"{made[:8]}-{made[8:12]}-{made[12:16]}-{made[16:20]}-{made[20:32]}"


def _digest(asked: Mapping[str, Any], body: bytes, endpoint: Endpoint, inference_id: str) -> str:
    whole = "\0".join((endpoint.tenant, endpoint.name, repr(endpoint.created_at), inference_id, _told(asked)))
    return hashlib.sha256(whole.encode() + b"\0" + body).hexdigest()


def _told(asked: Mapping[str, Any]) -> str:
    return json.dumps([asked.get(member) for member in _TELLING])


def _check_object(uri: str, what: str) -> str:
    try:
        place = parse_s3(uri)
    except InvalidInput as error:
        raise runtime_validation(f"{what}: {error.message}") from None
    if place.folder:
        raise runtime_validation(f"{what} {uri[:200]!r} names no object.")
    return uri
