"""Which endpoint of ours carries the inference component that a request names, and whether it may be asked at zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from standby.domain.aws import AwsKind, component_endpoint
from standby.domain.errors import ComponentRequired, EndpointNotFound
from standby.sagemaker.errors import AwsError, runtime_validation
from standby.sagemaker.runtime.contract import Invoker, Resources, Target

# What clients look for in the messages.
NOT_ALLOWED: Final = (
    "Inference Component Name header is not allowed for endpoints to which you do not plan to deploy inference components."
)
NO_CAPACITY: Final = (
    "Inference Component has no capacity to process this request. ApplicationAutoScaling may be in-progress (if configured) "
    "or try to increase the capacity by invoking UpdateInferenceComponentRuntimeConfig API."
)


@dataclass(frozen=True)
class Components:
    """``strict``: a component without a ready copy is refused as AWS does, instead of being woken."""

    invoker: Invoker
    resources: Resources | None
    strict: bool = False

    def find(self, tenant: str, endpoint: str, component: str, variant: str | None, session: str | None) -> Target:
        """Return a component's variant. Raises AwsError ValidationError, EndpointNotFound, VariantNotFound."""
        if self._is_on(tenant, endpoint, component):
            try:
                target = self.invoker.find(tenant, component_endpoint(component), variant, session)
            except EndpointNotFound:
                pass  # it was deleted, and what was said of it goes in a moment
            else:
                if self.strict:
                    self._require_capacity(target)
                return target
        raise self._refusal(tenant, endpoint, component)

    def _require_capacity(self, target: Target) -> None:
        if self.invoker.has_ready(target):
            return
        if self._has(target.tenant, AwsKind.SCALABLE_TARGET, f"copies_{target.endpoint}"):
            self.invoker.wake(target)
        raise runtime_validation(NO_CAPACITY)

    def _refusal(self, tenant: str, endpoint: str, component: str) -> AwsError:
        try:
            self.invoker.find(tenant, endpoint, None, None)
        except ComponentRequired:
            return runtime_validation(f"Inference Component {component} of account {tenant} not found on endpoint {endpoint}.")
        return runtime_validation(f"{NOT_ALLOWED} Endpoint {endpoint} has none: send no inference component name.")

    def _is_on(self, tenant: str, endpoint: str, component: str) -> bool:
        entry = None if self.resources is None else self.resources.entries.get(_key(tenant, _COMPONENT, component))
        return entry is not None and entry.value.request.get("EndpointName") == endpoint

    def _has(self, tenant: str, kind: AwsKind, name: str) -> bool:
        return self.resources is not None and _key(tenant, kind, name) in self.resources.entries


_COMPONENT: Final = AwsKind.INFERENCE_COMPONENT


def _key(tenant: str, kind: AwsKind, name: str) -> str:
    return f"{tenant}.{kind.value}.{name}"
