"""NVIDIA's management library, asked so that a card which cannot say something is no error.

Only the agent's own process may ask it: a process that has opened NVML or CUDA must not be forked into engines. The module
``pynvml`` is therefore imported when ``Nvml.open`` is called and at no other moment. It belongs to the distribution
``nvidia-ml-py``; the distribution named ``pynvml`` is an abandoned redirector.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

_log = logging.getLogger(__name__)

_MODULE: Final = "pynvml"
_ABSENT: Final = ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded", "NVMLError_FunctionNotFound")
_PROC: Final = Path("/proc")


class DeviceLost(Exception):
    """The GPU has fallen off the bus or waits for a reset: nothing that it says can be had any more."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one device: what engines may use of it, and what is used."""

    total: int
    used: int


class Nvml:
    """An opened NVML. Its calls may take milliseconds and may be made from any thread; ``close`` ends it."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        mismatch = getattr(module, "NVMLLibraryMismatchError", module.NVMLError)  # binding newer than the driver
        self._errors: tuple[type[Exception], ...] = (module.NVMLError, mismatch)
        self._lost = tuple(
            getattr(module, name) for name in ("NVMLError_GpuIsLost", "NVMLError_ResetRequired") if hasattr(module, name)
        )

    @classmethod
    def open(cls, module: ModuleType | None = None) -> Nvml | None:
        """Return NVML, or None where there is no GPU for it; why is logged once, at level info."""
        _warn_of_redirector()
        if module is None:
            try:
                module = importlib.import_module(_MODULE)
            except ImportError:
                _log.info("no GPUs: nvidia-ml-py is not installed; install standby[gpu] on a machine that has some")
                return None
        absent = tuple(getattr(module, name) for name in _ABSENT)
        try:
            module.nvmlInit()
        except absent as error:
            _log.info("no GPUs: %s", error)
            return None
        except module.NVMLError as error:
            _log.warning("no GPUs: NVML cannot be opened: %s; nvidia-smi says more", error)
            return None
        return cls(module)

    def close(self) -> None:
        """Let go of the driver."""
        self.ask("nvmlShutdown")

    def ask(self, function: str, *arguments: Any, **named: Any) -> Any:
        """Return what NVML answers, or None where this driver, card or user may not know it. Raises DeviceLost."""
        call = getattr(self.module, function, None)
        if call is None:
            return None
        try:
            return call(*arguments, **named)
        except self._lost as error:
            raise DeviceLost(str(error)) from error
        except self._errors:
            return None

    def handle(self, device_id: str) -> Any:
        """Return NVML's handle of a GPU or MIG instance, or None when it has none. Raises DeviceLost."""
        return self.ask("nvmlDeviceGetHandleByUUID", device_id)

    def memory(self, handle: Any) -> Memory | None:
        """Return the device's memory without what the driver keeps for itself; None: it has none of its own."""
        told = self.ask("nvmlDeviceGetMemoryInfo", handle, version=self.module.nvmlMemory_v2)
        if told is None:  # a driver from before version 2
            told = self.ask("nvmlDeviceGetMemoryInfo", handle)
        if told is None:
            return None
        return Memory(total=int(told.total) - int(getattr(told, "reserved", 0)), used=int(told.used))

    def process_bytes(self, handle: Any, own: Collection[int] = ()) -> dict[int, int | None] | None:
        """Return pid → bytes (None: unknown) of all that compute on the device; None: it cannot say who does.

        In a container the driver may count processes by the host's numbers, which mean nothing here: also None. ``own``
        are numbers that are known to be ours, even if their processes have just ended.
        """
        told = self.ask("nvmlDeviceGetComputeRunningProcesses", handle)
        if told is None or not all(entry.pid in own or (_PROC / str(entry.pid)).exists() for entry in told):
            return None
        held: dict[int, int | None] = {}
        for entry in told:
            before = held.get(entry.pid, 0)
            held[entry.pid] = None if before is None or entry.usedGpuMemory is None else before + int(entry.usedGpuMemory)
        return held


def _warn_of_redirector() -> None:
    try:
        found = importlib.metadata.version("pynvml")
    except importlib.metadata.PackageNotFoundError:
        return
    _log.warning(
        "the abandoned distribution pynvml %s is installed; remove it (pip uninstall pynvml) and keep nvidia-ml-py", found
    )
