"""May this process fork engines? Standard library only, Python 3.10: runs inside the engine's interpreter."""

from __future__ import annotations

import os
import sys

_PROC_SELF = "/proc/self"


def unfit() -> str:
    """Return why this process must not fork, in words; empty when it may."""
    return threads_words() or cuda_words() or device_words()


def thread_count() -> int:
    """Return how many threads the kernel sees, also those that Python does not know of."""
    return len(os.listdir(f"{_PROC_SELF}/task"))  # noqa: PTH208 - only names are needed


def threads_words() -> str:
    """More than one thread: a fork copies one of them, and locks that the others hold stay locked for ever."""
    count = thread_count()
    return "" if count == 1 else f"{count} threads run in it, and a fork copies only one"


def cuda_words() -> str:
    """CUDA is initialised: a forked child cannot use it."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return "CUDA is initialised in it, and a forked child could not use it" if cuda and cuda.is_initialized() else ""


def device_words() -> str:
    """A GPU's driver is open, e.g. by NVML: its descriptors do not survive a fork."""
    opened = next((path for path in open_files().values() if path.startswith(("/dev/nvidia", "/dev/dxg", "/dev/kfd"))), None)
    return f"it holds {opened} open, which does not survive a fork" if opened else ""


def open_files() -> dict[int, str]:
    """Return descriptor → what it is open on, for each descriptor of this process."""
    folder = f"{_PROC_SELF}/fd"
    found: dict[int, str] = {}
    for name in os.listdir(folder):  # noqa: PTH208 - only names are needed
        try:
            found[int(name)] = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - as above
        except FileNotFoundError:  # the listing's own
            continue
    return found
