"""A start in the way of a container, measured by its own program; see ``coldstart_container_app``."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from support.coldstart_client import StartFailedError
from support.coldstart_program import program, tail
from support.coldstart_values import Sample
from support.safetensors_twin import twin_archive

STEPS: Final = ("unpacked", "imported", "built", "first_token")
_APP: Final = Path(__file__).with_name("coldstart_container_app.py")


async def container_start(python: Path, folder: Path, prompts: Iterator[str]) -> Sample:
    """Measure one, from the spawn to the first token; its details are the seconds of each step. Raises StartFailedError."""
    log, archive = folder / "container.log", twin_archive("model.tar.gz")
    with tempfile.TemporaryDirectory(dir=folder) as unpacked:
        began = time.perf_counter()
        command = [str(python), "-P", str(_APP), str(archive), unpacked, next(prompts)]
        async with program(command, log, environment={"HF_HUB_OFFLINE": "1"}) as process:
            status = await process.exited
        if status.code != 0:
            raise StartFailedError(f"container-style start: {status.words}\n{tail(log)}")
    # The clock is the kernel's monotonic one, the same in both processes.
    marks: dict[str, float] = json.loads(log.read_text().splitlines()[-1])
    ends = [began, *(marks[step] for step in STEPS)]
    steps = {step: later - earlier for step, (earlier, later) in zip(STEPS, pairwise(ends), strict=True)}
    return Sample(sum(steps.values()), details=steps)
