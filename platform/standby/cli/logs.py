"""``standby logs``: why an endpoint's engine failed, and the end of the log of each of its instances."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any, Final

import typer

from standby.cli.endpoints import Name
from standby.cli.logs_following import Following
from standby.cli.models import segment
from standby.cli.output import failure_lines, print_json, print_json_line
from standby.cli.session import JsonOption, Options, options
from standby.domain.engine_logs import DEFAULT_LINES, MOST_LINES
from standby.domain.errors import InvalidInput, Unavailable

LOOK_AGAIN_S: Final = 1.0


def logs(
    ctx: typer.Context,
    endpoint: Name,
    instance: Annotated[str | None, typer.Option(help="Of this instance only, from `standby ps`.")] = None,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=MOST_LINES, help="The last so many of each.")
    ] = DEFAULT_LINES,
    previous: Annotated[bool, typer.Option("--previous", help="Of the engine's life before this one.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written, until Ctrl-C.")] = False,
    json: JsonOption = False,
) -> None:
    """Show why an endpoint's engine failed, and the end of its log; secrets are masked.

    With --follow it goes on line by line, also with instances and engines that take the place of others. Ends with exit
    code 7 where no node that has an instance of it answers.

    Example: standby logs smol --lines 200 --follow
    """
    if follow and previous:
        raise InvalidInput("a life that is over does not go on", remedy="leave out --follow or --previous")
    session = options(ctx, json)
    params = {"lines": str(lines), "previous": str(int(previous)), **({} if instance is None else {"instance": instance})}
    path = f"/api/v1/endpoints/{segment(endpoint)}/logs"
    answer = session.call("GET", path, params=params)
    _show(answer, session, follow=follow)
    _require_a_node(answer)
    if follow:
        asyncio.run(_follow(session, path, params, Following(answer)))


async def _follow(session: Options, path: str, params: dict[str, str], following: Following) -> None:
    lost = ""
    sys.stdout.flush()
    async with session.client() as client:
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            try:
                answer = await client.call("GET", path, params={**params, "after": following.after})
            except Unavailable as error:
                if lost != error.message:
                    print(f"{error.message}; asking again", file=sys.stderr)
                lost = error.message
                continue
            lost = ""
            lines = following.take(answer)
            if lines and session.json:
                print_json_line(answer)
            elif lines:
                print("\n".join(lines), flush=True)


def _show(answer: dict[str, Any], session: Options, *, follow: bool) -> None:
    if not session.json:
        _print(answer)
    elif follow:
        print_json_line(answer)
    else:
        print_json(answer)


def _require_a_node(answer: dict[str, Any]) -> None:
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
