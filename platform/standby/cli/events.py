"""``standby events``: what happened and what was decided, with the reasons."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import typer

from standby.cli.output import moment, print_json_line
from standby.cli.session import JsonOption, Options, options

_SHOWN_ELSEWHERE: Final = frozenset({"schema_version", "id", "at", "kind", "source", "tenant", "endpoint", "instance"})
_NOT_SHOWN: Final = frozenset({"inputs", "activation"})


def events(
    ctx: typer.Context,
    kind: Annotated[
        str, typer.Option(help="decision, transition, activation, fetch, endpoint, notice, or audit (administrators only).")
    ] = "",
    endpoint: Annotated[str, typer.Option(help="Of this endpoint only.")] = "",
    last: Annotated[int, typer.Option(min=0, max=1000, help="How many of the past, at most.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")] = False,
    json: JsonOption = False,
) -> None:
    """Show the last events, and with --follow the next ones. They are kept for a day.

    Example: standby events --kind audit -f
    """
    asyncio.run(_print(options(ctx, json), {"kind": kind, "endpoint": endpoint}, last, follow=follow))


async def _print(session: Options, filters: dict[str, str], last: int, *, follow: bool) -> None:
    params = {name: value for name, value in filters.items() if value}
    async with session.client() as client:
        async for event in client.event_stream({**params, "replay": str(last), "follow": str(int(follow))}):
            if session.json:
                print_json_line(event)
            else:
                print(line(event), flush=True)


def line(event: dict[str, Any]) -> str:
    """Return an event as people read it: when, what kind, about what, and what it says."""
    about = " ".join(part for part in (event["tenant"], event["endpoint"], event["instance"]) if part)
    facts = [
        f"{name}={value}"
        for name, value in event.items()
        if name not in _SHOWN_ELSEWHERE | _NOT_SHOWN and value not in ("", None)
    ]
    return "  ".join(part for part in (moment(event["at"]), event["kind"], about, " ".join(facts)) if part)
