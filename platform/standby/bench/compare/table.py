"""The table of a comparison: pure, each cell with how it is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from standby.bench.compare.held import GB
from standby.bench.compare.ratio import in_words, rounds_in_words
from standby.bench.compare.values import Act, Burst, ColdStart, Comparison, Figure, Known, Row, Side
from standby.bench.page_scales import amount, mebibytes, seconds, share
from standby.bench.statistics import keeps, nearest_rank
from standby.bench.values import Sample, Slo
from standby.console.savings import HOUR_S, Memory, serverless_size
from standby.console.settings import ConsoleSettings

_PERCENTS: Final = (50, 95, 99)
PUBLISHED: Final = "AWS's Price List, us-east-1, September 2026"
_PUBLISHED_USD: Final = ConsoleSettings.model_fields["usd_serverless_gb_second"].default


def table(compared: Comparison, prices: ConsoleSettings) -> tuple[Row, ...]:
    """Return the rows, in the order in which a reader asks for them."""
    rows = [*_latencies(compared, "first token", _ttft), *_latencies(compared, "end to end", _e2e)]
    rows += [_failures(compared), *_cold(compared), *_bursts(compared), *_scaling_in(compared), *_violations(compared)]
    return (*rows, *_memory(compared), *_prices(compared, prices))


def phases(starts: Sequence[ColdStart]) -> tuple[tuple[str, float], ...]:
    """Return the median milliseconds of each phase of the starts that went well, with what is left up to the first token."""
    good = [one for one in starts if one.ttft_s is not None]
    names = dict.fromkeys(name for one in good for name, _ in one.phases_ms if name != "first_token")
    if not names:
        return ()
    found = [(name, median(dict(one.phases_ms).get(name, 0.0) for one in good)) for name in names]
    rest = median(
        max(0.0, (one.ttft_s or 0.0) * 1000 - sum(dict(one.phases_ms).get(name, 0.0) for name in names)) for one in good
    )
    return (*found, ("first token", rest))


# ---- rows --------------------------------------------------------------------------------------------------------


def _ttft(sample: Sample) -> float | None:
    return sample.ttft_s


def _e2e(sample: Sample) -> float | None:
    return sample.e2e_s


def _latencies(compared: Comparison, name: str, take: Callable[[Sample], float | None]) -> list[Row]:
    values = [sorted(v for one in side.samples if one.ok and (v := take(one)) is not None) for side in compared.sides]
    rows = []
    for percent in _PERCENTS:
        figures = [
            _measured(seconds(nearest_rank(own, percent)), f"of {len(own)}") if own else _missing(side, Act.WARM)
            for side, own in zip(compared.sides, values, strict=True)
        ]
        # Of a hundredth of a few requests nothing can be claimed.
        verdict = in_words(values[0], values[1], percent, seed=compared.workload.seed) if percent < 99 else ""
        rows.append(Row(name=f"{name}, P{percent}, warm", a=figures[0], b=figures[1], verdict=verdict))
    return rows


def _failures(compared: Comparison) -> Row:
    def figure(side: Side) -> Figure:
        if not side.samples:
            return _missing(side, Act.WARM)
        failed = [one for one in side.samples if not one.ok]
        return _measured(share(len(failed), len(side.samples)), failed[0].error if failed else "")

    return _row("failed, warm", compared, figure)


def _cold(compared: Comparison) -> list[Row]:
    def figure(side: Side) -> Figure:
        starts = side.cold_starts
        good = [one for one in starts if one.ttft_s is not None]
        if not good:
            if side.cold and not starts:
                return _missing(side, Act.COLD, "its answers say that it was ready each time")
            return _missing(side, Act.COLD, f"all {len(starts)} failed: {starts[0].error}" if starts else "")
        times = sorted(one.ttft_s or 0.0 for one in good)
        rungs = ", ".join(dict.fromkeys(one.rung for one in good if one.rung))
        failed = f", {len(starts) - len(good)} failed" if len(good) < len(starts) else ""
        awake = f", {len(side.cold) - len(starts)} left out that found it ready" if len(starts) < len(side.cold) else ""
        said = f"median of {len(good)}, {seconds(times[0])} to {seconds(times[-1])}{failed}{awake}"
        return _measured(seconds(median(times)), said + (f"; found {rungs}" if rungs else ""))

    def parts(side: Side) -> Figure:
        found = phases(side.cold_starts)
        if not found:
            return _missing(side, Act.COLD, "its answers name no phases" if side.cold else "")
        return _measured(", ".join(f"{name} {seconds(ms / 1000)}" for name, ms in found))

    def way(side: Side) -> Figure:
        ways = dict.fromkeys(one.reached for one in side.cold)
        return _measured("; ".join(ways)) if ways else _missing(side, Act.COLD)

    # Who is lost, or cannot be made cold any more, has no rounds from then on: those of before lie side by side.
    rounds = list(zip(compared.a.cold, compared.b.cold, strict=False))
    cold = [(a, b) for a, b in rounds if a.was_cold and b.was_cold]
    whole = [(a.ttft_s, b.ttft_s) for a, b in cold if a.ttft_s is not None and b.ttft_s is not None]
    verdict = rounds_in_words(whole)
    if verdict and len(whole) < len(rounds):
        verdict += f"; {len(rounds) - len(whole)} rounds left out, in which one failed or was ready"
    return [
        _row("cold start to the first token", compared, figure, verdict),
        _row("its phases, medians", compared, parts),
        _row("how it was made cold", compared, way),
    ]


def _bursts(compared: Comparison) -> list[Row]:
    most = max((one.requests for side in compared.sides for one in side.bursts), default=0)

    def figure(take: Callable[[Burst], float | None]) -> Callable[[Side], Figure]:
        def made(side: Side) -> Figure:
            times = [value for one in side.bursts if (value := take(one)) is not None]
            lost = sum(one.requests - one.ok for one in side.bursts)
            if not times:
                return _missing(side, Act.BURST, f"{lost} of the requests failed" if side.bursts else "")
            note = f"median of {len(times)}" + (f"; {lost} requests failed" if lost else "")
            return _measured(seconds(median(times)), note)

        return made

    return [
        _row(f"0 to {most or 'N'}: all running", compared, figure(lambda one: one.running_s)),
        _row(f"0 to {most or 'N'}: all served", compared, figure(lambda one: one.served_s)),
    ]


def _scaling_in(compared: Comparison) -> list[Row]:
    def figure(take: Callable[[Side], int]) -> Callable[[Side], Figure]:
        def made(side: Side) -> Figure:
            sent = sum(one.requests for one in side.scale_ins)
            if not sent:
                return _missing(side, Act.SCALE_IN)
            seen = ", ".join(dict.fromkeys(one.seen for one in side.scale_ins))
            return _measured(share(take(side), sent), f"seen {len(side.scale_ins)} times: {seen}")

        return made

    return [
        _row("interrupted while scaling in", compared, figure(lambda side: sum(one.interrupted for one in side.scale_ins))),
        _row("5xx while scaling in", compared, figure(lambda side: sum(one.server_errors for one in side.scale_ins))),
        _row("failed in any way while scaling in", compared, figure(lambda side: sum(one.failed for one in side.scale_ins))),
    ]


def _violations(compared: Comparison) -> list[Row]:
    slo = compared.slo
    if not slo.bounded:
        return []

    def warm(side: Side) -> Figure:
        late = sum(not keeps(one, slo) for one in side.samples)
        return _measured(share(late, len(side.samples))) if side.samples else _missing(side, Act.WARM)

    def cold(side: Side) -> Figure:
        starts = side.cold_starts
        late = sum(_is_late(one, slo) for one in starts)
        return _measured(share(late, len(starts))) if starts else _missing(side, Act.COLD)

    said = " and ".join(_bounds(slo))
    return [_row(f"above {said}, warm", compared, warm), _row(f"above {said}, cold", compared, cold)]


def _memory(compared: Comparison) -> list[Row]:
    def held(side: Side) -> Figure:
        holding = side.holding
        if holding.gb_s is None:
            return _unknown(holding.words)
        return _measured(f"{holding.gb_s:.1f} GB·s", f"in {holding.seconds:.0f} s; {holding.words}")

    def awake(side: Side) -> Figure:
        if side.holding.awake_bytes is None:
            return _unknown(side.holding.words)
        return _measured(mebibytes(side.holding.awake_bytes))

    return [_row("memory when awake", compared, awake), _row("memory times time, all acts", compared, held)]


def _prices(compared: Comparison, prices: ConsoleSettings) -> list[Row]:
    def held(side: Side) -> Figure:
        holding = side.holding
        if holding.gb_s is None or not side.sent:
            why = "real SageMaker bills by its own price, below" if side.name.startswith("sagemaker:") else holding.words
            return _unknown(why)
        usd = holding.gb_s * prices.usd_host_gb_hour / HOUR_S / side.sent * 1000
        return _reckoned(usd, f"memory held, at ${prices.usd_host_gb_hour:g} for a GB and hour; {side.sent} requests in all")

    def always(side: Side) -> Figure:
        holding = side.holding
        if holding.awake_bytes is None or not side.sent or not holding.seconds:
            return _unknown(holding.words)
        gb_s = holding.awake_bytes / GB * holding.seconds
        return _reckoned(
            gb_s * prices.usd_host_gb_hour / HOUR_S / side.sent * 1000, "awake all the time, for the same requests"
        )

    def serverless(side: Side) -> Figure:
        good = [one.e2e_s for one in side.samples if one.ok]
        if not good:
            return _missing(side, Act.WARM)
        size, awake = compared.serverless_gb, side.holding.awake_bytes
        if size is None and awake is None:
            why = "its memory is not known; --serverless-gb names SageMaker's size"
            return _unknown(why)
        size = size or serverless_size(Memory(host=awake or 0))
        usd = sum(good) / len(good) * size * prices.usd_serverless_gb_second * 1000
        rate = f"{prices.usd_serverless_gb_second:.8f}".rstrip("0")
        published = prices.usd_serverless_gb_second == _PUBLISHED_USD
        whose, known = (PUBLISHED, Known.PUBLISHED) if published else ("a price that is set here", Known.RECKONED)
        note = f"{whose}: ${rate} for a GB and second; {size} GB; for the durations of the warm requests here"
        return Figure(text=_usd(usd), known=known, note=note)

    return [
        _row("price of 1,000 requests", compared, held),
        _row("the same, always on", compared, always),
        _row("the same on SageMaker Serverless", compared, serverless),
    ]


# ---- cells -------------------------------------------------------------------------------------------------------


def _row(name: str, compared: Comparison, figure: Callable[[Side], Figure], verdict: str = "") -> Row:
    return Row(name=name, a=figure(compared.a), b=figure(compared.b), verdict=verdict)


def _measured(text: str, note: str = "") -> Figure:
    return Figure(text=text, known=Known.MEASURED, note=note)


def _reckoned(usd: float, note: str) -> Figure:
    return Figure(text=_usd(usd), known=Known.RECKONED, note=note)


def _unknown(why: str) -> Figure:
    return Figure(text="not measured", known=Known.NOT_MEASURED, note=why)


def _missing(side: Side, act: Act, why: str = "") -> Figure:
    """Return a cell that says why there is no figure."""
    if not why and side.death is not None:
        why = f"lost after {side.death.at_s:.0f} s"
    return _unknown(why or side.skipped.get(act, "stopped before"))


def _usd(value: float) -> str:
    return f"${amount(value)}"


def _bounds(slo: Slo) -> list[str]:
    named = (("first token", slo.ttft_s), ("per token", slo.tpot_s), ("end to end", slo.e2e_s))
    return [f"{seconds(limit)} {name}" for name, limit in named if limit is not None]


def _is_late(one: ColdStart, slo: Slo) -> bool:
    late = slo.ttft_s is not None and one.ttft_s is not None and one.ttft_s > slo.ttft_s
    return one.ttft_s is None or late or (slo.e2e_s is not None and one.e2e_s is not None and one.e2e_s > slo.e2e_s)
