"""Our traffic policy as tags of an endpoint, a config or a component (``standby:tier=critical``). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pydantic import ValidationError

from standby.domain.errors import InvalidInput
from standby.domain.traffic import TrafficPolicy

TRAFFIC_TAGS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "standby:tier": ("tier",),
        "standby:latency-target": ("latency_target",),
        "standby:priority": ("priority", "default"),
        "standby:max-priority": ("priority", "highest"),
        "standby:queue": ("queue",),
        "standby:hybrid": ("hybrid", "policy"),
    }
)


def traffic_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return those of the tags that say how traffic is treated. Raises InvalidInput where they say what cannot be."""
    found = {tag: value for tag, value in tags.items() if tag in TRAFFIC_TAGS}
    traffic_from(found)
    return found


def traffic_from(*several: Mapping[str, str]) -> TrafficPolicy:
    """Return the policy that the tags make, later ones winning. Raises InvalidInput naming each wrong tag and its value."""
    tags = {tag: value for one in several for tag, value in one.items()}
    told: dict[str, Any] = {}
    for tag, value in tags.items():
        *parents, last = TRAFFIC_TAGS[tag]
        place = told
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value.strip().lower()
    try:
        return TrafficPolicy.model_validate(told)
    except ValidationError as error:
        faults = "; ".join(_fault(part["loc"], part["msg"], part["input"]) for part in error.errors())
        known = "see the tables of docs/sagemaker-extensions.md; durations are written 250ms, 30s or 5m"
        raise InvalidInput(f"the traffic policy is not valid: {faults}", remedy=known) from error


def _fault(place: tuple[int | str, ...], message: str, given: object) -> str:
    tag = next((tag for tag, path in TRAFFIC_TAGS.items() if path == place), None)
    return message if tag is None else f"{tag}={str(given)[:60]!r}: {message}"
