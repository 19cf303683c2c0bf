"""``standby cache``: ls, pin, unpin, evict."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

import typer

from standby.cli.client import error_class
from standby.cli.output import SHORT_DIGEST, moment, print_json, print_table, resident, size
from standby.cli.session import JsonOption, Options, options
from standby.domain.errors import InvalidInput

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="List, pin, unpin and evict what nodes have cached; needs an administrator's key.",
)

Artifact = Annotated[str | None, typer.Argument(help="Digest, or the first digits of it, from `standby cache ls`.")]
Model = Annotated[str | None, typer.Option(help="The artifact of this registered model instead.")]
Weights = Annotated[str | None, typer.Option(help="… and these of its weights.")]
Node = Annotated[str | None, typer.Option(help="Only this node; default: every node that has it.")]


@app.command()
def ls(ctx: typer.Context, node: Node = None, json: JsonOption = False) -> None:
    """List what lies in the nodes' caches, and how much of it is in memory."""
    session = options(ctx, json)
    answer = session.call("GET", "/api/v1/cache", params=None if node is None else {"node": node})
    if session.json:
        print_json(answer)
    else:
        _print_artifacts(answer)
        for item in answer["nodes"]:
            print(f"{item['node']}: {size(item['used_bytes'])} of {size(item['capacity_bytes'])}")
    _report_failures(answer)


@app.command()
def pin(
    ctx: typer.Context,
    artifact: Artifact = None,
    model: Model = None,
    weights: Weights = None,
    node: Node = None,
    json: JsonOption = False,
) -> None:
    """Keep an artifact, whatever else needs the room, until it is unpinned.

    Example: standby cache pin --model smol
    """
    _order(options(ctx, json), "pin", _meant(artifact, model, weights), node)


@app.command()
def unpin(
    ctx: typer.Context,
    artifact: Artifact = None,
    model: Model = None,
    weights: Weights = None,
    node: Node = None,
    json: JsonOption = False,
) -> None:
    """Take the pin off again."""
    _order(options(ctx, json), "unpin", _meant(artifact, model, weights), node)


@app.command()
def evict(
    ctx: typer.Context,
    artifact: Artifact = None,
    model: Model = None,
    weights: Weights = None,
    node: Node = None,
    json: JsonOption = False,
) -> None:
    """Remove an artifact from disk; refused while it is in use or pinned.

    Example: standby cache evict 3f9a12 --node n1
    """
    _order(options(ctx, json), "evict", _meant(artifact, model, weights), node)


def _meant(artifact: str | None, model: str | None, weights: str | None) -> dict[str, str]:
    if (artifact is None) == (model is None):
        raise InvalidInput(
            "give either a digest or --model", remedy="e.g. `standby cache pin 3f9a12` or `standby cache pin --model smol`"
        )
    given = {"artifact": artifact, "model": model, "weights": weights}
    return {name: value for name, value in given.items() if value is not None}


def _order(session: Options, action: str, meant: dict[str, str], node: str | None) -> None:
    body = {"action": action, "node": node, "intent": uuid.uuid4().hex, **meant}
    answer = session.call("POST", "/api/v1/cache/orders", body=body)
    if session.json:
        print_json(answer)
    else:
        for item in answer["nodes"]:
            print(_done(action, item))
    _report_failures(answer)


def _done(action: str, item: dict[str, Any]) -> str:
    digest = item["artifacts"][0]["digest"][:SHORT_DIGEST]
    if action == "evict":
        return f"{item['node']}: {digest} is evicted, {size(item['freed_bytes'])} freed"
    state = "pinned" if action == "pin" else "not pinned"
    return f"{item['node']}: {digest} is {state}" if item["changed"] else f"{item['node']}: {digest} was {state} already"


def _print_artifacts(answer: dict[str, Any]) -> None:
    print_table(
        ("NODE", "ARTIFACT", "MODEL", "SIZE", "IN PAGE CACHE", "PINNED BY", "IN USE BY", "LAST USED", "SOURCE"),
        [
            (
                item["node"],
                artifact["digest"][:SHORT_DIGEST],
                ", ".join(artifact["models"]),
                size(artifact["bytes"]),
                resident(artifact),
                artifact["pinned_by"],
                ", ".join(artifact["used_by"]),
                moment(artifact["last_used_at"]),
                artifact["source_uri"],
            )
            for item in answer["nodes"]
            for artifact in item["artifacts"]
        ],
        empty="nothing is cached" if answer["nodes"] else "no node answers",
    )


def _report_failures(answer: dict[str, Any]) -> None:
    """Raise the first failure, so that the exit code tells of it; the others are named beside it."""
    failures = answer["failures"]
    if not failures:
        return
    first = failures[0]
    told = "; ".join(f"node {item['node']}: {item['message']}" for item in failures)
    raise error_class(first["code"], 0)(told, remedy=first["remedy"])
