"""Our scale policy as tags (``standby:keep-ready=5m``) or as a model's environment (``STANDBY_KEEP_READY=5m``). Pure.

They say what AWS has no member for; none changes what a member of AWS's means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from standby.domain.endpoint import ScalePolicy
from standby.domain.errors import InvalidInput
from standby.sagemaker.control.traffic import TRAFFIC_TAGS
from standby.sagemaker.runtime.dialects import HEARTBEAT_TAG

TAG_PREFIX: Final = "standby:"
ENVIRONMENT_PREFIX: Final = "STANDBY_"

FIELDS: Final = tuple(ScalePolicy.model_fields)
POLICY_TAGS: Final[Mapping[str, str]] = {TAG_PREFIX + field.replace("_", "-"): field for field in FIELDS}
# Tags of ours that others read.
OTHER_TAGS: Final = frozenset({HEARTBEAT_TAG})

Overrides = Mapping[str, str]


def from_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the policy's fields that the tags set. Raises InvalidInput for a tag of ours that does not exist."""
    found: dict[str, str] = {}
    for tag, value in tags.items():
        if not tag.startswith(TAG_PREFIX) or tag in OTHER_TAGS or tag in TRAFFIC_TAGS:
            continue
        field = POLICY_TAGS.get(tag)
        if field is None:
            known = ", ".join(sorted((*POLICY_TAGS, *TRAFFIC_TAGS, *OTHER_TAGS)))
            raise InvalidInput(f"there is no tag {tag[:80]!r}", remedy=f"known are: {known}")
        found[field] = value
    applied(ScalePolicy(max_instances=200), found)
    return found


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the policy's fields that a model's environment sets. Raises InvalidInput for values that cannot be."""
    names = {ENVIRONMENT_PREFIX + field.upper(): field for field in FIELDS}
    found = {field: environment[name] for name, field in names.items() if name in environment}
    applied(ScalePolicy(max_instances=200), found)
    return found


def applied(policy: ScalePolicy, overrides: Overrides) -> ScalePolicy:
    """Return the policy with the fields that ``overrides`` sets, as text. Raises InvalidInput naming each wrong one.

    Instances that the policy keeps ready are never fewer than without them: that number came from AWS's own members.
    """
    if not overrides:
        return policy
    try:
        wanted = ScalePolicy.model_validate({**policy.model_dump(), **overrides})
        kept = max(wanted.min_ready, policy.min_ready)
        return ScalePolicy.model_validate({**wanted.model_dump(), "min_ready": kept})
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, part['loc'])) or 'policy'}={str(part['input'])[:60]!r}: {part['msg']}"
            if part["loc"]
            else part["msg"]
            for part in error.errors()
        )
        raise InvalidInput(f"the scale policy is not valid: {faults}", remedy="write durations as 30s, 5m or 1h") from error
