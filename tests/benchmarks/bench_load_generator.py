"""How much load ``standby bench`` makes from one core, and whether its percentiles are right: beside locust in one run.

``python tests/benchmarks/bench_load_generator.py [--quick]``

* ``bench_rps``: streamed requests for each second of the generator's processor time, 30,000 of them asked for faster than one
  core can ask, nginx answering on another one. Beside it, which steady rates were kept: all answered, and 99 of 100 requests
  sent within 5 ms of their time. On a quiet machine the first is about what the second goes up to.
* ``percentile_diff``: P50, P90 and P99 of the end-to-end latency as ``standby bench`` and as locust tell it, of the same server
  with known times, at the same rate, in turns on the same core; the greatest of the three differences.

Core 0 has the generator, core 1 the server. Prints tables, and last one line of JSON; null where a part cannot run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from standby.bench.statistics import nearest_rank
from support.delay_server import delays
from support.peer_load import bench, delay_server, differences, end_to_end, locust, nginx_server

REQUESTS: Final = 30_000
SATURATING_RATE: Final = 30_000
RATES: Final = (1000, 2000, 4000, 6000)
STEP_S: Final = 2.0
ROUND: Final = 1000
MEDIAN_S: Final = 0.25
SIGMA: Final = 0.5
RATE: Final = 100
# So few for each user that the slowest answer is over before his next request is due.
RATE_EACH: Final = 0.5
ROUNDS: Final = 3
PERCENTS: Final = (50, 90, 99)


def bench_rps(*, requests: int = REQUESTS, step_s: float = STEP_S) -> dict[str, Any]:
    """Return requests per second of processor time (``bench_rps``), and what that run and each steady rate came to."""
    generator, server = _cores()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, nginx_server(Path(folder), core=server) as url:
        if url is None:
            return {"bench_rps": None, "steps": [], "why": "nginx is not installed"}
        flood = _one_rate(url, SATURATING_RATE, requests / SATURATING_RATE, generator)
        steps = [_one_rate(url, rate, step_s, generator) for rate in RATES]
    if flood["failed"]:
        raise SystemExit(f"bench-load-generator: {flood['failed']} of {requests} requests failed; the figures mean nothing")
    return {"bench_rps": round(1e6 / flood["cpu_us"], 1), "steps": [flood, *steps]}


def _one_rate(url: str, rate: int, step_s: float, core: int | None) -> dict[str, Any]:
    count = int(rate * step_s)
    words = ["--arrivals", "constant", "--rate", str(rate), "--count", str(count), "--max-tokens", "1"]
    summary = bench(url, *words, core=core)["summary"]
    return {
        "rate": rate,
        "answered_per_s": summary["requests_per_s"],
        "cpu_us": summary["generator"]["cpu_s"] / count * 1e6,
        "lag_p99_ms": summary["generator"]["lag"]["p99"] * 1000,
        "failed": summary["failed"] + summary["not_sent"],
        "kept": not summary["generator"]["invalid"] and summary["failed"] == 0 and summary["not_sent"] == 0,
    }


def percentile_diff(*, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the greatest difference (``percentile_diff``, a share), and both generators' percentiles beside the truth."""
    generator, server = _cores()
    ours: list[float] = []
    theirs: list[float] = []
    invalid = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, delay_server(ROUND, MEDIAN_S, SIGMA, core=server) as url:
        words = ["--arrivals", "constant", "--rate", str(RATE), "--count", str(ROUND), "--no-stream", "--counted"]
        for _ in range(rounds):
            document = bench(url, *words, core=generator, samples=True)
            invalid.append(document["summary"]["generator"]["invalid"])
            ours += end_to_end(document)
            seconds, failures, _ = locust(
                url, Path(folder), users=int(RATE / RATE_EACH), rate_each=RATE_EACH, seconds=ROUND / RATE, core=generator
            )
            theirs += seconds
            if failures:
                raise SystemExit(f"bench-load-generator: {len(failures)} requests of locust failed: {failures[0]}")
    if len(ours) != rounds * ROUND:
        raise SystemExit(f"bench-load-generator: {rounds * ROUND - len(ours)} requests failed")
    told = differences(ours, theirs, PERCENTS)
    truth = sorted(delays(ROUND, MEDIAN_S, SIGMA))
    return {
        "percentile_diff": round(max(told.values()), 4),
        "differences": told,
        "ours_s": {percent: nearest_rank(sorted(ours), percent) for percent in PERCENTS},
        "locust_s": {percent: nearest_rank(sorted(theirs), percent) for percent in PERCENTS},
        "server_s": {percent: nearest_rank(truth, percent) for percent in PERCENTS},
        "requests": [len(ours), len(theirs)],
        "invalid": [words for words in invalid if words],
    }


def _cores() -> tuple[int | None, int | None]:
    """Return the generator's core and the server's; None where there is only one, and nothing can be kept apart."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else (None, None)


def _table_of_rates(found: dict[str, Any]) -> None:
    print(f"{'requests/s asked':>17} {'answered/s':>11} {'CPU µs each':>12} {'late, P99 ms':>13}  kept")
    for step in found["steps"]:
        line = f"{step['rate']:>17} {step['answered_per_s']:>11.1f} {step['cpu_us']:>12.0f} {step['lag_p99_ms']:>13.2f}"
        print(f"{line}  {'yes' if step['kept'] else 'no'}")


def _table_of_percentiles(found: dict[str, Any]) -> None:
    print(f"{found['requests'][0]} requests of standby bench and {found['requests'][1]} of locust, ms")
    print(f"{'':>4} {'server takes':>13} {'standby bench':>14} {'locust':>9} {'difference':>11}")
    for percent in PERCENTS:
        server, ours, theirs = (found[name][percent] * 1000 for name in ("server_s", "ours_s", "locust_s"))
        print(f"P{percent:<3} {server:>13.2f} {ours:>14.2f} {theirs:>9.2f} {found['differences'][percent]:>11.2%}")
    for words in found["invalid"]:
        print(words)


def main() -> None:
    """Measure both and tell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of it, to see that it works")
    quick = parser.parse_args().quick
    rates = bench_rps(requests=REQUESTS // 10, step_s=STEP_S / 10) if quick else bench_rps()
    _table_of_rates(rates)
    percentiles = percentile_diff(rounds=1 if quick else ROUNDS)
    _table_of_percentiles(percentiles)
    print(json.dumps({"bench_rps": rates["bench_rps"], "percentile_diff": percentiles["percentile_diff"]}))


if __name__ == "__main__":
    main()
