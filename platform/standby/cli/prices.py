"""``standby prices``: what each rung costs, as measured."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from standby.cli.output import SHORT_DIGEST, print_json, print_table, size
from standby.cli.session import JsonOption, options
from standby.domain.durations import format_duration

UNMEASURED: Final = "not measured yet"
NONE_THERE: Final = "no such rung"

# The names that the API gives the steps, in the order in which an instance climbs and descends.
_STEPS: Final = ("cold→staged", "staged→ready", "zygote→ready", "asleep→ready", "ready→asleep")
_ZYGOTE_STEP: Final = "zygote→ready"


def prices(
    ctx: typer.Context,
    node: Annotated[str | None, typer.Option(help="Only what this node measured.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model, with all its weights.")] = None,
    json: JsonOption = False,
) -> None:
    """Show what each rung of the ladder costs here: seconds and memory, as measured.

    Every climb and every sleep is measured on its node, for each model with given engine options.

    Seconds: the average (the newest counts 30 %), the 95th percentile of the last 32, and how many there were.

    A climb begins when its memory is granted and ends with the first generated token; a fetch is a step of its own.

    Memory is of the whole process tree; pages that several processes share are divided among them.

    You see the models that you have registered; an administrator sees all.

    Example: standby prices --model smol
    """
    session = options(ctx, json)
    given = {name: value for name, value in (("node", node), ("model", model)) if value is not None}
    answer = session.call("GET", "/api/v1/prices", params=given or None)
    if session.json:
        print_json(answer)
        return
    rows = answer["prices"]
    _print_steps(rows)
    if rows:
        print()
        _print_memory(rows)
    if answer["zygotes"]:
        print()
        _print_zygotes(answer["zygotes"])


def _print_steps(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("NODE", "MODEL", "ENGINE", *(step.upper() for step in _STEPS)),
        [(row["node"], _model(row), row["engine"], *(_step(row, step) for step in _STEPS)) for row in rows],
        empty="nothing is measured yet: prices come with the first climb of a model",
    )


def _print_memory(rows: list[dict[str, Any]]) -> None:
    columns = ("awake", "asleep", "peak", "device_awake", "device_asleep")
    print_table(
        ("NODE", "MODEL", "AWAKE", "ASLEEP", "PEAK", "DEVICE AWAKE", "DEVICE ASLEEP"),
        [(row["node"], _model(row), *(_bytes(row["footprint"][name]) for name in columns)) for row in rows],
        empty="",
    )


def _print_zygotes(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("NODE", "ENGINE", "ZYGOTE HATCHES IN"),
        [(row["node"], row["engine"], _price(row["hatch"])) for row in rows],
        empty="",
    )


def _model(row: dict[str, Any]) -> str:
    return ", ".join(row["models"]) or f"{row['digest'][:SHORT_DIGEST]} (not registered any more)"


def _step(row: dict[str, Any], step: str) -> str:
    price = row["transitions"].get(step)
    if price is not None:
        return _price(price)
    return NONE_THERE if step == _ZYGOTE_STEP and not row["has_zygote"] else UNMEASURED


def _price(price: dict[str, Any]) -> str:
    average, p95 = format_duration(price["seconds"]), format_duration(price["p95"])
    return f"{average} (p95 {p95}, n {price['samples']})"


def _bytes(count: int | None) -> str:
    return UNMEASURED if count is None else size(count)
