"""Forks an engine twice over, so that it becomes a child of the agent. Standard library only, Python 3.10.

zygote ── midwife ── engine: the midwife ends at once, and the kernel gives the engine to the nearest subreaper above, the
agent. So the agent can wait for it, and a zygote that is killed takes no engine with it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

from standby.host import guard
from standby.runtime.isolation_entry import enter
from standby.runtime.zygote import protocol
from standby.runtime.zygote.fitness import open_files
from standby.runtime.zygote.mark import rewrite_mark
from standby.runtime.zygote.protocol import Armed, Born, ForkRequest, say

Serve = Callable[[list[str]], None]


def give_birth(request: ForkRequest, descriptors: list[int], own_mark: str, control: socket.socket, serve: Serve) -> str:
    """Fork the engine; return empty when the midwife has done her work, else why not, in words.

    ``descriptors`` are the leash, the log and those that ``request`` names; the caller closes them.
    """
    leash = socket.socket(fileno=os.dup(descriptors[0]))
    midwife = os.fork()
    if midwife == 0:
        _assist(request, [leash.fileno(), *descriptors[1:]], descriptors[0], own_mark, (control, leash), serve)
    leash.close()
    _, status = os.waitpid(midwife, 0)
    code = os.waitstatus_to_exitcode(status)
    return "" if code == 0 else f"the process between it and the zygote ended with {code}; the zygote's log may say why"


def _assist(
    request: ForkRequest,
    descriptors: list[int],
    spare: int,
    own_mark: str,
    sockets: tuple[socket.socket, socket.socket],
    serve: Serve,
) -> None:
    """Be the midwife: out of the zygote's session and mark before anything else, so that its end is not ours."""
    code = 1
    try:
        os.setsid()
        rewrite_mark(own_mark, request.mark)
        control, leash = sockets
        control.close()
        os.close(spare)
        awaited = os.pidfd_open(os.getpid())
        engine = os.fork()
        if engine == 0:
            _be_an_engine(request, leash, descriptors[1:], awaited, serve)
        say(leash, Born(engine, _start_ticks(engine), os.getpid()))
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was: this copy of the zygote must not go on as one
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _be_an_engine(request: ForkRequest, leash: socket.socket, descriptors: list[int], midwife: int, serve: Serve) -> None:
    """Become a process like one that was spawned; never returns."""
    code = 1
    try:
        os.setsid()
        _wire_output(descriptors[0])
        _take_environment(request, descriptors[1:])
        enter()
        _forget_files({0, 1, 2, leash.fileno(), midwife, *descriptors[1:]})
        _reset_signals()
        _wait_for_end(midwife)
        guard.arm(request.agent)  # armed earlier, the midwife's end would have been taken for the agent's
        say(leash, Armed())
        if leash.recv(16) != protocol.GO:
            os._exit(1)
        leash.close()
        if request.cores:
            with contextlib.suppress(OSError):  # processors that are not ours any more: whoever binds all of it says so
                os.sched_setaffinity(0, request.cores)
        _reseed()
        serve(request.arguments)
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:  # noqa: BLE001 - as for any program: the trace goes to the log, the code to the parent
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code & 0xFF)  # not ``exit``: what the zygote meant to do at its own end is not ours to do


def _wire_output(log: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(nothing)
    os.close(log)


def _take_environment(request: ForkRequest, descriptors: list[int]) -> None:
    os.environ.clear()
    os.environ.update(request.environment)
    os.environ.update({name: str(number) for name, number in zip(request.descriptors, descriptors)})  # noqa: B905 - 3.10
    tempfile.tempdir = None  # remembered from the zygote's own environment; TMPDIR is read again


def _forget_files(kept: set[int]) -> None:
    """Cut the ties to what the zygote's imports left open.

    Such a descriptor may belong to an object that closes it one day. Closed now, its number would by then be another
    file's; so it stays taken, and leads nowhere.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in open_files():
        if number not in kept and number != nothing:
            os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


def _reset_signals() -> None:
    """Set signals as in a Python that has just started, whatever an import did to them."""
    fresh: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}
    fresh |= {signal.SIGPIPE: signal.SIG_IGN, signal.SIGXFSZ: signal.SIG_IGN}
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        handler = fresh.get(number, signal.SIG_DFL)
        if signal.getsignal(number) not in (None, handler):
            signal.signal(number, handler)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _wait_for_end(process: int) -> None:
    """Return when the process of this handle has ended; its children have another parent by then."""
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    waiting.poll()
    os.close(process)


def _reseed() -> None:
    """Two forks must not draw the same numbers; Python's own generator is seeded anew at each fork by itself."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch_random = sys.modules.get("torch.random")
    if torch_random is not None:
        torch_random.default_generator.seed()  # not ``torch.seed``, which knocks at the GPU as well


def _start_ticks(pid: int) -> int:
    """Return the start of ``pid`` in clock ticks since boot; our child, so it is there even if it has ended."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stream:  # noqa: PTH123 - no imports here
        line = stream.read()
    return int(line[line.rindex(")") + 2 :].split()[19])


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # a full disk must not change how the engine ended
            continue


def settle() -> None:
    """Move everything that lives now out of the collector's sight: its marks would copy every page that forks share."""
    gc.collect()
    gc.freeze()
