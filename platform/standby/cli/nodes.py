"""``standby nodes``: the table, and cordon, drain, uncordon."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from standby.cli.models import segment
from standby.cli.output import SHORT_DIGEST, moment, print_json, print_table, resident, size
from standby.cli.session import JsonOption, Options, options
from standby.domain.durations import format_duration
from standby.domain.errors import NotFound

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    help="Show nodes; cordon, drain and uncordon them. Needs an administrator's key.",
)

LOOK_S: Final = 0.5

Name = Annotated[str, typer.Argument(help="The node, from `standby nodes`.")]


@app.callback()
def nodes(ctx: typer.Context, json: JsonOption = False) -> None:
    """Show nodes with memory, devices and zygotes, and the models on their disks; needs an administrator's key."""
    session = options(ctx, json)
    if ctx.invoked_subcommand is not None:
        return
    answer = session.call("GET", "/api/v1/nodes")
    if session.json:
        print_json(answer)
        return
    print_table(
        ("NAME", "TAKES", "DOOR", "ENGINES", "INSTANCES", "MEMORY", "RESERVED", "CACHE", "SINCE", "VERSION"),
        [
            (
                n["name"],
                n["words"],
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


@app.command()
def cordon(ctx: typer.Context, name: Name, json: JsonOption = False) -> None:
    """Let nothing new come to a node; what it has goes on."""
    _order(options(ctx, json), name, "cordon")


@app.command()
def uncordon(ctx: typer.Context, name: Name, json: JsonOption = False) -> None:
    """Let a node take everything again; a drain is called off."""
    _order(options(ctx, json), name, "uncordon")


@app.command()
def drain(
    ctx: typer.Context,
    name: Name,
    wait: Annotated[bool, typer.Option("--wait", help="Until nothing is left there; Ctrl-C ends the wait alone.")] = False,
    json: JsonOption = False,
) -> None:
    """Empty a node: no new requests, running ones end within their endpoints' drain limits, engines stop.

    What waits goes elsewhere. The node stays empty, over restarts of its agent, until it is uncordoned.

    Example: standby nodes drain n1 --wait
    """
    session = options(ctx, json)
    _order(session, name, "drain", quiet=wait)
    if wait:
        shown = asyncio.run(_until_drained(session, name))
        if session.json:
            print_json(shown)


def _order(session: Options, name: str, action: str, *, quiet: bool = False) -> None:
    answer = session.call("POST", f"/api/v1/nodes/{segment(name)}/orders", body={"action": action})
    if quiet:
        return
    if session.json:
        print_json(answer)
        return
    why = f" ({answer['reason']})" if answer["reason"] else ""
    has = f", {answer['instances']} instances, {answer['in_flight']} in flight" if answer["instances"] else ""
    print(f"{name}: {'' if answer['changed'] else 'already '}{answer['mode']}{why}{has}")


async def _until_drained(session: Options, name: str) -> dict[str, Any]:
    """Return the node once it is drained, telling each change on the way. Raises NotFound where it disappears."""
    said = ""
    async with session.client() as client:
        while True:
            listed = (await client.call("GET", "/api/v1/nodes"))["nodes"]
            found: dict[str, Any] | None = next((one for one in listed if one["name"] == name), None)
            if found is None:
                raise NotFound(f"node {name!r} is not there any more", remedy="see `standby nodes`")
            if found["words"] != said and not session.json:
                said = found["words"]
                print(f"{name}: {said}", file=sys.stderr if found["mode"] != "drained" else sys.stdout)
            if found["mode"] == "drained":
                return found
            await asyncio.sleep(LOOK_S)


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
