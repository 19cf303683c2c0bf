"""Finds ``trtllm-serve`` and what its version can do, by reading its files: importing it takes a minute and a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final

from standby.domain.errors import ConfigurationError
from standby.runtime.engines.interpreter import Text, look_into

REMEDY: Final = (
    "install TensorRT-LLM into an environment of its own (pip install --extra-index-url https://pypi.nvidia.com tensorrt-llm) "
    "and name its trtllm-serve in STANDBY_TENSORRT_LLM_SERVE"
)
_DISTRIBUTION: Final = "tensorrt_llm"
_MODULE: Final = "tensorrt_llm.commands.serve"
_SERVE: Final = "tensorrt_llm/commands/serve.py"
_ARGUMENTS: Final = "tensorrt_llm/llmapi/llm_args.py"
_FIRST_LINE_BYTES: Final = 4096
_TEXTS: Final = MappingProxyType(
    {
        "names": Text(distribution=_DISTRIBUTION, path=_SERVE, word="served_model_name"),
        "sleeps": Text(distribution=_DISTRIBUTION, path=_SERVE, word="enable_sleep_mode"),
        "priorities": Text(distribution=_DISTRIBUTION, path=_ARGUMENTS, word="waiting_queue_policy"),
    }
)


@dataclass(frozen=True)
class TrtLlmProgram:
    """How to run it, and what it knows; each differs between versions that carry the same numbers for months."""

    command: tuple[str, ...]
    """Program and first arguments; model and options follow."""
    version: str
    torch: str = ""
    names: bool = False
    """Answers under a name that we choose; else under the name of the model's folder."""
    sleeps: bool = False
    """Has routes that release and resume device memory."""
    priorities: bool = False
    """Serves waiting requests by priority."""


def find_program(serve: Path | None) -> TrtLlmProgram:
    """Return the program behind ``serve``: a ``trtllm-serve`` script, or the interpreter that has it; None: our own.

    Raises ConfigurationError with what is missing and the remedy.
    """
    if serve is None:
        if find_spec("tensorrt_llm") is None:
            raise ConfigurationError("TensorRT-LLM is not installed", remedy=REMEDY)
        return _program(Path(sys.executable), None)
    if not serve.is_file():
        raise ConfigurationError(f"STANDBY_TENSORRT_LLM_SERVE names {serve}, which does not exist", remedy=REMEDY)
    if serve.name.startswith("python"):
        return _program(serve, None)
    for python in _interpreters(serve):
        if python.exists():
            return _program(python, serve)
    raise ConfigurationError(
        f"it cannot be told which Python runs {serve}: none lies beside it, and it does not begin with #!",
        remedy="name the trtllm-serve of a virtual environment, or that environment's python",
    )


def _program(python: Path, serve: Path | None) -> TrtLlmProgram:
    installed = look_into(python, (_DISTRIBUTION, "torch"), _TEXTS)
    version = installed.versions.get(_DISTRIBUTION)
    if version is None:
        raise ConfigurationError(f"interpreter {python} has no TensorRT-LLM", remedy=REMEDY)
    return TrtLlmProgram(
        command=(str(python), "-m", _MODULE) if serve is None else (str(serve),),
        version=version,
        torch=installed.versions.get("torch", ""),
        names=installed.texts["names"],
        sleeps=installed.texts["sleeps"],
        priorities=installed.texts["priorities"],
    )


def _interpreters(script: Path) -> Iterator[Path]:
    """Yield where the interpreter of an installed script may be: beside it, or in its first line."""
    yield script.parent / "python"
    with script.open("rb") as stream:
        first = stream.readline(_FIRST_LINE_BYTES).decode(errors="replace").strip()
    if first.startswith("#!") and "python" in first:
        yield Path(first.removeprefix("#!").strip())
