"""What one viewer sees at one moment, and what has changed for it since another one: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from standby.console.rows import Tables
from standby.console.values import Moment, News, Row, Scope
from standby.domain.instance import Rung


@dataclass(frozen=True, slots=True)
class Overview:
    """Rows by name: endpoints by ``tenant/name``, instances by id, nodes by name. Nothing in it is ever changed."""

    moment: Moment
    scope: Scope
    totals: Row
    endpoints: Mapping[str, Row]
    instances: Mapping[str, Row]
    nodes: Mapping[str, Row]
    news: News
    savings: Row

    @property
    def bus(self) -> Row:
        """Whether the bus is there, and for how many seconds it has not been."""
        return {"connected": self.moment.connected, "away_s": self.moment.away_s}

    def as_json(self) -> Row:
        """Return all of it, in the types of JSON."""
        return {
            "at": self.moment.at,
            "since": self.moment.since,
            "gateway": self.moment.gateway,
            "tenant": self.scope.tenant,
            "admin": self.scope.admin,
            "bus": self.bus,
            "totals": self.totals,
            "endpoints": list(self.endpoints.values()),
            "instances": list(self.instances.values()),
            "nodes": list(self.nodes.values()),
            "activations": list(self.news.activations),
            "decisions": list(self.news.decisions),
            "events": list(self.news.events),
            "savings": self.savings,
        }


def overview(moment: Moment, scope: Scope, tables: Tables, news: News, savings: Row) -> Overview:
    """Return what ``scope`` sees; ``news`` and ``savings`` are those of the scope already."""
    tenants: Iterable[str] = [scope.tenant] if scope.tenant else sorted(tables.endpoints.keys() | tables.instances.keys())
    endpoints = {
        f"{tenant}/{name}": row for tenant in tenants for name, row in sorted(tables.endpoints.get(tenant, {}).items())
    }
    instances = {name: row for tenant in tenants for name, row in sorted(tables.instances.get(tenant, {}).items())}
    nodes = tables.nodes if scope.admin else {}
    return Overview(moment, scope, totals(endpoints.values(), instances.values()), endpoints, instances, nodes, news, savings)


def totals(endpoints: Iterable[Row], instances: Iterable[Row]) -> Row:
    """Return the sums over endpoints and instances."""
    sums = dict.fromkeys(("in_flight", "queued", "requests", "errors"), 0)
    rps = tokens_per_s = 0.0
    count = 0
    for row in endpoints:
        count += 1
        for name in sums:
            sums[name] += row[name]
        rps += row["rps"]
        tokens_per_s += row["tokens_per_s"]
    rungs: Counter[str] = Counter()
    resident = 0
    for row in instances:
        rungs[row["rung"]] += 1
        resident += row["resident_bytes"]
    return {
        "endpoints": count,
        "instances": rungs.total(),
        "by_rung": {rung.label: rungs[rung.label] for rung in Rung},
        **sums,
        "rps": round(rps, 2),
        "tokens_per_s": round(tokens_per_s, 1),
        "resident_bytes": resident,
    }


def diff(before: Overview, after: Overview) -> Row:
    """Return what a viewer of ``before`` must be told to have ``after``; ``at`` alone where nothing has changed."""
    change: Row = {"at": after.moment.at}
    for name in ("totals", "savings", "bus"):
        value: Any = getattr(after, name)
        if value != getattr(before, name):
            change[name] = value
    for name in ("endpoints", "instances", "nodes"):
        changed, gone = _rows(getattr(before, name), getattr(after, name))
        if changed:
            change[name] = changed
        if gone:
            change[f"gone_{name}"] = gone
    for name in ("activations", "decisions", "events"):
        fresh = _fresh(getattr(before.news, name), getattr(after.news, name))
        if fresh:
            change[name] = fresh
    return change


def _rows(before: Mapping[str, Row], after: Mapping[str, Row]) -> tuple[list[Row], list[str]]:
    if before is after:
        return [], []
    changed = [row for name, row in after.items() if (known := before.get(name)) is not row and known != row]
    return changed, [name for name in before if name not in after]


def _fresh(before: tuple[Row, ...], after: tuple[Row, ...]) -> list[Row]:
    if before is after:
        return []
    known = {row["id"] for row in before}
    return [row for row in after if row["id"] not in known]
