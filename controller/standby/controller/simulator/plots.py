"""Pictures of the trade between cost and waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from standby.controller.simulator.report import Report
from standby.controller.simulator.token_report import TokenReport
from standby.domain.errors import ConfigurationError


def ensure_possible() -> None:
    """Raise ConfigurationError where matplotlib is not installed."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "pictures need matplotlib, which is not installed", remedy="install it: pip install 'standby[simulate]'"
        ) from error
    mpl.use("agg")


def frontier(reports: Sequence[Report], wait: Callable[[Report], float]) -> list[Report]:
    """Return the reports that no other one beats in both cost and wait, cheapest first."""
    best: list[Report] = []
    for one in sorted(reports, key=lambda report: (report.cost, wait(report))):
        if not best or wait(one) < wait(best[-1]):
            best.append(one)
    return best


def draw(reports: Sequence[Report], wait_price: float, folder: Path) -> list[Path]:
    """Draw cost against mean wait and against p99.9, and J as bars; return the files.

    Raises ConfigurationError where matplotlib is lacking or the folder cannot be written.
    """
    ensure_possible()
    with _writing_to(folder):
        return [
            _trade(reports, lambda one: one.wait_mean_s, "mean added wait in s", folder / "cost-mean-wait.png"),
            _trade(
                reports, lambda one: one.wait_p999_s, "99.9th percentile of added waits in s", folder / "cost-p999-wait.png"
            ),
            _bars(reports, wait_price, folder / "j.png"),
        ]


def draw_requests(reports: Sequence[TokenReport], folder: Path) -> list[Path]:
    """Draw GPU-seconds against the 99th percentile of first tokens; return the file. Raises as ``draw``."""
    ensure_possible()
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    path = folder / "gpu-first-token.png"
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for one in reports:
        color = "tab:gray" if one.policy.startswith("fixed") else "tab:blue"
        axes.plot(one.gpu_s, one.first_p99_s, "o", color=color)
        axes.annotate(one.policy, (one.gpu_s, one.first_p99_s), xytext=(5, 4), textcoords="offset points", fontsize=8)
    axes.set_yscale("log")
    axes.margins(x=0.15, y=0.1)
    axes.set_xlabel("GPU-seconds")
    axes.set_ylabel("99th percentile of waits for the first token, in s")
    axes.grid(visible=True, alpha=0.3)
    with _writing_to(folder):
        figure.savefig(path, dpi=120)
    return [path]


@contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ConfigurationError(
            f"cannot write pictures to {folder}: {error.strerror}", remedy="name another folder"
        ) from error


def _trade(reports: Sequence[Report], wait: Callable[[Report], float], label: str, path: Path) -> Path:
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    for one in reports:
        axes.plot(one.cost / 3600, wait(one), "o", color="tab:blue")
        axes.annotate(one.policy, (one.cost / 3600, wait(one)), xytext=(5, 4), textcoords="offset points", fontsize=8)
    best = frontier(reports, wait)
    axes.step(
        [one.cost / 3600 for one in best], [wait(one) for one in best], where="post", color="tab:orange", label="frontier"
    )
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=0.01)
    axes.margins(x=0.15)
    axes.set_ylim(0, 1.5 * max(0.01, *(wait(one) for one in reports)))
    axes.set_xlabel("cost of memory without work, in GB·h of device memory")
    axes.set_ylabel(label)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return path


def _bars(reports: Sequence[Report], wait_price: float, path: Path) -> Path:
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    figure = Figure(figsize=(9, 0.35 * len(reports) + 1.5), layout="constrained")
    axes = figure.subplots()
    ordered = sorted(reports, key=lambda one: -one.j(wait_price))
    names = [one.policy for one in ordered]
    axes.barh(names, [one.cost / 3600 for one in ordered], label="memory")
    waits = [wait_price * one.wait_total_s / 3600 for one in ordered]
    axes.barh(names, waits, left=[one.cost / 3600 for one in ordered], label=f"waits at {wait_price:g} per s")
    axes.set_xlabel("GB·h of device memory")
    axes.legend()
    figure.savefig(path, dpi=120)
    return path
