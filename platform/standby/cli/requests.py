"""``standby requests``: what became of past requests, in words: where each went, why there, how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote

import typer

from standby.cli.output import moment, print_facts, print_json, print_table
from standby.cli.session import JsonOption, options

app = typer.Typer(no_args_is_help=True, add_completion=False, help="List and show past requests: where each went, and why.")


@app.command("list")
def list_requests(
    ctx: typer.Context,
    endpoint: Annotated[str | None, typer.Option(help="Of this endpoint only.")] = None,
    limit: Annotated[int, typer.Option(min=0, max=200, help="How many, at most.")] = 50,
    json: JsonOption = False,
) -> None:
    """List the last requests, the newest first. Gateways keep them in memory, the last few thousand each.

    Example: standby requests list --endpoint smol --limit 10
    """
    session = options(ctx, json)
    params = {"limit": str(limit), **({} if endpoint is None else {"endpoint": endpoint})}
    answer = session.call("GET", "/api/v1/requests", params=params)
    if session.json:
        print_json(answer)
        return
    print_table(
        ("ID", "ENDPOINT", "ARRIVED", "PRIORITY", "WAITED", "LASTED", "TOKENS", "WENT TO", "ENDED"),
        [_row(trace) for trace in answer["requests"]],
        empty="no gateway remembers a request",
    )


@app.command("show")
def show_request(
    ctx: typer.Context,
    request: Annotated[str, typer.Argument(help="Its id: x-request-id of the answer, or as the list shows it.")],
    json: JsonOption = False,
) -> None:
    """Show one request: its wait and why, each attempt and why there, how it ended, what it used.

    Example: standby requests show 3f2a9c41d07be865-1c
    """
    session = options(ctx, json)
    trace = session.call("GET", f"/api/v1/requests/{quote(request, safe='')}")
    if session.json:
        print_json(trace)
        return
    print_facts(_facts(trace))
    for line in _attempts(trace["attempts"]):
        print(line)


def _row(trace: dict[str, Any]) -> tuple[str, ...]:
    went = " → ".join(attempt["instance"] for attempt in trace["attempts"])
    usage = trace["usage"]
    return (
        trace["id"],
        trace["endpoint"],
        moment(trace["arrived_at"]),
        trace["priority"],
        _ms(trace["waited_ms"]),
        _ms(trace["lasted_ms"]),
        f"{usage['prompt_tokens']} + {usage['completion_tokens']}",
        went or "nowhere",
        trace["ending"],
    )


def _facts(trace: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "request", trace["id"]
    if trace["request_id"] != trace["id"]:
        yield "caller's id", trace["request_id"]
    if trace.get("trace_id"):  # a gateway of an earlier version does not say it
        yield "trace", trace["trace_id"]
    yield "endpoint", f"{trace['endpoint']}, variant {trace['variant']}, tier {trace['tier']}"
    yield "arrived", moment(trace["arrived_at"])
    yield "priority", trace["priority"]
    yield from _waits(trace)
    usage = trace["usage"]
    how = "estimated" if usage["estimated"] else "counted by the engine"
    yield "tokens", f"{usage['prompt_tokens']} in, {usage['completion_tokens']} out ({how})"
    first = "" if trace["first_byte_ms"] is None else f", the first byte after {_ms(trace['first_byte_ms'])}"
    yield "ended", f"{trace['ending']} after {_ms(trace['lasted_ms'])}{first}"
    yield "that is", trace["words"]


def _waits(trace: dict[str, Any]) -> Iterator[tuple[str, str]]:
    apart, why = trace["quarantined_ms"], trace["queue_reason"]
    if apart:
        yield "waited", f"{_ms(apart)} in quarantine: a request like it was in flight when an engine died twice"
    if why or not apart:
        yield "waited", f"{_ms(max(0.0, trace['waited_ms'] - apart))}{f': {why}' if why else ''}"


def _attempts(attempts: list[dict[str, Any]]) -> Iterator[str]:
    if not attempts:
        yield "It was sent to no instance."
    for number, attempt in enumerate(attempts, 1):
        node = attempt["node"] or f"door {attempt['door']}"
        engine = ", ".join(word for word in (attempt["engine"], attempt["backend"]) if word)
        probe = ", as a probe" if attempt["probe"] else ""
        yield ""
        yield f"attempt {number}: {attempt['instance']} on {node}{f' ({engine})' if engine else ''}{probe}"
        if attempt["reason"]:
            yield f"  why there: {attempt['reason']}"
        yield f"  ended: {attempt['outcome']}, after {_ms(attempt['lasted_ms'])}"
        yield f"  the engine saw it as {attempt['id']}"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.2f} s" if milliseconds >= 1000 else f"{milliseconds:.1f} ms"
