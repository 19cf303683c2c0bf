"""Reads an engine's own Prometheus figures."""

from __future__ import annotations

from http import HTTPStatus

from prometheus_client.parser import text_string_to_metric_families

from standby.domain.errors import EngineError
from standby.runtime.engine_http import Answer


def figures_of(answer: Answer, path: str = "/metrics") -> dict[str, float]:
    """Return name → value, the series of one name added up. Raises EngineError where there are none to read."""
    if answer.status != HTTPStatus.OK:
        raise EngineError(f"engine answered {path} with {answer.status}")
    figures: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(answer.body.decode(errors="replace")):
            for sample in family.samples:
                figures[sample.name] = figures.get(sample.name, 0.0) + sample.value
    except ValueError as error:
        raise EngineError(f"engine answered {path} with metrics that cannot be read: {error}") from error
    return figures
