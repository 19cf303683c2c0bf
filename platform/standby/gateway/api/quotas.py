"""The tenant's quotas for endpoints of this API: the same limits, over the same endpoints, as AWS's clients meet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from standby.domain.endpoint import EndpointConfig, Variant
from standby.domain.errors import QuotaExceeded
from standby.domain.names import key
from standby.gateway.api.context import Call
from standby.sagemaker.control.quotas import check_quota, usage_of, usage_of_all, usage_of_endpoint
from standby.sagemaker.errors import AwsError

_REMEDY: Final = "delete what is not needed, or ask the operator for more (`standby tenants set`)"


def require_quota(call: Call, name: str, variants: Sequence[Variant]) -> None:
    """Refuse an endpoint of these variants beyond the tenant's limits; ``name`` itself does not count. Raises QuotaExceeded."""

    def config_of(config: str) -> EndpointConfig | None:
        entry = call.context.copies.endpoint_configs.entries.get(key(call.tenant, config))
        return None if entry is None else entry.value

    mine = (entry.value for entry in call.context.copies.endpoints.entries.values() if entry.value.tenant == call.tenant)
    used = usage_of_all(mine, partial(usage_of_endpoint, config_of=config_of), without=name)
    try:
        check_quota(call.context.quotas(call.tenant), used, usage_of(variants))
    except AwsError as error:
        # The sentence that follows names AWS's own console.
        raise QuotaExceeded((error.message or "").partition(" Please ")[0], remedy=_REMEDY) from None
