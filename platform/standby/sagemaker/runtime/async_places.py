"""Where asynchronous invocations may read and write with the platform's own keys. Pure.

Those keys open what belongs to everybody, and a tenant only names addresses: without a rule, one could let its model read
out another one's results. Keys that a tenant has stored itself need no rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from standby.domain.endpoint import Endpoint, EndpointConfig
from standby.domain.errors import Forbidden

_REMEDY = "use a place of your own, or a model that names stored credentials"


class Claim(NamedTuple):
    """A tenant's results lie below ``prefix``, which ends in a slash, since ``since``."""

    since: float
    tenant: str
    prefix: str


def claims_of(served: Iterable[tuple[Endpoint, EndpointConfig]]) -> list[Claim]:
    """Return the places of all asynchronous endpoints' results, the oldest first."""
    found = []
    for endpoint, config in served:
        output = (config.request.get("AsyncInferenceConfig") or {}).get("OutputConfig") or {}
        paths = {output.get("S3OutputPath"), output.get("S3FailurePath")}
        found += [Claim(endpoint.created_at, endpoint.tenant, as_prefix(path)) for path in paths if path]
    return sorted(found)


def as_prefix(path: str) -> str:
    """Return the path as a folder, so that ``out`` does not mean ``out-of-others``."""
    return path.rstrip("/") + "/"


def check_place(uri: str, tenant: str, claims: Sequence[Claim], locations: Sequence[str]) -> None:
    """Raise Forbidden where the platform's own keys are not for this tenant's use at ``uri``.

    With ``locations`` it must lie below one of them. Without, it must not lie where another tenant's results do: of
    several who claim a place, the first.
    """
    if locations:
        if not any(uri.startswith(as_prefix(place.replace("{tenant}", tenant))) for place in locations):
            raise Forbidden(f"{uri[:200]!r} is not a place where the platform's keys are used for you", remedy=_REMEDY)
        return
    first = next((claim for claim in claims if uri.startswith(claim.prefix)), None)
    if first is not None and first.tenant != tenant:
        raise Forbidden(f"{uri[:200]!r} is not a place where the platform's keys are used for you", remedy=_REMEDY)
