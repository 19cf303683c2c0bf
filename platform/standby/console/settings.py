"""What memory and SageMaker cost, for the console's comparison; in US dollars."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from standby.domain.settings import Settings


def _usd(default: float, what: str) -> Any:
    return Field(default=default, ge=0, le=1e6, allow_inf_nan=False, description=what)


class ConsoleSettings(Settings):
    """Read from ``STANDBY_USD_…`` by gateways."""

    usd_host_gb_hour: float = _usd(
        0.015,
        "what 10^9 bytes of host memory cost for an hour, in the console's comparison; the default is an assumption: about "
        "what general-purpose instances cost by their memory",
    )
    usd_device_gb_hour: float = _usd(
        0.0588,
        "the same of device memory; the default is an assumption: an ml.g5.xlarge at about $1.41 an hour, by its GPU's 24 GB",
    )
    usd_serverless_gb_second: float = _usd(
        0.00002,
        "what SageMaker Serverless Inference costs for one GB of its memory sizes and a second of inference; the default is "
        "AWS's Price List of September 2026, us-east-1 ($0.00006 a second at 3 GB)",
    )
