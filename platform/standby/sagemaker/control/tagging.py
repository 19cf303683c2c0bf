"""The rules of tags, those of ours among them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from standby.domain.errors import InvalidInput
from standby.sagemaker.control import policy
from standby.sagemaker.control.traffic import traffic_tags
from standby.sagemaker.errors import validation

MOST_TAGS: Final = 50
_RESERVED: Final = "aws:"


def tags_of(given: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Return tags as a mapping. Raises AwsError for doubles, for AWS's own prefix, and for tags of ours that are not known."""
    found: dict[str, str] = {}
    for tag in given or ():
        name = str(tag["Key"])
        if name in found:
            raise validation(f"Duplicate tag keys found. Please note that Tag keys are case insensitive. Key: {name}")
        if name.lower().startswith(_RESERVED):
            raise validation(f"System tags cannot be added/updated by requester: {name} begins with {_RESERVED}")
        found[name] = str(tag["Value"])
    policy_of(found)
    traffic_of(found)
    return found


def policy_of(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of the scale policy that the tags set. Raises AwsError."""
    try:
        return policy.from_tags(tags)
    except InvalidInput as error:
        raise validation(str(error)) from error


def traffic_of(tags: Mapping[str, str]) -> dict[str, str]:
    """Return those of the tags that say how traffic is treated. Raises AwsError."""
    try:
        return traffic_tags(tags)
    except InvalidInput as error:
        raise validation(str(error)) from error


def refuse_traffic(tags: Mapping[str, str]) -> None:
    """Raise AwsError for tags on a model that say how traffic is treated: an endpoint's traffic goes to several models."""
    wrong = sorted(traffic_of(tags))
    if wrong:
        raise validation(
            f"The tag {wrong[0]} says nothing of a model: give it to the endpoint configuration, the endpoint or the component."
        )


def merged(tags: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return both together, ``more`` winning. Raises AwsError beyond the limit."""
    together = {**tags, **more}
    if len(together) > MOST_TAGS:
        raise validation(f"The number of tags ({len(together)}) exceeds the limit of {MOST_TAGS} tags per resource.")
    return together
