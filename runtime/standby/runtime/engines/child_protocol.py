"""What an adapter and its child program agree on. Imports nothing heavy: a child's start is on the way to first token."""

from __future__ import annotations

import signal
from typing import Final

PARENT_VARIABLE: Final = "STANDBY_ENGINE_PARENT"
"""Number of the process that spawned the engine."""

MARK_VARIABLE: Final = "STANDBY_ENGINE_MARK"
"""What every process of one engine, and no other, carries in the environment that it was started with."""

READY_FD_VARIABLE: Final = "STANDBY_READY_FD"
"""Descriptor to which the engine writes READY_LINE once it has loaded."""

READY_LINE: Final = b"ready\n"

SLEEP: Final = signal.SIGUSR1
"""Fall asleep; the engine has nothing to do, so that its unused memory can be given back as well."""

SLEEP_BUSY: Final = signal.SIGUSR2
"""Fall asleep in the middle of work; memory that is being written to is left alone."""

WAKE: Final = signal.SIGCONT
