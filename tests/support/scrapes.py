"""Scrapes of a deployment's processes, each checked against the one before: nothing that only grows may shrink or vanish."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Sample = tuple[str, Labels]
_GROWING: Final = frozenset({"counter", "histogram", "summary"})
_START: Final[Sample] = ("process_start_time_seconds", frozenset())


@dataclass
class Target:
    """One process's metrics. ``lives`` counts its starts as they were seen; ``values`` are those of the last scrape."""

    component: str
    address: str
    scrapes: int = 0
    lives: int = 0
    values: dict[Sample, float] = field(default_factory=dict)
    size: int = 0
    _growing: dict[Sample, float] = field(default_factory=dict)

    async def scrape(self, client: httpx.AsyncClient) -> None:
        """Scrape once. Raises AssertionError where a counter shrank or is gone, and httpx.TransportError while it is down."""
        answer = await client.get(f"http://{self.address}/metrics")
        assert answer.status_code == 200, answer.text
        self.size = answer.text.count("\n")
        values: dict[Sample, float] = {}
        growing: dict[Sample, float] = {}
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                where = (sample.name, frozenset(sample.labels.items()))
                assert where not in values, f"{where} is told twice"
                values[where] = sample.value
                if family.type in _GROWING and not sample.name.endswith("_created"):
                    growing[where] = sample.value
        if values[_START] != self.values.get(_START):
            self.lives += 1
        else:
            shrunk = {
                where: (known, growing.get(where))
                for where, known in self._growing.items()
                if not growing.get(where, -math.inf) >= known
            }
            assert not shrunk, f"{self.component} at {self.address}: {shrunk}"
        self.values, self._growing = values, growing
        self.scrapes += 1

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels; 0 where there are none."""
        return sum(self.series(name, **labels).values())

    def series(self, name: str, **labels: str) -> Mapping[Labels, float]:
        """The series of a metric that have these labels."""
        return {where[1]: value for where, value in self.values.items() if where[0] == name and labels.items() <= set(where[1])}


def targets_of(state: Path) -> list[Target]:
    """Return what ``standby up`` has listed for Prometheus."""
    groups = json.loads((state / "prometheus-targets.json").read_text())
    return [Target(group["labels"]["component"], address) for group in groups for address in group["targets"]]


async def scrape_of(state: Path, component: str) -> Target:
    """Scrape the first process of a component once."""
    target = next(one for one in targets_of(state) if one.component == component)
    async with httpx.AsyncClient(trust_env=False) as client:
        await target.scrape(client)
    return target
