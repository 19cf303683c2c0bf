"""What the feed has told so far, put together: rows by name, and the newest decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Row = dict[str, Any]

_NAMED: Final[Mapping[str, Callable[[Row], str]]] = {
    "endpoints": lambda row: f"{row['tenant']}/{row['name']}",
    "instances": lambda row: str(row["id"]),
    "nodes": lambda row: str(row["name"]),
}
_MOST_DECISIONS: Final = 100
_SINGLE: Final = ("at", "since", "gateway", "tenant", "admin", "bus", "totals", "savings")


@dataclass
class Picture:
    """``facts`` are the parts that there is one of: at, gateway, tenant, bus, totals, savings."""

    facts: Row = field(default_factory=dict)
    endpoints: dict[str, Row] = field(default_factory=dict)
    instances: dict[str, Row] = field(default_factory=dict)
    nodes: dict[str, Row] = field(default_factory=dict)
    decisions: list[Row] = field(default_factory=list)

    def take(self, kind: str, told: Mapping[str, Any]) -> None:
        """Take up an ``overview``, which replaces everything, or a ``change``; anything else is a newer gateway's."""
        if kind not in {"overview", "change"}:
            return
        if kind == "overview":
            for name in (*_NAMED, "decisions"):
                getattr(self, name).clear()
        self.facts.update({name: told[name] for name in _SINGLE if name in told})
        for name, name_of in _NAMED.items():
            rows: dict[str, Row] = getattr(self, name)
            for gone in told.get(f"gone_{name}", ()):
                rows.pop(gone, None)
            rows.update({name_of(row): row for row in told.get(name, ())})
        self.decisions[:0] = told.get("decisions", ())
        del self.decisions[_MOST_DECISIONS:]
