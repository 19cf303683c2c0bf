"""The ``standby`` command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

import typer

from standby.cli.lazy import Lazy, LazyGroup
from standby.cli.session import Options

_USE: Final = "Use"
_OPERATE: Final = "Operate"
_START: Final = "Start"
_MEASURE: Final = "Measure"

COMMANDS: Final[Mapping[str, Lazy]] = MappingProxyType(
    {
        "up": Lazy("standby.cli.up:up", "Start everything on this machine, with an embedded nats-server.", _START),
        "demo": Lazy("standby.cli.demo.command:demo", "Show the whole ladder with a real model; nothing stays.", _START),
        "gateway": Lazy("standby.gateway.main:serve", "Run the gateway: public HTTP, admission, routing.", "Components"),
        "models": Lazy("standby.cli.models:app", "Register, list, show and delete models.", _USE),
        "credentials": Lazy("standby.cli.credentials:app", "Store, list and delete keys for your own stores.", _USE),
        "endpoints": Lazy("standby.cli.endpoints:app", "Create, list, show, wait for, retry and delete endpoints.", _USE),
        "invoke": Lazy("standby.cli.invoke:invoke", "Ask an endpoint, waking it if it sleeps.", _USE),
        "ps": Lazy("standby.cli.cluster:ps", "Show instances and their rungs.", _USE),
        "prices": Lazy("standby.cli.prices:prices", "Show what each rung costs, as measured on each node.", _USE),
        "aws": Lazy("standby.cli.aws:aws", "Print environment lines that point AWS's tools here.", _USE),
        "requests": Lazy("standby.cli.requests:app", "List and show past requests: where each went, and why.", _OPERATE),
        "why": Lazy("standby.cli.why:why", "Show why an endpoint is where it is, and what is meant next.", _OPERATE),
        "events": Lazy("standby.cli.events:events", "Show what happened and what was decided.", _OPERATE),
        "nodes": Lazy("standby.cli.nodes:app", "Show nodes; cordon, drain and uncordon them.", _OPERATE),
        "cache": Lazy("standby.cli.cache:app", "List, pin, unpin and evict what nodes have cached.", _OPERATE),
        "keys": Lazy("standby.cli.keys:app", "Create, list, expire and revoke keys, for AWS's tools too.", _OPERATE),
        "tenants": Lazy("standby.cli.tenants:app", "Create, list, set, disable and enable tenants.", _OPERATE),
        "top": Lazy("standby.cli.top.command:top", "Watch the ladder, endpoints, nodes and decisions live.", _OPERATE),
        "logs": Lazy("standby.cli.logs:logs", "Show why an endpoint's engine failed, and the end of its log.", _OPERATE),
        "profile": Lazy("standby.cli.profile:profile", "Profile an endpoint's engine while it works.", _OPERATE),
        "bench": Lazy("standby.bench.command:bench", "Put load on any endpoint, and measure what it answers.", _MEASURE),
        "compare": Lazy("standby.bench.compare.command:compare", "The same load on two targets, side by side.", _MEASURE),
        "status": Lazy("standby.cli.cluster:status", "Show the state of the whole.", _OPERATE),
        "doctor": Lazy("standby.cli.doctor:doctor", "Say what is missing on this machine and how to get it.", _OPERATE),
    }
)

EPILOG: Final = (
    "Exit codes: 0 done, 2 wrong input, 3 wrong configuration, 4 not found, 5 conflict, 6 key refused, "
    "7 not reachable or not ready, 8 model bytes, 9 engine, 130 interrupted."
)


class StandbyGroup(LazyGroup):
    """All commands of the platform."""

    table = COMMANDS


app = typer.Typer(
    name="standby",
    cls=StandbyGroup,
    no_args_is_help=True,
    # Tracebacks with local variables would print keys.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 (costs 20 ms that only this option needs)

        print(version("standby"))
        raise typer.Exit


@app.callback()
def standby(
    ctx: typer.Context,
    url: Annotated[str | None, typer.Option(envvar="STANDBY_URL", help="The gateway, e.g. http://127.0.0.1:8080.")] = None,
    key: Annotated[str | None, typer.Option(envvar="STANDBY_API_KEY", help="API key.", show_envvar=True)] = None,
    tenant: Annotated[str | None, typer.Option(help="Act for this tenant; needs an administrator's key.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(envvar="STANDBY_STATE_DIR", help="Where `standby up` keeps its state and connection file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON; commands under Use and Operate also take it.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Serve language models that cost nothing while nobody asks.

    Start with `standby demo`, or `standby up` and then:

    standby models register smol s3://models/smollm2/

    standby endpoints create smol --model smol

    standby invoke smol --prompt "Name the capital of France."
    """
    ctx.obj = Options(url=url, key=key, tenant=tenant, state_dir=state_dir, json=json)


def main() -> None:
    """Run the command line."""
    app(prog_name="standby")


if __name__ == "__main__":
    main()
