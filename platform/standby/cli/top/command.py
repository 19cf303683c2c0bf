"""``standby top``: the ladder, endpoints, nodes and decisions, live."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from standby.cli.output import print_json
from standby.cli.session import JsonOption, options
from standby.cli.top.source import parameters
from standby.domain.errors import InvalidInput


def top(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print one screen and end.")] = False,
    every: Annotated[float, typer.Option(min=0.25, max=10, help="Seconds between two changes of the screen.")] = 1.0,
    all_tenants: Annotated[bool, typer.Option("--all", help="Of every tenant; needs an administrator's key.")] = False,
    json: JsonOption = False,
) -> None:
    """Watch endpoints, instances on the ladder, nodes and decisions live; q ends it, the keys stand in the last line.

    Requests, errors, tokens and percentiles are those of the gateway that is asked; what runs, waits and comes is all's.

    --json prints all of it once, as GET /api/v1/overview answers.

    Example: standby top --once --json
    """
    session = options(ctx, json)
    if not (once or session.json) and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidInput("`standby top` needs a terminal", remedy="use --once for one screen, or --once --json for a program")
    overview = session.call("GET", "/api/v1/overview", params=parameters(None, all_tenants=all_tenants))
    if session.json:
        print_json(overview)
        return
    if once:
        from standby.cli.top.once import show  # noqa: PLC0415 (only what is wanted is imported)
        from standby.cli.top.picture import Picture  # noqa: PLC0415

        picture = Picture()
        picture.take("overview", overview)
        show(picture)
        return
    from standby.cli.top.app import Top  # noqa: PLC0415 (textual costs a fifth of a second)

    screen = Top(overview, session.client, every, all_tenants=all_tenants)
    failed = screen.run()
    if failed is not None:
        raise failed
    if screen.return_code:
        raise typer.Exit(screen.return_code)
