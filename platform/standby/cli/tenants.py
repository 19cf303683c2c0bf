"""``standby tenants``: create, list, show, set, disable, enable."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from standby.cli.models import segment
from standby.cli.output import moment, print_facts, print_json, print_table
from standby.cli.session import JsonOption, Options, options

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Create, list, show, set, disable and enable tenants; needs an administrator's key.",
)

Tenant = Annotated[str, typer.Argument(metavar="ID", help="12-digit account.")]
Endpoints = Annotated[int | None, typer.Option(min=0, help="Quota: endpoints.")]
Concurrency = Annotated[int | None, typer.Option(min=0, help="Quota: sum of MaxConcurrency of all serverless endpoints.")]
MemoryEach = Annotated[
    int | None, typer.Option("--memory-per-endpoint", min=1024, help="Quota: MB of one serverless endpoint.")
]
Memory = Annotated[int | None, typer.Option(min=0, help="Quota: MB of all endpoints together; 0: no limit.")]


@app.command()
def create(
    ctx: typer.Context,
    tenant: Tenant,
    name: Annotated[str, typer.Option(help="Says who it is.")] = "",
    endpoints: Endpoints = None,
    concurrency: Concurrency = None,
    memory_per_endpoint: MemoryEach = None,
    memory: Memory = None,
    json: JsonOption = False,
) -> None:
    """Make a tenant; make keys for it with `standby keys create NAME --tenant ID`.

    Example: standby tenants create 123456789012 --name team-a --endpoints 20 --concurrency 50
    """
    session = options(ctx, json)
    quotas = _quotas(endpoints, concurrency, memory_per_endpoint, memory)
    made = session.call("POST", "/api/v1/tenants", body={"id": tenant, "name": name, "quotas": quotas})
    _show(session, made)


@app.command("list")
def list_tenants(ctx: typer.Context, json: JsonOption = False) -> None:
    """List all tenants with their quotas."""
    session = options(ctx, json)
    answer = session.call("GET", "/api/v1/tenants")
    if session.json:
        print_json(answer)
        return
    print_table(
        ("ID", "NAME", "ENDPOINTS", "CONCURRENCY", "MB EACH", "MB", "DISABLED"),
        [
            (
                one["id"],
                one["name"],
                str(one["quotas"]["endpoints"]),
                str(one["quotas"]["concurrency"]),
                str(one["quotas"]["memory_mb_per_endpoint"]),
                _or_none(one["quotas"]["memory_mb"]),
                moment(one["disabled_at"]),
            )
            for one in answer["tenants"]
        ],
        empty="no tenants",
    )


@app.command()
def show(ctx: typer.Context, tenant: Tenant, json: JsonOption = False) -> None:
    """Show one tenant; your own needs no administrator's key."""
    session = options(ctx, json)
    _show(session, session.call("GET", f"/api/v1/tenants/{segment(tenant)}"))


@app.command("set")
def change(
    ctx: typer.Context,
    tenant: Tenant,
    name: Annotated[str | None, typer.Option(help="Says who it is.")] = None,
    endpoints: Endpoints = None,
    concurrency: Concurrency = None,
    memory_per_endpoint: MemoryEach = None,
    memory: Memory = None,
    json: JsonOption = False,
) -> None:
    """Change a tenant's name and quotas. What runs goes on, also beyond lowered quotas."""
    quotas = _quotas(endpoints, concurrency, memory_per_endpoint, memory)
    _change(options(ctx, json), tenant, {"name": name, "quotas": quotas})


@app.command()
def disable(ctx: typer.Context, tenant: Tenant, json: JsonOption = False) -> None:
    """Accept no key of a tenant any more; nothing of it is deleted."""
    _change(options(ctx, json), tenant, {"disabled": True})


@app.command()
def enable(ctx: typer.Context, tenant: Tenant, json: JsonOption = False) -> None:
    """Accept a disabled tenant's keys again."""
    _change(options(ctx, json), tenant, {"disabled": False})


def _change(session: Options, tenant: str, body: dict[str, object]) -> None:
    _show(session, session.call("PATCH", f"/api/v1/tenants/{segment(tenant)}", body=body))


def _quotas(endpoints: int | None, concurrency: int | None, each: int | None, memory: int | None) -> dict[str, int]:
    given = {"endpoints": endpoints, "concurrency": concurrency, "memory_mb_per_endpoint": each, "memory_mb": memory}
    return {name: value for name, value in given.items() if value is not None}


def _show(session: Options, tenant: dict[str, Any]) -> None:
    if session.json:
        print_json(tenant)
        return
    quotas = tenant["quotas"]
    print_facts(
        [
            ("tenant", tenant["id"]),
            ("name", tenant["name"]),
            ("endpoints", f"at most {quotas['endpoints']}"),
            ("concurrency", f"at most {quotas['concurrency']} over all serverless endpoints"),
            ("memory", f"at most {quotas['memory_mb_per_endpoint']} MB for one, {_or_none(quotas['memory_mb'])} for all"),
            ("disabled", moment(tenant["disabled_at"])),
        ]
    )


def _or_none(limit: int | None) -> str:
    return "no limit" if limit is None else f"{limit} MB"
