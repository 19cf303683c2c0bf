"""Command lines of NVIDIA's profilers for an engine. They are written down and never run: see ``WORDS``."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from standby.domain.model import EngineKind
from standby.runtime.engines.base import EngineHandle
from standby.runtime.engines.vllm_arguments import arguments

WORDS: Final = (
    "# For NVIDIA's profilers. Neither attaches to an engine that runs, so each starts a second one beside it: give it a\n"
    "# free GPU or put the endpoint to sleep first, then send it requests at its own address. nsys shows the whole time line,\n"
    "# ncu looks into single kernels and slows them down a hundredfold.\n"
    "# These lines follow NVIDIA's documentation; they have never been run with a GPU.\n"
)
_SECONDS_TO_LOAD: Final = 60
_KERNELS_SKIPPED: Final = 200
_KERNELS: Final = 20


def command_lines(engine: Sequence[str], devices: Sequence[str], seconds: int, folder: str) -> tuple[str, str]:
    """Return what ``nsys`` and ``ncu`` are called with for the command ``engine`` on ``devices``; pure.

    Docs: https://docs.nvidia.com/nsight-systems/UserGuide/ and https://docs.nvidia.com/nsight-compute/NsightComputeCli/
    """
    seen = f"CUDA_VISIBLE_DEVICES={shlex.quote(','.join(devices))} VLLM_WORKER_MULTIPROC_METHOD=spawn"
    program = shlex.join(engine)
    timeline = shlex.join(
        [
            "nsys", "profile", "--output", f"{folder}/timeline", "--trace", "cuda,nvtx,osrt,cublas,cudnn",
            "--trace-fork-before-exec", "true", "--cuda-graph-trace", "node", "--sample", "process-tree",
            "--delay", str(_SECONDS_TO_LOAD), "--duration", str(seconds), "--kill", "sigterm",
        ]
    )  # fmt: skip
    kernels = shlex.join(
        [
            "ncu", "--export", f"{folder}/kernels", "--target-processes", "all", "--set", "full", "--graph-profiling", "node",
            "--launch-skip", str(_KERNELS_SKIPPED), "--launch-count", str(_KERNELS), "--kill", "yes",
        ]
    )  # fmt: skip
    return f"{seen} {timeline} {program}", f"{seen} {kernels} {program}"


def engine_command(handle: EngineHandle, kind: EngineKind, socket: Path) -> list[str]:
    """Return a command that starts the same engine again, at an address of its own where that can be said.

    One that was forked from a zygote has the zygote's command line, so that vLLM's is made from what it was told.
    """
    own: list[str] = []
    with contextlib.suppress(OSError):
        own = Path(f"/proc/{handle.pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    if kind is EngineKind.VLLM and own:
        return [own[0], "-m", "vllm.entrypoints.openai.api_server", *arguments(handle.spec, socket, on_gpu=True)]
    return own
