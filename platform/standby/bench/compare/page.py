"""The page of a comparison: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from standby.bench.compare.ratio import FEWEST
from standby.bench.compare.table import phases
from standby.bench.compare.values import ColdStart, Comparison, Figure, Known, Row, Side
from standby.bench.page import Banner, Cell, Listing, Page, Part, Section, Table, Text, Tiles, Tone
from standby.bench.page_bars import Bar, Bars
from standby.bench.page_scales import minute
from standby.bench.report_machine import machine_table
from standby.bench.report_samples import histogram, percentile_curves
from standby.bench.values import Sample

_MOST_STARTS: Final = 12
_MOST_DATA: Final = 5000


def compare_page(compared: Comparison, rows: Sequence[Row]) -> Page:
    """Return the page."""
    a, b = compared.sides
    return Page(
        title=f"{a.name} beside {b.name}",
        lead=f"A is {a.kind}. B is {b.kind}. The same requests to both, by turns in the order ABBA, seed "
        f"{compared.workload.seed}; begun {minute(compared.began_at)}, {compared.seconds:.0f} s.",
        kicker="standby compare",
        top=(*banners(compared), *_tiles(rows)),
        sections=(
            Section("Side by side", (_table(rows),)),
            _warm(compared),
            _cold(compared),
            _bursts(compared),
            _how(compared),
        ),
        footer=f"Latencies count from the moment in which a request was due. Ratios come with the interval that holds them in "
        f"95 of 100 cases: of warm percentiles by bootstrap, of cold starts round by round by the sign test. Below {FEWEST} "
        "values nothing is claimed.",
        data=_data(compared),
    )


def _data(compared: Comparison) -> object:
    """Return everything for programs; of very many requests only what acts measured, or the page would be slow to open."""
    many = sum(len(side.samples) for side in compared.sides) > _MOST_DATA
    exclude = {"a": {"samples"}, "b": {"samples"}} if many else None
    return compared.model_dump(mode="json", exclude=exclude)


def banners(compared: Comparison) -> list[Part]:
    """Return what nobody may miss: who was lost, when and how, and that it was stopped."""
    found: list[Part] = []
    for letter, side in zip("AB", compared.sides, strict=True):
        if side.death is not None:
            found.append(Banner(in_words_of_death(letter, side), good=False))
    if compared.interrupted:
        found.append(Banner(f"Stopped after {compared.seconds:.0f} s: what was measured until then is here.", good=False))
    if not any(side.sent for side in compared.sides):
        found.append(Banner("No request was sent: nothing was measured.", good=False))
    return found


def _tiles(rows: Sequence[Row]) -> list[Part]:
    """Return the few rows that most people look for, where both sides have them."""
    wanted = {"cold start to the first token", "first token, P50, warm", "first token, P95, warm"}
    both = [row for row in rows if row.name in wanted and Known.NOT_MEASURED not in {row.a.known, row.b.known}]
    items = tuple((f"{row.a.text} | {row.b.text}", f"{row.name}: A | B", row.verdict) for row in both)
    return [Tiles(items)] if items else []


def in_words_of_death(letter: str, side: Side) -> str:
    """Return when and how a side was lost."""
    assert side.death is not None
    death = side.death
    return f"{letter} ({side.name}) was lost {death.at_s:.1f} s after the start, during {death.act.value}: {death.words}"


def _table(rows: Sequence[Row]) -> Table:
    body = tuple((row.name, _cell(row.a), _cell(row.b), row.verdict) for row in rows)
    return Table(("", "A", "B", "what may be said"), body, "Each cell says how it is known")


def _cell(figure: Figure) -> Cell:
    if figure.known is Known.NOT_MEASURED:
        return Cell(figure.text, figure.note, Tone.SOFT)
    return Cell(figure.text, ", ".join(part for part in (figure.known.value, figure.note) if part))


def _warm(compared: Comparison) -> Section:
    groups = [(_name(letter, side), _good(side)) for letter, side in zip("AB", compared.sides, strict=True)]
    first = [(name, [one.ttft_s for one in samples if one.ttft_s is not None]) for name, samples in groups]
    whole = [(name, [one.e2e_s for one in samples]) for name, samples in groups]
    if not any(samples for _, samples in groups):
        return Section("Warm", (Text("Not measured.", Tone.SOFT),))
    rungs = tuple(
        (name, ", ".join(f"{rung or 'not said'}: {count}" for rung, count in Counter(one.rung for one in samples).items()))
        for name, samples in groups
    )
    return Section(
        "Warm",
        (
            percentile_curves("Time to the first token", first),
            percentile_curves("End to end", whole),
            histogram("How long requests took", "end to end", whole),
            Table(("", "rung that requests met"), rungs, "Where the answers came from, as they say themselves"),
        ),
    )


def _good(side: Side) -> list[Sample]:
    return [one for one in side.samples if one.ok]


def _name(letter: str, side: Side) -> str:
    return f"{letter}: {side.name}"


def _cold(compared: Comparison) -> Section:
    good = [[one for one in side.cold_starts if one.ttft_s is not None] for side in compared.sides]
    medians = tuple(
        Bar(_name(letter, side), phases(starts), f"median of {len(starts)}")
        for letter, side, starts in zip("AB", compared.sides, good, strict=True)
    )
    each = tuple(
        Bar(f"{letter}, start {number}", _parts(one), one.error or (f"found {one.rung}" if one.rung else ""))
        for letter, side in zip("AB", compared.sides, strict=True)
        for number, one in enumerate(side.cold[:_MOST_STARTS], 1)
    )
    if not each:
        return Section("Cold starts", (Text("Not measured.", Tone.SOFT),))
    return Section(
        "Cold starts",
        (
            Bars(
                "To the first token, by phase, medians", medians, note="Each phase's own median: their sum is about the whole."
            ),
            Bars("Each of them", each, note="A start whose answer names no phases is shown whole."),
        ),
    )


def _parts(one: ColdStart) -> tuple[tuple[str, float], ...]:
    if one.ttft_s is None:
        return ()
    return phases((one,)) or (("first token", one.ttft_s * 1000),)


def _bursts(compared: Comparison) -> Section:
    rows = tuple(
        Bar(
            f"{letter}, burst {number}",
            _steps(one.first_s, one.running_s, one.served_s),
            f"{one.ok} of {one.requests} served; {one.reached}",
        )
        for letter, side in zip("AB", compared.sides, strict=True)
        for number, one in enumerate(side.bursts, 1)
    )
    if not rows:
        return Section("From zero to many", (Text("Not measured.", Tone.SOFT),))
    return Section("From zero to many", (Bars("Until all of a burst are served", rows),))


def _steps(first_s: float | None, running_s: float | None, served_s: float | None) -> tuple[tuple[str, float], ...]:
    """Return the parts between the moments; of a burst that was not served whole only what is known."""
    if first_s is None:
        return ()
    parts, last = [("until the first has a token", first_s * 1000)], first_s
    for name, moment in (("until all have one", running_s), ("until all are served", served_s)):
        if moment is not None:
            parts.append((name, max(0.0, moment - last) * 1000))
            last = moment
    return tuple(parts)


def _how(compared: Comparison) -> Section:
    parameters = tuple((name, str(value)) for name, value in compared.parameters.items())
    said = [
        "Measured: by this program, from outside, over HTTP. Reckoned: from what was measured and a price that is a setting.",
        "Published: AWS's list price for durations measured here. SageMaker itself was measured only as a side sagemaker:NAME.",
        "Memory is that of engines: a deployment's gateway, controller, node and bus serve all endpoints and are in no row.",
    ]
    said += [f"{_name(letter, side)}: {note}" for letter, side in zip("AB", compared.sides, strict=True) for note in side.notes]
    said += [
        f"{_name(letter, side)}: {act.value} not measured: {why}"
        for letter, side in zip("AB", compared.sides, strict=True)
        for act, why in side.skipped.items()
    ]
    return Section(
        "How it was measured",
        (
            Listing(tuple(said)),
            Table(("parameter", "value"), parameters, "What was asked for"),
            machine_table(compared.machine),
        ),
    )
