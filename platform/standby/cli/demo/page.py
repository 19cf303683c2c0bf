"""The demo's page: what one would show a colleague who has not seen it run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from standby.bench.compare.held import GB, Look, awake_bytes, counted, held_gb_s
from standby.bench.page import Banner, Code, Listing, Page, Part, Quote, Section, Table, Text, Tiles
from standby.bench.page_bars import Bar, Bars
from standby.bench.page_curves import Curves, Series
from standby.bench.page_scales import mebibytes, milliseconds, minute
from standby.bench.report_machine import machine_table
from standby.cli.demo.report import Call, DemoReport, Invocation
from standby.console.settings import ConsoleSettings
from standby.domain.instance import Phase

_HOURS_A_MONTH: Final = 730
_MOST_CALLS: Final = 40
_MODEL_TIME: Final = Phase.FIRST_TOKEN.value
_WORDS: Final = {
    "placed": "placed (bus and controller)",
    "fetched": "fetched from S3, verified",
    "forked": "process made",
    "loaded": "engine loads weights",
    "captured": "kernels captured",
    "probed": "proved by one token",
    _MODEL_TIME: "the model's own first token",
}
_RUNGS: Final = {
    "cold": "the bytes are in S3 only",
    "staged": "verified bytes on the node's disk",
    "asleep": "process kept, memory given back",
    "ready": "answering",
}


def demo_page(report: DemoReport, prices: ConsoleSettings) -> Page:
    """Return the page. Pure."""
    model = report.model.rpartition("/")[2]
    return Page(
        title="From S3 to the first token, and back to zero",
        lead=f"{model}, {report.model_bytes / 1e6:.0f} MB, served at zero, woken by requests, put to sleep by nobody asking: "
        f"one real run of {report.seconds:.0f} s on {minute(report.began_at)}, on processors alone.",
        kicker="standby demo",
        top=_top(report),
        sections=(
            _climbs(report),
            _answer(report),
            _held(report),
            _cost(report, prices),
            _many(report),
            _drain(report),
            _honest(report),
        ),
        footer="Written by standby demo at the end of its own run; every figure on this page was measured in that run unless "
        "its row says otherwise. The page asks nothing of any server.",
        data=report.model_dump(mode="json"),
    )


def first(report: DemoReport, rung: str) -> Invocation | None:
    """Return the first request that found ``rung``."""
    return next((one for one in report.invocations if one.rung == rung), None)


def _top(report: DemoReport) -> tuple[Part, ...]:
    faults = report.faults()
    said = "not as promised: " + "; ".join(faults) if faults else "Everything as promised: nothing failed, nothing is left."
    many, drain = report.concurrent_first_requests, report.drain
    times = [(rung, first(report, rung)) for rung in ("cold", "staged", "asleep", "ready")]
    tiles = [(milliseconds(one.first_token_ms), f"first token from {rung}", _RUNGS[rung]) for rung, one in times if one]
    tiles += [
        (f"{many.ok} of {many.requests}", "first requests at once, answered", f"by {many.activations} activation"),
        (f"{drain.failed}", "failed while the node restarted", f"of {drain.requests} requests under way or arriving"),
    ]
    return Banner(said, good=not faults), Tiles(tuple(tiles))


def _climbs(report: DemoReport) -> Section:
    kept = [one for one in report.invocations if one.label != "streamed"]
    climbing = [one for one in kept if one.rung != "ready"]
    rows = tuple(Bar(f"from {one.rung}", _parts(one), _RUNGS.get(one.rung, "")) for one in climbing)
    warm = [one for one in kept if one.rung == "ready"]
    rows += tuple(Bar(f"ready, request {place}", _parts(one)) for place, one in enumerate(warm, 1))
    return Section(
        "Up the ladder: to the first token",
        (
            Text("What the caller waited for, from sending the request to the first token in hand. No request was refused."),
            Bars("Time to the first token, by phase", rows),
            _phase_table(kept),
        ),
    )


def _parts(one: Invocation) -> tuple[tuple[str, float], ...]:
    return tuple((_WORDS.get(name, name), ms) for name, ms in one.phases_ms.items())


def _phase_table(kept: Sequence[Invocation]) -> Table:
    present = {name for one in kept for name in one.phases_ms}
    names = [phase.value for phase in Phase if phase.value in present]
    rows = tuple(
        (
            one.label,
            one.rung,
            *(milliseconds(one.phases_ms[name]) if name in one.phases_ms else "" for name in names),
            milliseconds(one.first_token_ms),
            milliseconds(one.total_ms),
        )
        for one in kept
    )
    columns = ("request", "found", *(name.replace("_", " ") for name in names), "1st token seen", "whole answer")
    return Table(columns, rows, "The same in figures", frozenset(range(2, len(columns))))


def _answer(report: DemoReport) -> Section:
    asked = [one for one in report.invocations if one.label != "streamed"]
    same = len({one.text for one in asked}) == 1
    said = (
        f"Asked {len(asked)} times, from every rung; the answer was the same to the letter each time."
        if same
        else "The answers differed between rungs."
    )
    return Section("What it answered", (Quote(report.question, report.answer), Text(said)))


def _held(report: DemoReport) -> Section:
    looks = looks_of(report)
    curve = tuple((look.at_s, look.resident_bytes / 2**20) for look in steps(counted(looks)))
    rows = [("ready", mebibytes(awake_bytes(looks)), "", _RUNGS["ready"])]
    rows += [
        (one.rung, mebibytes(one.resident_bytes), f"{one.after_s:.1f} s", one.reason or _RUNGS.get(one.rung, ""))
        for one in report.descents
    ]
    return Section(
        "Down the ladder: what each rung holds",
        (
            Text("Nobody asks, so the controller lets it fall, rung by rung, and says why."),
            Table(
                ("rung", "memory held", "after an idle time of", "why, in the controller's own words"),
                tuple(rows),
                numbers=frozenset({1, 2}),
            ),
            Curves(
                "Memory that the endpoint held",
                "seconds from the start",
                "MiB",
                (Series("held", curve),),
                x_words=lambda value: f"{value:.0f} s",
                y_words=lambda value: f"{value:.0f}",
                note="As its node measures it: proportional memory of the engine's processes. An engine that is not yet "
                "measured counts as large as it ever was. Bytes on the disk are not in it.",
            ),
        ),
    )


def steps(looks: Sequence[Look]) -> list[Look]:
    """Return the looks with each change as a step: before it nothing was seen to change. Looks without news are left out."""
    found = list(looks[:1])
    for before, after in pairwise(looks):
        if before.resident_bytes != after.resident_bytes:
            found += [before._replace(at_s=after.at_s), after]
    return [*found, *looks[-1:]]


def looks_of(report: DemoReport) -> list[Look]:
    """Return what was held, as whoever reckons with it takes it."""
    return [Look(one.at_s, one.state, one.resident_bytes) for one in report.held]


def _cost(report: DemoReport, prices: ConsoleSettings) -> Section:
    looks = looks_of(report)
    awake = awake_bytes(looks)
    if awake is None or len(looks) < 2:
        return Section("What it cost to hold", (Text("Not measured: no look met the endpoint while it was ready."),))
    seconds = looks[-1].at_s - looks[0].at_s
    held, always = held_gb_s(looks), awake * seconds / GB
    month = awake / GB * _HOURS_A_MONTH * prices.usd_host_gb_hour
    rows = (
        ("standby, in this run", f"{held:.2f} GB·s", f"{held / always:.0%}", "measured"),
        ("always on, for the same time", f"{always:.2f} GB·s", "100%", "reckoned: ready memory times the same seconds"),
        ("nobody asks at all", "0 GB·s", "0%", "cold holds no memory"),
    )
    return Section(
        "What it cost to hold",
        (
            Table(("", "memory times time", "share", "how it is known"), rows, numbers=frozenset({1, 2})),
            Text(
                f"The demo asks all the time, so this is close to its worst case. Always on, this model would cost "
                f"${month:.2f} for a month of {_HOURS_A_MONTH} hours at ${prices.usd_host_gb_hour:g} for a GB and hour (a "
                "published list price by memory, set by STANDBY_USD_HOST_GB_HOUR); an endpoint that nobody asks costs nothing."
            ),
            Text("Only the endpoint's own memory is counted; gateway, controller, node and bus serve all endpoints together."),
        ),
    )


def _many(report: DemoReport) -> Section:
    many = report.concurrent_first_requests
    climbs = "1 activation" if many.activations == 1 else f"{many.activations} activations"
    good = [call for call in report.first_calls if call.first_token_ms is not None]
    return Section(
        "Many first requests at once, at zero",
        (
            Text(f"{many.requests} callers came at the same moment while nothing ran: {many.ok} were answered, by {climbs}."),
            Bars(
                "Each caller's wait",
                tuple(
                    Bar(f"caller {place}", _wait(call))
                    for place, call in enumerate(sorted(good, key=lambda call: call.total_ms or 0.0), 1)
                ),
                note="In the order of their ends. The instance has four slots: they are served in turns.",
            ),
        ),
    )


def _wait(call: Call) -> tuple[tuple[str, float], ...]:
    assert call.first_token_ms is not None
    assert call.total_ms is not None
    return ("until the first token", call.first_token_ms), ("until the whole answer", call.total_ms - call.first_token_ms)


def _drain(report: DemoReport) -> Section:
    calls, drain = report.drain_calls, report.drain
    shown = calls[:_MOST_CALLS]
    rows = tuple(
        Bar(f"request {place}", () if call.total_ms is None else _wait(call), "failed" if call.total_ms is None else "",
            start=call.at_s * 1000)
        for place, call in enumerate(shown, 1)
    )  # fmt: skip
    left_out = f" The first {len(shown)} of {len(calls)} are shown." if len(shown) < len(calls) else ""
    return Section(
        "The node is restarted under load",
        (
            Text(
                f"Callers kept calling while the node was told to stop and came back: {drain.requests} requests, "
                f"{drain.failed} failed. What ran came to its end, what arrived waited for the new one."
            ),
            Bars(
                "Each request, where it began and how long it took",
                rows,
                note=f"Long bars are requests that waited for the node's return instead of failing.{left_out}",
            ),
        ),
    )


def _honest(report: DemoReport) -> Section:
    return Section(
        "What was measured, and what was not",
        (
            Listing(
                (
                    "Measured: all times, by the caller's own clock; phases, by the gateway and the node; memory, by the node.",
                    "One run: every time is a single measurement. Distributions come from standby bench and standby compare.",
                    "S3 is a local server: a real one is further away, and the fetch takes longer by that.",
                    "It falls so soon on purpose: a wait is priced next to nothing, so that all rungs are seen in a minute.",
                    "Not measured: GPUs, several nodes, SageMaker.",
                    f"Processes left running at the end: {report.leftover_processes}.",
                )
            ),
            machine_table(report.machine),
            Text("Make it yourself:"),
            Code("make demo          # or: standby demo --html report.html"),
        ),
    )
