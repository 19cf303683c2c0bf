"""What became of spans, for every process that exports them. A thread of its own counts them: the library's, with locks."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter

from standby.telemetry.metrics_registries import GATEWAY, NODE

SPANS_EXPORTED: Final = Counter("standby_spans_exported", "Spans that the collector has taken", registry=None)
SPANS_DROPPED: Final = Counter(
    "standby_spans_dropped",
    "Spans that were lost, one for all of a request whose spans had not been made, by why: queue (too many at once), rate "
    "(too many errors at once), export (the collector is away, slow or refuses), shutdown, error",
    ("reason",),
    registry=None,
)

for _registry in (GATEWAY, NODE):
    for _metric in (SPANS_EXPORTED, SPANS_DROPPED):
        _registry.register(_metric)
