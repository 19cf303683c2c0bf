"""Requests with tokens for ``bench_policy``: parts of a trace, synthetic bursts, and scaling rules compared on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
from rich.console import Console

from standby.controller.simulator import scalers, token_report
from standby.controller.simulator.token_report import TokenReport
from standby.controller.simulator.token_run import TokenSetting
from standby.controller.simulator.tokens import TokenModel
from standby.controller.simulator.trace import Trace, read
from standby.domain.instance import Rung

FILES: Final[Mapping[str, str]] = {"conv": "azure_llm_2023_conv.csv", "code": "azure_llm_2023_code.csv"}
RULES: Final = ("kpa", "reactive", "predictive")
# The router draws pairs of instances; one draw of reactive scaling has a p99 that is a tenth beside another's.
DRAWS: Final = 5
GOALS: Final = {"llm_p99_vs_reactive": 0.5, "llm_gpu_s_vs_reactive": 1.10}


def compared(folder: Path, seed: int, console: Console) -> dict[str, float]:
    """Replay the traces in ``folder``, print tables, and return the worst ratios to reactive scaling and each trace's.

    Of each trace the ratios are those of means over DRAWS of the router.

    Patel et al., "Splitwise" (ISCA 2024), published these traces. Without them bursts stand in.
    """
    model = TokenModel()
    traces = {name: read(folder / file) for name, file in FILES.items() if (folder / file).exists()}
    if not traces:
        console.print(f"no trace of requests in {folder}: synthetic bursts are replayed; the goals are for the real ones")
        traces = {"bursts": bursts(seed)}
    found: dict[str, float] = {}
    for name, trace in traces.items():
        reports = _replayed(trace, tuple(scalers.names(model)), model, console, name)
        drawn = reports | {rule: _drawn(trace, rule, model, reports[rule], console, name) for rule in RULES}
        found |= {f"llm_{name}_{key}": value for key, value in _ratios(drawn).items()}
    for title, trace, other in _more(traces, seed, model):
        _replayed(trace, RULES, other, console, title)
    worst = {goal: max(v for key, v in found.items() if key.endswith(goal.removeprefix("llm"))) for goal in GOALS}
    return worst | found


def _more(traces: Mapping[str, Trace], seed: int, model: TokenModel) -> Iterator[tuple[str, Trace, TokenModel]]:
    """Yield what shows whether the figures are chance: halves, bursts that are no trace, longer climbs."""
    for name, trace in traces.items():
        middle = trace.duration_s / 2
        yield f"{name}, first half", part(trace, 0.0, middle), model
        yield f"{name}, second half", part(trace, middle, trace.duration_s), model
    yield "bursts, CV 4", bursts(seed + 1), model
    for name, trace in traces.items():
        yield f"{name}, none asleep: climbs of 7.3 s", trace, replace(model, asleep=0, rest=Rung.ZYGOTE)
        yield f"{name}, none asleep: climbs of 40 s", trace, replace(model, asleep=0, rest=Rung.STAGED)


def _replayed(trace: Trace, rules: tuple[str, ...], model: TokenModel, console: Console, title: str) -> dict[str, TokenReport]:
    setting = TokenSetting(trace, model)
    reports = {rule: setting.replay(rule) for rule in rules}
    console.print(token_report.table(reports.values(), model, f"{title}: {trace.invocations:,} requests"))
    said = ", ".join(f"{key} {value:.3f}" for key, value in _ratios(reports).items())
    console.print(f"{title}, predictive: {said}")
    return reports


def _drawn(trace: Trace, rule: str, model: TokenModel, first: TokenReport, console: Console, title: str) -> TokenReport:
    """Return the means over as many draws of the router as are to be made."""
    every = [first, *(TokenSetting(trace, model, seed).replay(rule) for seed in range(1, DRAWS))]
    said = ", ".join(f"{one.first_p99_s:.3f} s at {one.gpu_s:,.0f} GPU-s" for one in every)
    console.print(f"{title}, {rule}, p99 to first token by draw: {said}")
    return replace(
        first,
        first_p99_s=fmean(one.first_p99_s for one in every),
        added_p99_s=fmean(one.added_p99_s for one in every),
        gpu_s=fmean(one.gpu_s for one in every),
    )


def _ratios(reports: Mapping[str, TokenReport]) -> dict[str, float]:
    ours, reactive, knative = reports["predictive"], reports["reactive"], reports["kpa"]
    fixed = [one for name, one in reports.items() if name.startswith("fixed")]
    # No rule can be better than everything ready all the time.
    bound = {"p99_bound": min(one.first_p99_s for one in fixed) / reactive.first_p99_s} if fixed else {}
    return bound | {
        "p99_vs_reactive": ours.first_p99_s / reactive.first_p99_s,
        "gpu_s_vs_reactive": ours.gpu_s / reactive.gpu_s,
        "added_vs_reactive": ours.added_p99_s / reactive.added_p99_s,
        "p99_vs_kpa": ours.first_p99_s / knative.first_p99_s,
        "gpu_s_vs_kpa": ours.gpu_s / knative.gpu_s,
    }


def part(trace: Trace, begin_s: float, end_s: float) -> Trace:
    """Return the requests of ``trace`` from ``begin_s`` to before ``end_s``, as a trace that begins then."""
    assert trace.stamps is not None
    assert trace.prompt_tokens is not None
    assert trace.answer_tokens is not None
    inside = (trace.stamps >= begin_s) & (trace.stamps < end_s)
    return replace(
        trace,
        duration_s=end_s - begin_s,
        stamps=trace.stamps[inside] - begin_s,
        prompt_tokens=trace.prompt_tokens[inside],
        answer_tokens=trace.answer_tokens[inside],
    )


def bursts(seed: int, *, per_s: float = 4.0, variation: float = 4.0, duration_s: float = 3600.0) -> Trace:
    """Return requests whose gaps are Gamma distributed with this coefficient of variation; lengths are exponential."""
    rng = np.random.default_rng([seed, 11])
    shape = variation**-2
    number = round(per_s * duration_s * 2)
    stamps = np.cumsum(rng.gamma(shape, 1 / (shape * per_s), number))
    stamps = stamps[stamps < duration_s]
    prompts, answers = (np.ceil(rng.exponential(mean, len(stamps))).astype(np.int64) for mean in (1000.0, 150.0))
    return Trace(("bursts",), duration_s, stamps=stamps, prompt_tokens=prompts, answer_tokens=answers)
