"""``standby ps``, ``nodes`` and ``status``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from standby.cli.output import SHORT_DIGEST, moment, print_facts, print_json, print_table, resident, size
from standby.cli.session import JsonOption, options
from standby.domain.durations import format_duration


def ps(
    ctx: typer.Context,
    endpoint: Annotated[str | None, typer.Option(help="Only this endpoint's.")] = None,
    json: JsonOption = False,
) -> None:
    """Show instances and their rungs: what is ready, asleep, staged."""
    session = options(ctx, json)
    answer = session.call("GET", "/api/v1/instances", params=None if endpoint is None else {"endpoint": endpoint})
    if session.json:
        print_json(answer)
        return
    print_table(
        ("ENDPOINT", "INSTANCE", "NODE", "RUNG", "SLOTS", "MEMORY", "STATE"),
        [
            (
                i["endpoint"],
                i["id"],
                i["node"],
                i["rung"],
                f"{i['in_flight']}/{i['slots']}",
                size(i["resident_bytes"]),
                i["words"],
            )
            for i in answer["instances"]
        ],
        empty="no instances: everything is cold",
    )


def nodes(ctx: typer.Context, json: JsonOption = False) -> None:
    """Show nodes with memory, devices and zygotes, and the models on their disks; needs an administrator's key."""
    session = options(ctx, json)
    answer = session.call("GET", "/api/v1/nodes")
    if session.json:
        print_json(answer)
        return
    print_table(
        ("NAME", "DOOR", "ENGINES", "INSTANCES", "MEMORY", "RESERVED", "CACHE", "SINCE", "VERSION"),
        [
            (
                n["name"],
                n["door"],
                ", ".join(n["engines"]),
                str(n["instances"]),
                size(n["memory"]["capacity"]),
                size(n["memory"]["reserved"]),
                f"{size(n['cache_bytes'])} of {size(n['cache_capacity'])}",
                moment(n["started_at"]),
                n["version"],
            )
            for n in answer["nodes"]
        ],
        empty="no nodes; start one with `standby node`",
    )
    for columns, rows in (devices(answer["nodes"]), zygotes(answer["nodes"]), _artifacts(answer["nodes"])):
        if rows:
            print()
            print_table(columns, rows, empty="")
    for node in answer["nodes"]:
        if node["isolation"]:
            print(f"\n{node['name']} keeps engines apart by: {node['isolation']}")


Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]


def devices(nodes: Sequence[dict[str, Any]]) -> Rows:
    """Return the table of what the nodes compute on, with the reason where nothing new is placed on it."""
    columns = ("NODE", "DEVICE", "KIND", "NAME", "MEMORY", "USED", "RESERVED", "BUSY", "NUMA", "CORES", "STATE")
    return columns, [
        (
            node["name"],
            device["id"],
            device["kind"],
            device["name"],
            size(device["memory_total"]),
            size(device["memory_used"]),
            size(device["memory_reserved"]),
            "" if device["utilisation"] is None else f"{device['utilisation']:.0%}",
            "" if device["numa_node"] is None else str(device["numa_node"]),
            str(len(device["cores"])) if device["cores"] else "",
            f"cordoned: {device['cordoned']}" if device["cordoned"] else "fit",
        )
        for node in nodes
        for device in node["devices"]
    ]


def zygotes(nodes: Sequence[dict[str, Any]]) -> Rows:
    """Return the table of pre-imported processes that fork instances."""
    columns = ("NODE", "ZYGOTE", "STATE", "MEMORY", "FORKS", "HATCHED IN", "VERSION")
    return columns, [
        (
            node["name"],
            engine,
            f"{zygote['state']}: {zygote['failure']}" if zygote["failure"] else zygote["state"],
            size(zygote["resident_bytes"]) if zygote["resident_bytes"] else "",
            str(zygote["forks"]),
            "" if zygote["hatch_s"] is None else format_duration(zygote["hatch_s"]),
            zygote["version"],
        )
        for node in nodes
        for engine, zygote in node["zygotes"].items()
    ]


def _artifacts(nodes: Sequence[dict[str, Any]]) -> Rows:
    return ("NODE", "MODEL", "VERSION", "ON DISK", "IN PAGE CACHE", "SOURCE"), [
        (
            node["name"],
            ", ".join(artifact["models"]) or "not registered any more",
            artifact["digest"][:SHORT_DIGEST],
            size(artifact["bytes"]),
            resident(artifact),
            artifact["source_uri"],
        )
        for node in nodes
        for artifact in node["artifacts"]
    ]


def status(ctx: typer.Context, json: JsonOption = False) -> None:
    """Show the state of the whole: bus, controller, nodes, counts."""
    session = options(ctx, json)
    answer = session.call("GET", "/api/v1/status")
    if session.json:
        print_json(answer)
        return
    print_facts(
        [
            ("version", answer["version"]),
            ("gateway", f"{answer['gateway']} at {session.connection().url}"),
            ("tenant", f"{answer['tenant']} ({answer['role']})"),
            ("bus", _bus(answer["bus"])),
            ("local copies", _copies(answer["staleness_s"])),
            ("leader", _leaders(answer.get("leader"))),
            ("nodes", str(answer["nodes"]) if "nodes" in answer else ""),
            ("models", str(answer["models"])),
            ("endpoints", _counts(answer["endpoints"])),
            ("instances", _counts(answer["instances"])),
        ]
    )


def _bus(bus: dict[str, Any]) -> str:
    return (
        "connected"
        if bus["connected"]
        else f"away for {format_duration(bus['disconnected_for_s'])}; warm endpoints go on serving"
    )


def _copies(staleness: dict[str, float | None]) -> str:
    ages = [age for age in staleness.values() if age is not None]
    if len(ages) < len(staleness):
        return "not complete yet"
    return f"confirmed {format_duration(max(ages))} ago"


def _leaders(leases: dict[str, Any] | None) -> str:
    if leases is None:
        return ""
    return ", ".join(f"{lease['holder']} (epoch {lease['epoch']})" for lease in leases.values()) or "none: no controller runs"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
