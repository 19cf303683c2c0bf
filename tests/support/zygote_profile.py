"""A stand-in for an engine's profile: imports little, and misbehaves as its environment says.

========================  =============================================================================
STAND_IN_PRELOAD          ``thread``: starts one; ``fail``: raises; ``hang``: never returns; ``open``: leaves a file and
                          a socket open; ``signals``: ignores SIGTERM and blocks SIGUSR1; ``ballast100``: takes 100 MiB
STAND_IN_FORK             ``die``, ``hang`` or ``stop`` (SIGSTOP) in a new process, before any of its code runs
STAND_IN_FORK_AT          1: the process between zygote and engine (default), 2: the engine itself
STAND_IN_GROW_MIB         memory that it takes before each fork
STAND_IN_UNFIT_AFTER      number of forks after which it says that it is not fit
========================  =============================================================================

``serve`` gets one argument in JSON: ``report`` is a file that it writes what it sees to; then ``exit`` (a code),
``signal`` (kills itself), ``raise``, ``helpers`` (starts one by fork and one by exec), or it waits to be ended.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from standby.runtime.zygote.fitness import open_files

ENVIRONMENT = {"STAND_IN_ENVIRONMENT": "set before preload"}

_kept: list[Any] = []
_asked = {"unfit": 0, "forks": 0}


def preload() -> None:
    """Do what STAND_IN_PRELOAD says."""
    how = os.environ.get("STAND_IN_PRELOAD", "")
    print(f"preloading with {os.environ['STAND_IN_ENVIRONMENT']!r}")
    tempfile.gettempdir()  # Python remembers it for the life of a process, and what it forks
    if how == "thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    elif how == "fail":
        raise ImportError("no module named engine")
    elif how == "hang":
        time.sleep(600)
    elif how.startswith("ballast"):
        _kept.append(bytearray(b"\1") * (int(how.removeprefix("ballast")) * 2**20))
    elif how == "open":
        _kept.extend([os.open("/etc/hostname", os.O_RDONLY), socket.socketpair()])
    elif how == "signals":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.register_at_fork(after_in_child=_after_fork)


def unfit() -> str:
    """Grow, and say it after STAND_IN_UNFIT_AFTER forks."""
    _kept.append(bytearray(b"\1") * (int(os.environ.get("STAND_IN_GROW_MIB", "0")) * 2**20))
    _asked["unfit"] += 1
    limit = os.environ.get("STAND_IN_UNFIT_AFTER")
    return "the stand-in is tired" if limit and _asked["unfit"] > int(limit) + 1 else ""


def versions() -> str:
    """Say something."""
    return f"stand-in 1 python {sys.version_info.major}.{sys.version_info.minor}"


def serve(arguments: list[str]) -> None:
    """Report, say ready, and end as told."""
    spec = json.loads(arguments[0])
    helpers = _start_helpers() if spec.get("helpers") else []
    print("serving", flush=True)
    if "report" in spec:
        temporary = Path(spec["report"]).with_suffix(".new")
        temporary.write_text(json.dumps({**_sight(), "helpers": helpers}))
        temporary.rename(spec["report"])
    if "STANDBY_READY_FD" in os.environ:
        os.write(int(os.environ["STANDBY_READY_FD"]), b"ready\n")
    if "raise" in spec:
        raise ValueError(spec["raise"])
    if "signal" in spec:
        os.kill(os.getpid(), spec["signal"])
    if "exit" in spec:
        sys.exit(spec["exit"])
    while True:
        signal.pause()


def _sight() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "group": os.getpgid(0),
        "descriptors": {str(number): path for number, path in open_files().items()},
        "environment": dict(os.environ),
        "cores": sorted(os.sched_getaffinity(0)),
        "drawn": random.random(),
        "temporary": tempfile.gettempdir(),
        "blocked": sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "term": str(signal.getsignal(signal.SIGTERM)),
    }


def _start_helpers() -> list[int]:
    """Start one helper that shares our memory and one that is a program of its own, both in sessions of their own."""
    forked = os.fork()
    if forked == 0:
        os.setsid()
        while True:
            signal.pause()
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    return [forked, program.pid]


def _after_fork() -> None:
    _asked["forks"] += 1
    if _asked["forks"] != int(os.environ.get("STAND_IN_FORK_AT", "1")):
        return
    how = os.environ.get("STAND_IN_FORK")
    if how == "die":
        os._exit(7)
    elif how == "hang":
        time.sleep(600)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
