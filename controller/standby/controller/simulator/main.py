"""``standby simulate``: what a policy would have cost on a trace, and how long callers would have waited."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from standby.domain.errors import ConfigurationError

_NEEDS = "pip install 'standby[simulate]'"


def command(
    trace: Annotated[Path, typer.Option(help="CSV: counts per minute and function, or one time-stamped request per line.")],
    policy: Annotated[list[str] | None, typer.Option(help="A policy's name, or all; may be given several times.")] = None,
    cost_model: Annotated[
        Path | None, typer.Option(help="JSON: prices, or times of tokens for requests; default: the built-in ones.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the arrivals inside each minute and of the models' sizes.")] = 1,
    prestaged: Annotated[bool, typer.Option("--prestaged", help="Weights are on the disk from the registration on.")] = False,
    device_cap: Annotated[
        float | None, typer.Option(min=0.0, help="Device memory as a share of all models together, e.g. 0.25.")
    ] = None,
    host_cap: Annotated[float | None, typer.Option(min=0.0, help="The same of host memory, for what is asleep.")] = None,
    wait_price: Annotated[
        float, typer.Option("--lambda", min=0.0, help="Price of a second of a caller's wait, in GB·s of device memory.")
    ] = 100.0,
    check_known: Annotated[
        bool, typer.Option("--check-known", help="Replay the rows whose figures are known, and print both side by side.")
    ] = False,
    warm_up: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds that run and are not counted; default: the cost model's, one hour.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with each function's line.")] = False,
    plots: Annotated[Path | None, typer.Option(help="Folder for pictures of cost against waiting; needs matplotlib.")] = None,
) -> None:
    """Replay a trace under one or all policies: cold starts, waits, wasted memory, cost.

    Time-stamped requests are served by instances that take time for tokens, under fixed-N, kpa, reactive or predictive: first
    tokens, pace, GPU-seconds per 1,000 tokens.
    """
    try:
        # numpy and matplotlib are an extra: a live controller needs neither.
        from standby.controller.simulator import run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise ConfigurationError("simulating needs numpy, which is not installed", remedy=f"install it: {_NEEDS}") from error
    order = run.Order(
        trace=trace,
        policies=tuple(policy or ["all"]),
        cost_model=cost_model,
        seed=seed,
        prestaged=prestaged,
        device_cap=device_cap,
        host_cap=host_cap,
        wait_price=wait_price,
        warm_up_s=warm_up,
        as_json=json,
        plots=plots,
    )
    if check_known:
        run.check_known(order)
    else:
        run.simulate(order)
