"""What an adapter and its child program agree on. Imports nothing heavy: a child's start is on the way to first token."""

from __future__ import annotations

import signal
from typing import Final

PARENT_VARIABLE: Final = "STANDBY_ENGINE_PARENT"
"""Number of the process that spawned the engine."""

READY_FD_VARIABLE: Final = "STANDBY_READY_FD"
"""Descriptor to which the engine writes READY_LINE once it has loaded."""

READY_LINE: Final = b"ready\n"

SLEEP: Final = signal.SIGUSR1
WAKE: Final = signal.SIGCONT
