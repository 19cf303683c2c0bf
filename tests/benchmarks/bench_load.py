"""From the store to mapped weights, beside the way of containers: ``make bench-load``.

The real 135M model as safetensors lies in a real S3 server on this machine. Each measurement is a child process of its own;
the kinds take turns, what was written before is on the disk, and where it says cold the files are out of the page cache.

* ours, cold: fetch into the node's cache (hashed, durable), then map every tensor and touch each page of it;
* ours, staged: the artifact lies in the node's cache, on the disk or in the page cache; found, mapped, touched;
* container: download model.tar.gz, gunzip and untar, ``torch.load`` of the pickled state dict;
* second reader: what a second process that maps the same weights has for itself, of their size;
* download: our fetch beside a bare threaded reader of ranges that does the same work.

Imports happen before the clock starts, on all sides: that of PyTorch alone would cost the container a second or more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import obstore
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from standby.artifacts.inspection import inspect
from standby.artifacts.local_s3 import LocalS3
from standby.domain.model import Manifest
from standby.warm_pool.page_cache import give_back, resident_bytes
from support.safetensors_twin import twin_folder, twin_pickle_archive

_TESTS: Final = Path(__file__).parents[1]
BUCKET: Final = "bench"
ARCHIVE: Final = "model.tar.gz"
WEIGHTS: Final = "model.safetensors"
MIB: Final = 1 << 20
AT_LEAST: Final = {"speedup_staged": 10.0, "speedup_cold": 3.0, "download_ratio": 0.9}
AT_MOST: Final = {"second_reader_fraction": 0.05}
LOADS: Final = ("container", "cold", "staged_disk", "staged_memory")
DOWNLOADS: Final = ("fetch", "bare_finished", "transport", "bare")
_TITLES: Final = {
    "container": "container: download, gunzip, untar, unpickle",
    "cold": "ours, cold",
    "staged_disk": "ours, staged on the disk",
    "staged_memory": "ours, staged and in the page cache",
    "fetch": "our fetch: hashed, durable",
    "bare_finished": "bare reader, hashed and flushed",
    "transport": "our source and writing alone",
    "bare": "bare reader alone",
}
_Figures = dict[str, Any]


@dataclass
class Rig:
    """The store with the model in it, the node's cache with the artifact in it, and a folder for what comes and goes."""

    s3: LocalS3
    folder: Path
    manifest: Manifest
    _runs: int = field(default=0, init=False)

    @property
    def root(self) -> Path:
        """The cache that holds the artifact."""
        return self.folder / "cache"

    @property
    def staged(self) -> list[Path]:
        """The artifact's files in that cache."""
        files = self.root / "artifacts" / self.manifest.digest / "files"
        return [files / item.path for item in self.manifest.files]

    async def load(self, kind: str, *, strace: bool = False, idle: bool = False) -> _Figures:
        """Measure one way to load; ``idle`` starts the same program and loads nothing."""
        if kind == "container":
            with self._scratch() as scratch:
                asked = {"folder": str(scratch.path), "endpoint": self.s3.url, "bucket": BUCKET, "key": ARCHIVE, "idle": idle}
                return await self._child("load_container.py", asked, strace=strace)
        if kind == "cold":
            with self._scratch() as scratch:
                return await self._ours("cold" if not idle else "idle", root=str(scratch.path), strace=strace)
        if kind == "staged_disk":
            give_back(self.staged)
            left = resident_bytes(self.staged)
            assert left < MIB, f"{left} bytes stayed in the page cache"
        return await self._ours("staged" if not idle else "idle", root=str(self.root), strace=strace)

    async def download(self, kind: str) -> _Figures:
        """Measure one way to bring the weights' one object to the disk."""
        with self._scratch() as scratch:
            into = str(scratch.path)
            if kind in {"fetch", "transport"}:
                return await self._ours(kind, into=into, manifest="weights.json")
            url = obstore.sign(self.s3.store(BUCKET), "GET", f"m/{WEIGHTS}", timedelta(minutes=10))
            finish = kind == "bare_finished"
            return await self._ours("bare", into=into, url=url, finish=finish, manifest="weights.json")

    async def fill(self) -> None:
        """Let the cache hold the artifact."""
        await self._ours("cold", root=str(self.root))

    async def second_reader(self) -> _Figures:
        """Return what the second of two processes that map the staged weights has for itself."""
        files = str(self.root / "artifacts" / self.manifest.digest / "files")
        async with self._reader(files), self._reader(files) as second:
            return second

    @asynccontextmanager
    async def _reader(self, files: str) -> AsyncIterator[_Figures]:
        asked = {"mode": "reader", "manifest": str(self.folder / "manifest.json"), "folder": files}
        process = await self._spawn(_command("load_ours.py", asked))
        assert process.stdin is not None
        assert process.stdout is not None
        yield json.loads(await process.stdout.readline())
        process.stdin.close()
        await process.wait()

    async def _ours(self, mode: str, *, manifest: str = "manifest.json", strace: bool = False, **asked: Any) -> _Figures:
        wanted = {"mode": mode, "manifest": str(self.folder / manifest), **asked}
        return await self._child("load_ours.py", wanted, strace=strace)

    async def _child(self, program: str, asked: Mapping[str, Any], *, strace: bool) -> _Figures:
        # What earlier runs have written must not be on its way to the disk during this one.
        await asyncio.to_thread(os.sync)
        counts = self.folder / "strace"
        command = _command(program, asked)
        if strace:
            command = ["strace", "-f", "-c", "-U", "calls,name", "-o", str(counts), *command]
        process = await self._spawn(command)
        said, wrong = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{program} {asked} ended with {process.returncode}: {wrong.decode()[-1000:]}")
        figures: _Figures = json.loads(said)
        return {**figures, "calls": _calls(counts.read_text())} if strace else figures

    async def prove(self) -> None:
        """Let PyTorch answer a question with the very weights that are measured. Raises RuntimeError when it is wrong."""
        files = self.root / "artifacts" / self.manifest.digest / "files"
        process = await self._spawn([sys.executable, str(_TESTS / "support" / "twin_proof.py"), str(files)])
        _, said = await process.communicate()
        if process.returncode != 0:
            raise RuntimeError(said.decode()[-1000:])

    async def _spawn(self, command: Sequence[str]) -> asyncio.subprocess.Process:
        environment = {**os.environ, **self.s3.env(), "PYTHONPATH": str(_TESTS), "HF_HUB_OFFLINE": "1"}
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)

    def _scratch(self) -> _Scratch:
        self._runs += 1
        return _Scratch(self.folder / f"run-{self._runs}")


@dataclass(frozen=True)
class _Scratch:
    path: Path

    def __enter__(self) -> _Scratch:
        self.path.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)


def _command(program: str, asked: Mapping[str, Any]) -> list[str]:
    return [sys.executable, str(_TESTS / "support" / program), json.dumps(asked)]


def _calls(table: str) -> int:
    return sum(int(found.group(1)) for found in re.finditer(r"^\s*(\d+)\s+(?!total)\w+\s*$", table, re.MULTILINE))


@asynccontextmanager
async def rig(folder: Path) -> AsyncIterator[Rig]:
    """Yield the store and the node's cache, both filled."""
    async with LocalS3(folder / "s3") as s3:
        await s3.create_bucket(BUCKET)
        for path in twin_folder().iterdir():
            await s3.upload(BUCKET, f"m/{path.name}", path)
        await s3.upload(BUCKET, ARCHIVE, twin_pickle_archive())
        manifest = await inspect(f"s3://{BUCKET}/m/", s3.options, environment=s3.env())
        weights = manifest.model_copy(update={"objects": tuple(ref for ref in manifest.objects if ref.path == WEIGHTS)})
        (folder / "manifest.json").write_text(manifest.model_dump_json())
        (folder / "weights.json").write_text(weights.model_dump_json())
        made = Rig(s3, folder, manifest)
        await made.fill()
        await made.prove()
        yield made


@dataclass
class Results:
    """Every run of every kind."""

    loads: dict[str, list[_Figures]]
    downloads: dict[str, list[_Figures]]
    calls: dict[str, int]
    second: _Figures
    manifest: Manifest

    def values(self, kind: str, figure: str = "wall_s") -> list[float]:
        """Return a figure of all of the kind's runs, in order."""
        return [run[figure] for run in (self.loads.get(kind) or self.downloads[kind])]

    def median(self, kind: str, figure: str) -> float:
        """Return the median of a figure over the kind's runs."""
        return statistics.median(self.values(kind, figure))

    def figures(self) -> dict[str, float]:
        """Return what the goals are about."""
        return {
            "speedup_staged": round(self.times("staged_disk", "container"), 1),
            "speedup_cold": round(self.times("cold", "container"), 2),
            "second_reader_fraction": round(self.second["private_bytes"] / self.second["weights_bytes"], 4),
            "download_ratio": round(min(self.times("fetch", "bare_finished"), self.times("transport", "bare")), 3),
        }

    def times(self, ours: str, other: str) -> float:
        """Return how many times as long the other one takes: the median over the rounds, each with its own machine load."""
        return statistics.median(late / soon for soon, late in zip(self.values(ours), self.values(other), strict=True))


async def measure(stage: Rig, rounds: int) -> Results:
    """Let the kinds take turns for ``rounds`` rounds after one that does not count."""
    loads: dict[str, list[_Figures]] = {kind: [] for kind in LOADS}
    downloads: dict[str, list[_Figures]] = {kind: [] for kind in DOWNLOADS}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=(rounds + 1) * 2 + 1)
        for number in range(rounds + 1):
            for kind in LOADS:
                loads[kind].append(await stage.load(kind))
            progress.advance(task)
            # Turned round every time: whoever comes first in a round has no advantage over all rounds.
            for kind in DOWNLOADS if number % 2 else reversed(DOWNLOADS):
                downloads[kind].append(await stage.download(kind))
            progress.advance(task)
        second = await stage.second_reader()
        calls = await _count_calls(stage) if shutil.which("strace") else {}
    _check(loads, downloads)
    drop_first = {kind: runs[1:] for kind, runs in loads.items()}, {kind: runs[1:] for kind, runs in downloads.items()}
    return Results(*drop_first, calls, second, stage.manifest)


async def _count_calls(stage: Rig) -> dict[str, int]:
    """Return the system calls of one more run of each kind, without those of the program's own start and end."""
    counted: dict[str, int] = {}
    for kind in LOADS:
        full = await stage.load(kind, strace=True)
        empty = await stage.load(kind, strace=True, idle=True)
        counted[kind] = full["calls"] - empty["calls"]
    return counted


def _check(loads: Mapping[str, Sequence[_Figures]], downloads: Mapping[str, Sequence[_Figures]]) -> None:
    """All must have brought the same model."""
    brought = {(run["parameters"], run["tensors"]) for runs in loads.values() for run in runs}
    assert len(brought) == 1, brought
    digests = {run["sha256"] for kind in ("fetch", "bare_finished") for run in downloads[kind]}
    assert len(digests) == 1, digests


def show(results: Results) -> bool:
    """Print the tables and the figures beside their goals; return whether all are met."""
    console = Console(width=132)
    console.print(_loads_table(results))
    console.print(_downloads_table(results))
    figures = results.figures()
    table = Table(title="Goals", title_justify="left")
    for column in ("figure", "measured", "goal"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, value in figures.items():
        goal = f"≥ {AT_LEAST[name]:g}" if name in AT_LEAST else f"≤ {AT_MOST[name]:g}"
        table.add_row(name, f"{value:g}", goal)
    console.print(table)
    return all(figures[name] >= goal for name, goal in AT_LEAST.items()) and all(
        figures[name] <= goal for name, goal in AT_MOST.items()
    )


def _loads_table(results: Results) -> Table:
    runs = len(results.loads["cold"])
    title = f"{results.manifest.total_bytes / MIB:.0f} MiB of weights, medians of {runs} runs on {os.cpu_count()} cores"
    table = Table(title=title, title_justify="left")
    columns = ("first byte ms", "all ms", "CPU s", "read MiB", "written MiB", "peak MiB", "anonymous MiB", "system calls")
    table.add_column("load")
    for column in columns:
        table.add_column(column, justify="right")
    for kind in LOADS:
        median = {name: results.median(kind, name) for name in results.loads[kind][0] if name.endswith(("_s", "_bytes"))}
        table.add_row(
            _TITLES[kind],
            f"{median['first_byte_s'] * 1000:.0f}",
            f"{median['wall_s'] * 1000:.0f}",
            f"{median['cpu_s']:.2f}",
            *(f"{median[name] / MIB:.0f}" for name in ("read_bytes", "written_bytes", "peak_bytes", "anonymous_bytes")),
            f"{results.calls[kind]}" if results.calls else "not measured",
        )
    second = results.second
    memory = f"{second['peak_bytes'] / MIB:.0f}", f"{second['anonymous_bytes'] / MIB:.0f}"
    table.add_row(f"second reader; private: {second['private_bytes'] / MIB:.1f} MiB", *[""] * 5, *memory, "")
    return table


def _downloads_table(results: Results) -> Table:
    table = Table(title="Download of the weights' object", title_justify="left")
    table.add_column("reader")
    for column in ("MiB/s", "of the bare one", "CPU s", "peak MiB"):
        table.add_column(column, justify="right")
    size = results.second["weights_bytes"]
    for kind in DOWNLOADS:
        other = {"fetch": "bare_finished", "transport": "bare"}.get(kind)
        table.add_row(
            _TITLES[kind],
            f"{size / MIB / results.median(kind, 'wall_s'):.0f}",
            f"{results.times(kind, other):.2f}" if other else "",
            f"{results.median(kind, 'cpu_s'):.2f}",
            f"{results.median(kind, 'peak_bytes') / MIB:.0f}",
        )
    return table


def main() -> None:
    """Run the benchmark; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds

    async def run(folder: Path) -> Results:
        async with rig(folder) as stage:
            return await measure(stage, rounds)

    with tempfile.TemporaryDirectory(prefix="standby-bench-") as folder:
        results = asyncio.run(run(Path(folder)))
    met = show(results)
    print(json.dumps(results.figures()))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
