"""What a replay of requests with tokens found: waits for first tokens, pace, and device time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from standby.controller.simulator.fleet import Fleet, Phase, Request
from standby.controller.simulator.report import among
from standby.controller.simulator.tokens import TokenModel
from standby.domain.instance import Rung


@dataclass(frozen=True, slots=True)
class TokenReport:
    """One replay; all requests count. Times in seconds.

    ``first_*`` are waits for the first token from the arrival on; ``added_p99_s`` is that without the request's own prefill,
    which no number of instances can spare. ``tpot_*`` are per token after the first. ``slo_share`` had their first token in
    time. ``gpu_s`` is the time in which instances held their GPUs (starting, ready, draining, falling asleep), times the GPUs
    of one; ``starting_gpu_s`` the part before they were ready; ``asleep_s`` what instances spent asleep, which costs host
    memory and a residue. ``up_mean`` is how many held their GPUs on average.
    """

    policy: str
    requests: int
    tokens: int
    first_p50_s: float
    first_p90_s: float
    first_p99_s: float
    first_max_s: float
    added_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    slo_share: float
    gpu_s: float
    starting_gpu_s: float
    asleep_s: float
    up_mean: float
    starts: int

    @property
    def gpu_s_per_1k(self) -> float:
        """GPU-seconds for each thousand tokens that were generated."""
        return 1000 * self.gpu_s / self.tokens if self.tokens else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON holds it."""
        return asdict(self) | {"gpu_s_per_1k": self.gpu_s_per_1k}


def token_report(policy: str, requests: Sequence[Request], fleet: Fleet, model: TokenModel) -> TokenReport:
    """Sum up a replay that has ended."""
    number = len(requests)
    firsts = sorted(one.first_at - one.came for one in requests)
    added = sorted(max(0.0, one.first_at - one.came - model.prefill(one.prompt)) for one in requests)
    paces = sorted((one.done_at - one.first_at) / (one.answer - 1) for one in requests if one.answer > 1)
    held = sum(one.seconds[phase] for one in fleet.instances for phase in Phase if phase is not Phase.RESTING)
    return TokenReport(
        policy=policy,
        requests=number,
        tokens=sum(one.answer for one in requests),
        first_p50_s=among(firsts, number, 0.5),
        first_p90_s=among(firsts, number, 0.9),
        first_p99_s=among(firsts, number, 0.99),
        first_max_s=firsts[-1] if firsts else 0.0,
        added_p99_s=among(added, number, 0.99),
        tpot_p50_s=among(paces, len(paces), 0.5),
        tpot_p99_s=among(paces, len(paces), 0.99),
        slo_share=sum(first <= model.slo_s for first in firsts) / number if number else 1.0,
        gpu_s=held * model.devices,
        starting_gpu_s=sum(one.seconds[Phase.STARTING] for one in fleet.instances) * model.devices,
        asleep_s=sum(one.seconds[Phase.RESTING] for one in fleet.instances if one.rung is Rung.ASLEEP),
        up_mean=held / fleet.closed_at if fleet.closed_at else 0.0,
        starts=fleet.starts,
    )


def table(reports: Iterable[TokenReport], model: TokenModel, title: str) -> Table:
    """Return one line per policy."""
    said = f"{title}; {model.slots} slots, {model.devices} GPUs each, at most {model.instances} instances"
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, title=said, title_justify="left")
    shown.add_column("policy")
    columns = ("first p50 s", "p90", "p99", "max", "added p99", f"≤ {model.slo_s:g} s %", "TPOT p50 ms", "p99")
    for column in (*columns, "GPU·s", "starting", "per 1k tokens", "up", "starts"):
        shown.add_column(column, justify="right")
    for one in reports:
        shown.add_row(
            one.policy,
            f"{one.first_p50_s:.3f}",
            f"{one.first_p90_s:.3f}",
            f"{one.first_p99_s:.3f}",
            f"{one.first_max_s:.1f}",
            f"{one.added_p99_s:.3f}",
            f"{100 * one.slo_share:.2f}",
            f"{1000 * one.tpot_p50_s:.0f}",
            f"{1000 * one.tpot_p99_s:.0f}",
            f"{one.gpu_s:,.0f}",
            f"{one.starting_gpu_s:,.0f}",
            f"{one.gpu_s_per_1k:.1f}",
            f"{one.up_mean:.2f}",
            str(one.starts),
        )
    return shown
