"""``standby keys``: create, list, revoke."""

from __future__ import annotations

from typing import Annotated

import typer

from standby.cli.models import segment
from standby.cli.output import moment, print_json, print_table
from standby.cli.session import JsonOption, options

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Create, list and revoke API keys; needs an administrator's key."
)


@app.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Says who uses the key.")],
    tenant: Annotated[str | None, typer.Option(help="12-digit account of the key; default: your own.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="May make keys and act for every tenant.")] = False,
    json: JsonOption = False,
) -> None:
    """Make a key and print it once: only its digest is stored.

    Example: standby keys create ci --tenant 123456789012
    """
    session = options(ctx, json)
    body = {"name": name, "tenant": tenant, "role": "admin" if admin else "tenant"}
    key = session.call("POST", "/api/v1/keys", body=body)
    if session.json:
        print_json(key)
        return
    print(key["api_key"])
    typer.echo(f"key {key['id']} for tenant {key['tenant']} ({key['role']}); it is not shown again", err=True)


@app.command("list")
def list_keys(ctx: typer.Context, json: JsonOption = False) -> None:
    """List all keys, never their secrets."""
    session = options(ctx, json)
    answer = session.call("GET", "/api/v1/keys")
    if session.json:
        print_json(answer)
        return
    print_table(
        ("ID", "NAME", "TENANT", "ROLE", "CREATED", "REVOKED"),
        [
            (k["id"], k["name"], k["tenant"], k["role"], moment(k["created_at"]), moment(k["revoked_at"]))
            for k in answer["keys"]
        ],
        empty="no keys",
    )


@app.command()
def revoke(
    ctx: typer.Context,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the key, from `standby keys list`.")],
    json: JsonOption = False,
) -> None:
    """Revoke a key; requests with it are refused from now on."""
    session = options(ctx, json)
    key = session.call("DELETE", f"/api/v1/keys/{segment(key_id)}")
    print_json(key) if session.json else print(f"key {key['id']} ({key['name']}) is revoked")
