"""What AWS's clients have created: their requests as they came, beside the records that the platform works with."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from standby.domain.values import Record


class AwsKind(StrEnum):
    """Which kind of resource; also the word in its ARN."""

    MODEL = "model"
    ENDPOINT_CONFIG = "endpoint-config"
    ENDPOINT = "endpoint"
    INFERENCE_COMPONENT = "inference-component"
    SCALABLE_TARGET = "scalable-target"
    SCALING_POLICY = "scaling-policy"


# No name that a caller may choose has it.
_COMPONENT: Final = "_component"


class AwsResource(Record):
    """One resource of a tenant. Key in the table: ``tenant.kind.name``, compare-and-set; written by gateways only.

    ``request`` is the validated input of its creation (or last update), without tags, as JSON; ``state`` is what the
    operations keep beside it, each kind its own.
    """

    tenant: str
    kind: AwsKind
    name: str
    request: Mapping[str, Any] = Field(default_factory=dict)
    tags: Mapping[str, str] = Field(default_factory=dict)
    state: Mapping[str, Any] = Field(default_factory=dict)
    created_at: float
    modified_at: float


def component_endpoint(name: str) -> str:
    """Return the name of the endpoint of ours that carries an inference component; one for each, seen by no caller."""
    return f"{name}{_COMPONENT}"


def component_name(endpoint: str) -> str | None:
    """Return the name of the inference component that an endpoint of ours carries; None: it is no such endpoint."""
    return endpoint.removesuffix(_COMPONENT) if is_component(endpoint) else None


def is_component(endpoint: str) -> bool:
    """Whether an endpoint of ours carries an inference component."""
    return endpoint.endswith(_COMPONENT)


def arn(region: str, tenant: str, kind: AwsKind, name: str) -> str:
    """Return the resource's ARN."""
    return f"arn:aws:sagemaker:{region}:{tenant}:{kind.value}/{name}"
