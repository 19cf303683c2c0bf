"""The tenant's quotas for endpoints of this API: the same limits, over the same endpoints, as AWS's clients meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from standby.domain.access import Quotas
from standby.domain.endpoint import EndpointConfig, EndpointStatus, Variant
from standby.domain.errors import QuotaExceeded
from standby.domain.names import key
from standby.gateway.api.context import Call
from standby.sagemaker.control.quotas import Usage, check_quota, usage_of, usage_of_endpoint
from standby.sagemaker.errors import AwsError

_REMEDY: Final = "delete what is not needed, or ask the operator for more (`standby tenants set`)"


def require_quota(call: Call, name: str, variants: Sequence[Variant]) -> None:
    """Refuse an endpoint of these variants beyond the tenant's limits; ``name`` itself does not count. Raises QuotaExceeded."""
    account = call.context.copies.tenants.entries.get(call.tenant)
    quotas = Quotas() if account is None else account.value.quotas

    def config_of(config: str) -> EndpointConfig | None:
        entry = call.context.copies.endpoint_configs.entries.get(key(call.tenant, config))
        return None if entry is None else entry.value

    mine = [entry.value for entry in call.context.copies.endpoints.entries.values() if entry.value.tenant == call.tenant]
    used = Usage()
    for endpoint in mine:
        if endpoint.status is not EndpointStatus.DELETING and endpoint.name != name:
            used += usage_of_endpoint(endpoint, config_of)
    try:
        check_quota(quotas, used, usage_of(variants))
    except AwsError as error:
        # The sentence that follows names AWS's own console.
        raise QuotaExceeded((error.message or "").partition(" Please ")[0], remedy=_REMEDY) from None
