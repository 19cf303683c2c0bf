"""An inference component as a variant of ours: rules and translation. Pure.

A component is a model with a number of copies. It is carried by an endpoint of ours of its own, with one variant, so that
its copies, its updates and its failures are nobody else's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from standby.domain.endpoint import ScalePolicy, Variant, VariantCapacity
from standby.domain.errors import InvalidInput
from standby.sagemaker.control import policy
from standby.sagemaker.errors import validation

MOST_COPIES: Final = 200
_SPECIFICATION: Final = "Specification"
_NOT_THERE: Final = {
    "BaseInferenceComponentName": "adapters of another inference component are not there: merge it into a model of its own",
    "InstanceType": "specifications by instance type are not there: placement follows what a model needs",
}

Given = Mapping[str, Any]


def specification_of(request: Given, before: Given | None = None) -> dict[str, Any]:
    """Return the one specification that a request asks for, over what there was ``before``. Raises AwsError."""
    several = request.get("Specifications") or []
    single = request.get(_SPECIFICATION)
    if single is not None and several:
        raise validation("Give exactly one of Specification and Specifications: both are there.")
    if len(several) > 1:
        raise validation(f"Specifications holds {len(several)} entries: {_NOT_THERE['InstanceType']}. Give one.")
    given = dict(single if single is not None else several[0] if several else {})
    for member, why in _NOT_THERE.items():
        if given.get(member):
            raise validation(f"{member}: {why}.")
    kept = dict(before or {})
    if "ModelName" in given or "Container" in given:
        kept = {member: value for member, value in kept.items() if member not in ("ModelName", "Container")}
    return _checked({**kept, **given})


def _checked(specification: dict[str, Any]) -> dict[str, Any]:
    named, container = specification.get("ModelName"), specification.get("Container")
    if (named is None) == (container is None):
        which = "there is neither" if named is None else "both are there"
        raise validation(f"An inference component's specification has exactly one of ModelName and Container: {which}.")
    needs: Given | None = specification.get("ComputeResourceRequirements")
    if needs is None:
        raise validation("An inference component's specification needs ComputeResourceRequirements.")
    least, most = needs["MinMemoryRequiredInMb"], needs.get("MaxMemoryRequiredInMb")
    if most is not None and most < least:
        raise validation(f"MaxMemoryRequiredInMb {most} must be greater than or equal to MinMemoryRequiredInMb {least}.")
    return specification


def copies_of(request: Given, member: str = "RuntimeConfig", default: int = 1) -> int:
    """Return the number of copies that a request asks for. Raises AwsError."""
    runtime: Given | None = request.get(member)
    count = default if runtime is None else int(runtime["CopyCount"])
    if count > MOST_COPIES:
        raise validation(f"CopyCount {count} is above the limit of {MOST_COPIES} copies of one inference component.")
    return count


def container_request(name: str, specification: Given) -> dict[str, Any]:
    """Return the CreateModel request of a specification's own container."""
    given: Given = specification["Container"]
    container: dict[str, Any] = {"Environment": dict(given.get("Environment") or {})}
    if given.get("Image") is not None:
        container["Image"] = given["Image"]
    if given.get("ArtifactUrl") is not None:
        container["ModelDataUrl"] = given["ArtifactUrl"]
    return {"ModelName": name, "PrimaryContainer": container}


def component_variant(variant: str, model: str, specification: Given, copies: int, overrides: policy.Overrides) -> Variant:
    """Return the variant that serves a component. Raises AwsError.

    CopyCount copies are kept ready and there are never more; with 0 one is woken when it is asked for.
    """
    base = ScalePolicy(min_ready=copies, max_instances=max(1, copies))
    start_limit = (specification.get("StartupParameters") or {}).get("ContainerStartupHealthCheckTimeoutInSeconds")
    if start_limit is not None:
        base = base.model_copy(update={"activation_limit": float(start_limit)})
    try:
        made = policy.applied(base, overrides)
    except InvalidInput as error:
        raise validation(str(error)) from error
    memory = int(specification["ComputeResourceRequirements"]["MinMemoryRequiredInMb"])
    return Variant(name=variant, model=model, memory_mb=memory, policy=made)


def with_copies(capacity: VariantCapacity, copies: int) -> VariantCapacity:
    """Return the capacity with another number of copies."""
    return capacity.model_copy(update={"min_ready": copies, "max_instances": max(1, copies)})
