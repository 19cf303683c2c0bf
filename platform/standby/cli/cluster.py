"""``standby ps``, ``nodes`` and ``status``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from standby.cli.output import failure_lines, print_facts, print_json, print_table, size
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
    for failure in answer.get("failed", ()):
        print(f"\nendpoint {failure['endpoint']} failed: {failure['reason']} ({failure['attempts']} in a row)")
        for line in failure_lines(failure):
            print(f"  {line}")


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
