"""Ties a child's life to its parent's: the kernel kills the child when the parent dies, however it dies.

Run as a program it arms the tie and becomes another program: ``python guard.py <parent pid> <program> <arguments>…``.
That keeps Python code out of the moment between fork and exec, which is not safe in a parent with threads. Programs
of our own call ``arm`` themselves and save the start of one interpreter.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def arm(parent: int) -> None:
    """Ask for SIGKILL when ``parent`` dies; ends this process at once if that has happened already.

    The kernel watches the THREAD that spawned us, so children are spawned by the thread that lives as long as the
    process. Survives exec. Linux prctl(2).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) refused")
    if os.getppid() != parent:
        os._exit(1)


def guarded(arguments: list[str]) -> list[str]:
    """Return the command line that runs ``arguments`` (program first) tied to this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *arguments]


if __name__ == "__main__":
    arm(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - a list of arguments, no shell
