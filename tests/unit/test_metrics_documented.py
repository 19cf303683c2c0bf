"""Every metric stands in docs/metrics.md with its meaning and is set by some process."""

from __future__ import annotations

import pytest
from prometheus_client.metrics import MetricWrapperBase

from standby.telemetry import metrics
from support import reference

PAGE = (reference.ROOT / "docs" / "metrics.md").read_text()
METRICS = reference.defined_metrics()


def test_every_registered_metric_is_defined_by_name() -> None:
    assert {family.name for family in metrics.REGISTRY.collect()} == {next(iter(m.describe())).name for m in METRICS}


@pytest.mark.parametrize("metric", METRICS, ids=str)
def test_every_metric_is_documented_and_used(metric: MetricWrapperBase) -> None:
    described = next(iter(metric.describe()))
    row = next(
        line for line in PAGE.splitlines() if line.startswith((f"| `{described.name}` |", f"| `{described.name}_total` |"))
    )
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == described.type
    assert described.documentation
    assert cells[3] == described.documentation
    assert cells[4]
    assert reference.set_somewhere(metric), "defined, and set by nobody"


def test_each_process_exposes_what_it_costs() -> None:
    """CPU time and memory, by the library's own names."""
    for registry, _ in reference.PROCESSES.values():
        names = {family.name for family in registry.collect()}
        assert {"process_cpu_seconds", "process_resident_memory_bytes"} <= names


def test_the_page_is_what_the_code_says() -> None:
    """``make reference`` writes it again."""
    assert reference.metrics_page() == PAGE
