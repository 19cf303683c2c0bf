"""Starts compared, from the spawn, the wake or the request to the first token of a stream: ``make bench-coldstart``.

All on this machine, in one run, one after the other and in turn, with the same real model (SmolLM2-135M), the same flags and
the same client; every start is a fresh one with a new prompt.

* plain: vLLM's server as its documents start it (safetensors, explicit key-value cache, no compilation), its own
  process layout, a user's environment;
* zygote: the same through standby's adapter, forked from a zygote that was hatched once;
* asleep: that engine, suspended and resumed through the adapter;
* llama: llama.cpp through standby's adapter, its GGUF in the page cache as a node's staging leaves it;
* container: unpack model.tar.gz, import the libraries, build the model, generate, without the container's own start;
* ray: Ray Serve resting at no replica around the very same llama.cpp program. It runs last and alone, because its daemons
  would disturb the others.

Then what an engine costs while nobody asks: processor share of its whole process tree, and memory of a second instance.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TimeElapsedColumn

sys.path.insert(0, str(Path(__file__).parents[1]))

from standby.domain.errors import StandbyError
from standby.runtime.process_ledger import ProcessLedger
from support.coldstart_client import StartFailedError, prompts
from support.coldstart_container import container_start
from support.coldstart_llama import LlamaStarts
from support.coldstart_ray import ray_serve
from support.coldstart_tables import show
from support.coldstart_values import TITLES, Kind, Results, in_turn, missed
from support.coldstart_vllm import VllmStarts
from support.safetensors_twin import twin_archive, twin_folder

_IDLE_S: Final = 10.0
_INTERRUPTED: Final = 130
_CONTAINER_RUNS: Final = 3
"""Enough for a line beside the others: it is no figure of ours."""


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    kinds: tuple[Kind, ...]
    runs: int
    vllm_python: Path
    ray_python: Path


@dataclass
class Bench:
    """One run of the benchmark in an empty folder."""

    plan: Plan
    folder: Path
    progress: Progress
    results: Results = field(default_factory=Results)
    prompts: Iterator[str] = field(default_factory=prompts)

    def __post_init__(self) -> None:
        ledger = ProcessLedger(self.folder / "ledger")
        self._vllm = VllmStarts(self.plan.vllm_python, ledger, self.folder, self.prompts)
        self._llama = LlamaStarts(ledger, self.folder / "run", self.prompts)
        self._task = self.progress.add_task("")

    async def measure(self) -> Results:
        """Measure everything in the plan. Raises StartFailedError, StandbyError."""
        twin_folder(), twin_archive("model.tar.gz")
        self.results.versions += [self._vllm.version, self._llama.version]
        if Kind.ZYGOTE in self.plan.kinds:
            async with self._vllm.hatched() as zygote:
                self.results.hatch_s = zygote.hatch_s
                await self._rounds()
                await self._at_rest()
        else:
            await self._rounds()
        if Kind.RAY in self.plan.kinds:
            await self._peer()
        return self.results

    async def _rounds(self) -> None:
        """Let the starts take turns."""
        order = in_turn([kind for kind in self.plan.kinds if kind not in {Kind.ASLEEP, Kind.RAY}], self.plan.runs)
        self.progress.update(self._task, total=len(order))
        for number, kind in enumerate(order):
            self.progress.update(self._task, description=TITLES[kind])
            await self._one(kind, last=kind not in order[number + 1 :])
            self.progress.advance(self._task)

    async def _one(self, kind: Kind, *, last: bool) -> None:
        if kind is Kind.PLAIN:
            self.results.add(kind, await self._vllm.plain(_IDLE_S if last else 0.0))
        elif kind is Kind.ZYGOTE:
            forked, woken = await self._vllm.forked_and_woken()
            self.results.add(Kind.ZYGOTE, forked)
            self.results.add(Kind.ASLEEP, woken)
        elif kind is Kind.LLAMA:
            self.results.add(kind, await self._llama.start())
        elif len(self.results.values(kind)) < _CONTAINER_RUNS:
            self.results.add(kind, await container_start(self.plan.vllm_python, self.folder, self.prompts))

    async def _at_rest(self) -> None:
        self.progress.update(self._task, description="engines at rest", total=2, completed=0)
        self.results.idle_ready, self.results.idle_parked = await self._vllm.idle(_IDLE_S)
        self.progress.advance(self._task)
        self.results.memory = await self._vllm.memory()

    async def _peer(self) -> None:
        self.progress.update(self._task, description=TITLES[Kind.RAY], total=self.plan.runs, completed=0)
        async with ray_serve(self.plan.ray_python, self.folder, self.prompts) as ray:
            self.results.versions.append(f"ray {ray.version}")
            for _ in range(self.plan.runs):
                self.results.add(Kind.RAY, await ray.start())
                self.progress.advance(self._task)


async def measure(plan: Plan) -> Results:
    """Run the benchmark; SIGTERM ends it as Ctrl-C does, and nothing that it has started is left."""
    task = asyncio.current_task()
    assert task is not None, "called from asyncio.run"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    console = Console(stderr=True)
    with (
        tempfile.TemporaryDirectory(prefix="sb-", ignore_cleanup_errors=True) as folder,
        Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console, transient=True) as progress,
    ):
        # vLLM and torch leave sockets and files in the folder for temporary ones when they are ended.
        os.environ["TMPDIR"] = folder
        return await Bench(plan, Path(folder), progress).measure()


def parsed(words: Sequence[str] | None = None) -> Plan:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="fresh starts of each kind")
    parser.add_argument("--only", help=f"some of {','.join(kind for kind in Kind if kind is not Kind.ASLEEP)}")
    parser.add_argument("--without-ray", action="store_true")
    environments = Path(sys.prefix)
    parser.add_argument("--vllm-python", type=Path, default=environments / "vllm/bin/python")
    parser.add_argument("--ray-python", type=Path, default=environments / "ray/bin/python")
    asked = parser.parse_args(words)
    try:
        chosen = [Kind(name) for name in asked.only.split(",")] if asked.only else list(Kind)
    except ValueError as error:
        parser.error(str(error))
    kinds = tuple(kind for kind in chosen if not (asked.without_ray and kind is Kind.RAY))
    return Plan(kinds, asked.runs, asked.vllm_python, asked.ray_python)


def main() -> None:
    """Run the benchmark. Exit code 1 when a start fails; a goal that is missed is told, and is no failure."""
    plan = parsed()
    try:
        results = asyncio.run(measure(plan))
    except (StartFailedError, StandbyError) as error:
        Console(stderr=True).print(f"[red]a start failed[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(_INTERRUPTED)
    show(results, Console(width=132))
    figures = results.figures()
    if names := missed(figures):
        print(f"missed: {', '.join(names)}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
