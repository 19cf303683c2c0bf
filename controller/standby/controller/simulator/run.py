"""Carries out ``standby simulate``: reads, replays with a progress bar, prints, draws."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from standby.controller.simulator import cost_model, known, plots, tables, token_report, token_run, tokens
from standby.controller.simulator.catalogue import Setting, chosen
from standby.controller.simulator.protocol import Caps
from standby.controller.simulator.report import Report
from standby.controller.simulator.trace import Trace, read
from standby.domain.errors import InvalidInput

# A pipe has no width of its own, and a table that is cut in two helps nobody.
_PIPE_WIDTH: Final = 200


@dataclass(frozen=True, slots=True)
class Order:
    """What the command line asked for."""

    trace: Path
    policies: tuple[str, ...] = ("all",)
    cost_model: Path | None = None
    seed: int = 1
    prestaged: bool = False
    device_cap: float | None = None
    host_cap: float | None = None
    wait_price: float = 100.0
    warm_up_s: float | None = None
    as_json: bool = False
    plots: Path | None = None

    def setting(self, trace: Trace) -> Setting:
        """Return what to replay, with the cost model that was named. Raises InvalidInput."""
        capped = self.device_cap is not None or self.host_cap is not None
        model = cost_model.CostModel() if self.cost_model is None else cost_model.load(self.cost_model)
        return Setting(
            trace=trace,
            model=model if self.warm_up_s is None else replace(model, warm_up_s=self.warm_up_s),
            seed=self.seed,
            prestaged=self.prestaged,
            caps=Caps(self.device_cap, self.host_cap) if capped else None,
            wait_price=self.wait_price,
        )


def simulate(order: Order) -> None:
    """Replay and print. Raises InvalidInput, and ConfigurationError where pictures are wanted and cannot be drawn."""
    trace = read(order.trace)
    if trace.stamps is not None and _of_tokens(order, trace):
        return
    setting = order.setting(trace)
    names = chosen(order.policies, capped=setting.caps is not None)
    if order.plots is not None:
        plots.ensure_possible()  # before minutes of work, not after
    reports = replayed(setting, names)
    drawn = plots.draw(reports, setting.wait_price, order.plots) if order.plots is not None else []
    if order.as_json:
        print(json.dumps(_as_json(setting, reports), indent=2))  # noqa: T201 - it is the answer
        return
    console = _console()
    console.print(tables.summary(reports, setting))
    console.print(tables.per_function(reports))
    for path in drawn:
        console.print(f"drawn: {path}")


def _of_tokens(order: Order, trace: Trace) -> bool:
    """Replay requests with tokens and print, where the policies are of that kind; return False where they are not."""
    # The policies' names depend on the model, and a cost model of functions is no token model.
    wanted = token_run.chosen(order.policies, tokens.TokenModel())
    if wanted is None:
        return False
    model = tokens.TokenModel() if order.cost_model is None else tokens.load(order.cost_model)
    wanted = token_run.chosen(order.policies, model) or wanted
    if order.prestaged or order.device_cap is not None or order.host_cap is not None or order.warm_up_s is not None:
        raise InvalidInput(
            "prestaged, memory caps and a warm-up have no meaning for requests with tokens",
            remedy="leave them out; the token model of --cost-model says on which rung instances rest",
        )
    if order.plots is not None:
        plots.ensure_possible()
    setting = token_run.TokenSetting(trace, model)
    with _progress() as shown:
        reports = [setting.replay(name) for name in shown.track(wanted, description="replaying")]
    drawn = plots.draw_requests(reports, order.plots) if order.plots is not None else []
    if order.as_json:
        print(json.dumps(setting.as_json(reports), indent=2))  # noqa: T201 - it is the answer
        return True
    console = _console()
    console.print(token_report.table(reports, model, f"{trace.functions[0]}: {trace.invocations:,} requests"))
    for path in drawn:
        console.print(f"drawn: {path}")
    return True


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def replayed(setting: Setting, names: Sequence[str]) -> list[Report]:
    """Return one report per name, with a progress bar on a terminal."""
    reports = []
    with _progress() as shown:
        task = shown.add_task("replaying", total=len(names) * setting.trace.invocations)
        for name in names:
            shown.update(task, description=name)
            reports.append(setting.replay(name, lambda done: shown.advance(task, done)))
    return reports


def check_known(order: Order) -> None:
    """Replay the known rows and print both figures of each cell."""
    console = _console()
    rows = list(known.check(order.setting(read(order.trace))))
    console.print(tables.against_known(rows))
    cells = [cell for _, _, compared in rows for cell in compared]
    console.print(f"{sum(cell.agrees for cell in cells)} of {len(cells)} figures agree within 2 %")


def _as_json(setting: Setting, reports: Sequence[Report]) -> dict[str, Any]:
    return {
        "seed": setting.seed,
        "prestaged": setting.prestaged,
        "device_cap": setting.caps.device if setting.caps else None,
        "host_cap": setting.caps.host if setting.caps else None,
        "functions": len(setting.trace.functions),
        "models_gb": sum(setting.sizes()),
        "policies": [report.as_dict(setting.wait_price, functions=True) for report in reports],
    }


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
