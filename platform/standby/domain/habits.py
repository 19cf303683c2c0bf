"""What the controllers have learned of when an endpoint is asked, kept so that a new leader need not learn it anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from standby.domain.values import Record


class Habits(Record):
    """Of one endpoint; only the leading controller writes it. Losing it costs nothing but the time to learn it again."""

    tenant: str
    endpoint: str
    parts: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict, description="histograms of gaps by variant or backend; empty: of the endpoint as a whole"
    )
    updated_at: float = 0.0
