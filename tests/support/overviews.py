"""Overviews as the console's feed sends them, for what shows them: ``an_overview(endpoints=[an_endpoint_row("e")])``."""

from __future__ import annotations

from typing import Any

from standby.console.overview import overview
from standby.console.rows import Tables, endpoint_row, instance_row, node_row
from standby.console.values import Moment, News, Scope, Traffic
from standby.domain.instance import Instance
from support.builders import TENANT, an_endpoint, an_instance
from support.cluster import make_node

Json = dict[str, Any]

SAVINGS: Json = {"saved_usd": 1.2345, "words": ""}


def an_endpoint_row(name: str = "e", traffic: Traffic | None = None, instance: Instance | None = None, **changes: Any) -> Json:
    """An endpoint's row; ``changes`` are put into it as they are."""
    instances = [] if instance is None else [instance]
    row = endpoint_row(an_endpoint(name=name, served_name=name), instances, traffic or Traffic(), 0.0, {})
    return {**row, **changes}


def an_instance_row(**changes: Any) -> Json:
    """An instance's row; ``changes`` are put into it as they are."""
    return {**instance_row(an_instance(), {}), **changes}


def a_node_row(**changes: Any) -> Json:
    """A node's row; ``changes`` are put into it as they are."""
    return {**node_row(make_node("n1"), []), **changes}


def an_overview(*, admin: bool = True, decisions: tuple[Json, ...] = (), **rows: list[Json]) -> Json:
    """An overview of one tenant with these rows of ``endpoints``, ``instances`` and ``nodes``."""
    tables = Tables(
        {TENANT: {row["name"]: row for row in rows.get("endpoints", [])}},
        {TENANT: {row["id"]: row for row in rows.get("instances", [])}},
        {row["name"]: row for row in rows.get("nodes", [])},
    )
    moment = Moment(1_700_000_000.0, 1_699_990_000.0, "gateway/g")
    return overview(moment, Scope(TENANT, admin), tables, News(decisions=decisions), SAVINGS).as_json()
