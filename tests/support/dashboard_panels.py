"""What a panel of a dashboard is, and queries that many of them ask. ``support.dashboards`` makes Grafana's files of them."""

from __future__ import annotations

from typing import Final, NamedTuple

Query = tuple[str, str]

OF_ENDPOINT: Final = 'tenant=~"$tenant",endpoint=~"$endpoint"'
AWS_OF_ENDPOINT: Final = 'tenant=~"$tenant",EndpointName=~"$endpoint"'
OF_NODE: Final = 'node=~"$node"'
_SHARES: Final = (0.5, 0.95, 0.99)


class Panel(NamedTuple):
    """One panel; ``unit`` is Grafana's name of it. ``thresholds``: from which value on it has which colour."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    description: str = ""
    kind: str = "timeseries"
    stacked: bool = False
    thresholds: tuple[tuple[float, str], ...] = ()
    width: int = 12
    height: int = 8


def stat(title: str, unit: str, query: str, *thresholds: tuple[float, str], description: str = "") -> Panel:
    """One number, and the colour it has from each threshold on."""
    return Panel(title, unit, ((query, ""),), description, "stat", thresholds=thresholds, width=4, height=4)


def percentiles(metric: str, matchers: str, by: str = "") -> tuple[Query, ...]:
    """Percentiles of a histogram, for each value of ``by``."""
    labels, legend = (f"{by}, le", f" {{{{{by}}}}}") if by else ("le", "")
    return tuple(
        (
            f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{matchers}}}[$__rate_interval])))",
            f"P{share * 100:.0f}{legend}",
        )
        for share in _SHARES
    )


def mean(summary: str, matchers: str, by: str) -> str:
    """The mean of a summary or histogram; nothing while nothing was observed."""
    total = f"sum by ({by}) (rate({summary}_sum{{{matchers}}}[$__rate_interval]))"
    return f"{total} / (sum by ({by}) (rate({summary}_count{{{matchers}}}[$__rate_interval])) > 0)"
