"""``standby why``: the last decisions about an endpoint, and what is meant to become of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from standby.cli.models import segment
from standby.cli.output import moment, print_json
from standby.cli.session import JsonOption, options
from standby.domain.durations import format_duration

# What was weighed, for a replay and not for people; --json has it.
_NOT_SHOWN: Final = frozenset({"weighed", "scaled", "variant", "backend", "from", "to"})


def why(
    ctx: typer.Context,
    endpoint: Annotated[str, typer.Argument(help="Name of the endpoint.")],
    last: Annotated[int, typer.Option(min=1, max=500, help="How many decisions, at most.")] = 20,
    json: JsonOption = False,
) -> None:
    """Show why an endpoint is where it is: what is meant next, and the last decisions with their reasons, newest first.

    Decisions are kept for a day. With --json each has everything that it was made from.

    Example: standby why smol
    """
    session = options(ctx, json)
    answer = session.call("GET", f"/api/v1/endpoints/{segment(endpoint)}/why", params={"last": str(last)})
    if session.json:
        print_json(answer)
        return
    for line in meant(answer["outlook"], answer["outlook_missing"]):
        print(line)
    print()
    if not answer["decisions"]:
        print("no decision within the last day")
    for one in answer["decisions"]:
        print(f"{moment(one['at'])}  {one['action']} {one['instance']}".rstrip())
        print(f"    {one['reason']}")
        if said := facts(one["inputs"]):
            print(f"    {said}")


def meant(outlook: Mapping[str, Any] | None, lacking: str, now: float | None = None) -> list[str]:
    """Return in words what is meant for each instance; ``now`` in seconds since the epoch."""
    if outlook is None:
        return [f"what is meant next is not known: {lacking}"]
    found = [f"prices: {outlook['prices']}" if outlook["prices"] else "its config is not at hand yet"]
    found += outlook["keeps"]
    if not outlook["intentions"]:
        return [*found, "cold: nothing is assigned; the next request starts it"]
    return found + [
        f"{one['instance']} on {one['node']}: {intention(one, time.time() if now is None else now)}"
        for one in outlook["intentions"]
    ]


def intention(one: Mapping[str, Any], now: float) -> str:
    """Return in words what is meant for an instance: ``asleep until 14:03:10, then staged: …``."""
    rung = one["rung"]
    idle = "" if one["idle_s"] is None else f"; idle for {format_duration(one['idle_s'])}"
    until = ""
    if one["for_s"] is not None:
        clock = time.strftime("%H:%M:%S", time.localtime(now + one["for_s"]))
        then = "" if one["then"] is None else f", then {one['then']}"
        until = f" until {clock} (in {format_duration(one['for_s'])}){then}"
    reason = one["reason"].removeprefix(f"{rung}: ")
    return f"{rung}{until}: {reason} [by {one['by']}{idle}]"


def facts(inputs: Mapping[str, Any]) -> str:
    """Return a decision's inputs on one line."""
    shown = {name: value for name, value in inputs.items() if name not in _NOT_SHOWN and value not in ("", None)}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
