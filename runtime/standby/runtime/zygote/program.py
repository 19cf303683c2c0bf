"""The zygote: imports what its profile names, then forks engines on request. Runs inside the engine's interpreter.

``bootstrap.py ROOTS standby.runtime.zygote.program PROFILE``, with the control socket's number in
STANDBY_ZYGOTE_CONTROL. It executes nothing of a model and is told of none before it has forked.

A *profile* is a module that imports nothing heavy by itself and has:

``ENVIRONMENT: dict[str, str]``
    set in ``os.environ`` before ``preload``; what must be there when a process starts (LD_PRELOAD) is given by the agent.
``preload() -> None``
    imports everything that an engine of this kind needs.
``unfit() -> str``
    why this process must not fork, empty when it may; asked before each fork, beside ``fitness.unfit``.
``versions() -> str``
    what was imported, in words.
``serve(arguments: list[str]) -> None``
    be the engine: runs in the fork, in its main thread, with its own environment. Its return ends the process.

Standard library only, Python 3.10.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import traceback
from typing import Protocol, cast

from standby.host import guard
from standby.runtime.engines.child_protocol import MARK_VARIABLE, PARENT_VARIABLE
from standby.runtime.zygote import fitness
from standby.runtime.zygote.birth import give_birth, settle
from standby.runtime.zygote.mark import rewrite_mark, shown_mark
from standby.runtime.zygote.protocol import CONTROL_VARIABLE, ForkRequest, Ready, Refused, Unfit, receive_request, say


class Profile(Protocol):
    """See the module's head."""

    ENVIRONMENT: dict[str, str]

    def preload(self) -> None:
        """Import."""

    def unfit(self) -> str:
        """Say why not to fork."""

    def versions(self) -> str:
        """Say what was imported."""

    def serve(self, arguments: list[str]) -> None:
        """Be the engine."""


def main() -> None:
    """Preload, say what became of it, and serve the agent until it is gone."""
    guard.arm(int(os.environ[PARENT_VARIABLE]))
    control = socket.socket(fileno=int(os.environ.pop(CONTROL_VARIABLE)))
    control.set_inheritable(False)
    try:
        profile, ready = _prepare(sys.argv[1])
    except BaseException as error:
        say(control, Unfit(f"{type(error).__name__}: {error}"))
        raise
    if reason := _unfit(profile):
        say(control, Unfit(reason))
        sys.exit(3)
    say(control, ready)
    _serve_forks(control, profile)


def _prepare(name: str) -> tuple[Profile, Ready]:
    mark = os.environ[MARK_VARIABLE]
    rewrite_mark(mark, "0" * len(mark))  # known now that it can be done, rather than at the first fork
    rewrite_mark("0" * len(mark), mark)
    profile = cast("Profile", importlib.import_module(name))
    os.environ.update(profile.ENVIRONMENT)
    profile.preload()
    settle()
    return profile, Ready(profile.versions())


def _unfit(profile: Profile) -> str:
    return fitness.unfit() or profile.unfit()


def _serve_forks(control: socket.socket, profile: Profile) -> None:
    mark = shown_mark()
    while (received := receive_request(control)) is not None:
        request, descriptors = received
        sys.stdout.flush()  # a fork would write what is held back once more, into the engine's log
        try:
            _fork(request, descriptors, mark, control, profile)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _fork(request: ForkRequest, descriptors: list[int], mark: str, control: socket.socket, profile: Profile) -> None:
    """Fork one engine, or tell over its leash why not."""
    reason, fit = _unfit(profile), False
    if not reason:
        try:
            reason = give_birth(request, descriptors, mark, control, profile.serve)
        except OSError as error:  # no memory or no process number left: this fork's trouble, not the zygote's
            traceback.print_exc()
            reason, fit = f"the kernel refuses to fork: {error.strerror}", True
    if reason:
        leash = socket.socket(fileno=os.dup(descriptors[0]))
        say(leash, Refused(reason, fit))
        leash.close()


if __name__ == "__main__":
    main()
