"""What a tenant's endpoints take of its quotas, counted anew only where an endpoint has changed."""

from __future__ import annotations

from functools import partial
from typing import Final

from standby.domain.endpoint import Endpoint, EndpointConfig
from standby.sagemaker.control.quotas import Usage, usage_of_all, usage_of_endpoint
from standby.sagemaker.control.records import Records

_MOST_REMEMBERED: Final = 100_000


class Usages:
    """One for each gateway; records are the same objects until they change, and that is what is compared."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Endpoint, EndpointConfig | None, EndpointConfig | None, Usage]] = {}

    def of_tenant(self, records: Records, tenant: str, *, without: str | None = None) -> Usage:
        """Return what all endpoints of the tenant take together, those that are going and ``without`` left out."""
        return usage_of_all(records.endpoints(tenant), partial(self._of, records), without=without)

    def _of(self, records: Records, endpoint: Endpoint) -> Usage:
        now, coming = records.known_config(endpoint), records.known_pending_config(endpoint)
        known = self._known.get((endpoint.tenant, endpoint.name))
        if known is not None and known[0] is endpoint and known[1] is now and known[2] is coming:
            return known[3]
        used = usage_of_endpoint(endpoint, {endpoint.config: now, endpoint.pending_config: coming}.get)
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[endpoint.tenant, endpoint.name] = (endpoint, now, coming, used)
        return used
