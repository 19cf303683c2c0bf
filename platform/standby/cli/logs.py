"""``standby logs``: why an endpoint's engine failed, and the end of the log of each of its instances."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from standby.cli.endpoints import Name
from standby.cli.models import segment
from standby.cli.output import failure_lines, print_json
from standby.cli.session import JsonOption, options
from standby.domain.engine_logs import DEFAULT_LINES, MOST_LINES
from standby.domain.errors import Unavailable


def logs(
    ctx: typer.Context,
    endpoint: Name,
    instance: Annotated[str | None, typer.Option(help="Of this instance only, from `standby ps`.")] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=MOST_LINES, help="The last so many of each.")
    ] = DEFAULT_LINES,
    previous: Annotated[bool, typer.Option("--previous", help="Of the engine's life before this one.")] = False,
    json: JsonOption = False,
) -> None:
    """Show why an endpoint's engine failed, and the end of its log; secrets are masked.

    Ends with exit code 7 where no node that has an instance of it answers.

    Example: standby logs smol --lines 200
    """
    session = options(ctx, json)
    params = {"lines": str(lines), "previous": str(int(previous)), **({} if instance is None else {"instance": instance})}
    answer = session.call("GET", f"/api/v1/endpoints/{segment(endpoint)}/logs", params=params)
    if session.json:
        print_json(answer)
    else:
        _print(answer)
    silent = answer["failures"]
    if silent and len(silent) == len({one["node"] for one in answer["instances"]}):
        raise Unavailable(f"no log could be had: {silent[0]['message']}", remedy=silent[0]["remedy"])


def _print(answer: dict[str, Any]) -> None:
    print(f"endpoint {answer['endpoint']} is {answer['status']}, {answer['state']}")
    if answer["failure"]:
        # The end of the log follows as the log itself, where its instance is still there.
        there = {one["id"] for one in answer["instances"] if one["lines"]}
        shown = {**answer["failure"], "log_tail": ()} if answer["failure"]["instance"] in there else answer["failure"]
        print("\n".join(failure_lines(shown)))
    for one in answer["instances"]:
        print(f"\n==> {one['id']} on {one['node']}: {one['words']}")
        if one["missing"]:
            print(f"({one['missing']})")
        if one["cut"]:
            print("(earlier lines are left out: --lines)")
        for line in one["lines"]:
            print(line)
    if not answer["instances"]:
        print("\nno instances: nothing runs, so there is no log to read")
    for lost in answer["failures"]:
        print(f"\n{lost['node']}: {lost['message']}")
