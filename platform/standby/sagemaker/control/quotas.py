"""What a tenant may have at most, told as AWS tells it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from standby.domain.access import Quotas
from standby.domain.aws import is_component
from standby.domain.endpoint import Endpoint, EndpointConfig, EndpointStatus, Variant
from standby.domain.serving import parts_of, variants_now
from standby.sagemaker.errors import AwsError

_REMEDY: Final = (
    "Please use AWS Service Quotas to request an increase for this quota. If AWS Service Quotas is not available, contact "
    "the operator of this deployment."
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Endpoints, requests at once of the serverless ones, memory in MB of all, and of the largest serverless variant."""

    endpoints: int = 0
    concurrency: int = 0
    memory_mb: int = 0
    largest_mb: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.endpoints + other.endpoints,
            self.concurrency + other.concurrency,
            self.memory_mb + other.memory_mb,
            max(self.largest_mb, other.largest_mb),
        )

    def larger(self, other: Usage) -> Usage:
        """Return the larger one in each respect."""
        return Usage(
            max(self.endpoints, other.endpoints),
            max(self.concurrency, other.concurrency),
            max(self.memory_mb, other.memory_mb),
            max(self.largest_mb, other.largest_mb),
        )


def usage_of(variants: Iterable[Variant], *, endpoints: int = 1) -> Usage:
    """Return what an endpoint of these variants takes."""
    used = Usage(endpoints=endpoints)
    for variant in variants:
        parts = [part for _, part in parts_of(variant)]
        serverless = variant.concurrency_limit is not None
        used += Usage(
            concurrency=variant.concurrency_limit or 0,
            memory_mb=sum((part.memory_mb or 0) * part.policy.max_instances for part in parts),
            largest_mb=max(part.memory_mb or 0 for part in parts) if serverless else 0,
        )
    return used


def usage_of_endpoint(endpoint: Endpoint, config_of: Callable[[str], EndpointConfig | None]) -> Usage:
    """Return what an endpoint takes: while it moves to another config, the larger of both in everything.

    Otherwise a tenant could let many endpoints grow at once, each counted as small as it was. ``config_of`` finds the
    tenant's configs by name.
    """
    count = 0 if is_component(endpoint.name) else 1
    used = Usage(count)
    for name, capacities in ((endpoint.config, endpoint.capacities), (endpoint.pending_config, endpoint.pending_capacities)):
        config = None if name is None else config_of(name)
        if config is not None:
            used = used.larger(usage_of(variants_now(config, capacities or {}), endpoints=count))
    return used


def usage_of_all(endpoints: Iterable[Endpoint], of: Callable[[Endpoint], Usage], *, without: str | None = None) -> Usage:
    """Return what a tenant's endpoints take together, those that are going and the one called ``without`` left out."""
    count = concurrency = memory = largest = 0
    for endpoint in endpoints:
        if endpoint.status is EndpointStatus.DELETING or endpoint.name == without:
            continue
        one = of(endpoint)
        count += one.endpoints
        concurrency += one.concurrency
        memory += one.memory_mb
        largest = max(largest, one.largest_mb)
    return Usage(count, concurrency, memory, largest)


def check_quota(quotas: Quotas, now: Usage, more: Usage) -> None:
    """Refuse what goes beyond the tenant's limits. ``more`` may be negative where an endpoint becomes smaller.

    Raises AwsError ResourceLimitExceeded, naming the first limit that is in the way.
    """
    if more.largest_mb > quotas.memory_mb_per_endpoint:
        raise _exceeded("Memory size in MB per serverless endpoint", quotas.memory_mb_per_endpoint, 0, more.largest_mb, " MBs")
    for name, limit, used, delta, unit in (
        ("Total number of endpoints", quotas.endpoints, now.endpoints, more.endpoints, " Endpoints"),
        (
            "Maximum total concurrency that can be allocated across all serverless endpoints",
            quotas.concurrency,
            now.concurrency,
            more.concurrency,
            "",
        ),
        ("Memory size in MB of all endpoints", quotas.memory_mb, now.memory_mb, more.memory_mb, " MBs"),
    ):
        if limit is not None and delta > 0 and used + delta > limit:
            raise _exceeded(name, limit, used, delta, unit)


def _exceeded(name: str, limit: int, used: int, delta: int, unit: str) -> AwsError:
    return AwsError(
        "ResourceLimitExceeded",
        f"The account-level service limit '{name}' is {limit}{unit}, with current utilization of {used}{unit} and a request "
        f"delta of {delta}{unit}. {_REMEDY}",
    )
