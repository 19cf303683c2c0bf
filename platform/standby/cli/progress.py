"""A climb shown while one waits for it: the download's bar and the present step, on standard error, on a terminal only."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Final, Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from standby.cli.output import console

_STEPS: Final = {
    "cold": "back at cold",
    "fetching": "fetching the model",
    "staged": "staged on the node's disk",
    "zygote": "waiting beside a zygote",
    "starting": "starting the engine",
    "probing": "probing with one token",
    "ready": "ready",
    "draining": "draining",
    "suspending": "falling asleep",
    "asleep": "asleep",
    "waking": "waking",
    "stopping": "stopping",
    "failed": "failed",
    "gone": "gone",
}


def describe(event: dict[str, Any]) -> str | None:
    """Return what an event of the stream says about a climb, or None where it says nothing."""
    kind = event.get("kind")
    if kind == "transition":
        return _STEPS.get(event["after"], str(event["after"]))
    if kind == "activation":
        if not event["ok"]:
            return f"the climb failed: {event['error']}"
        total = sum(event["activation"]["phases_ms"].values())
        return f"ready after {total:.0f} ms"
    if kind == "decision":
        return f"{event['action']}: {event['reason']}"
    return None


class Climb:
    """Shows one endpoint's climb; does nothing unless standard error is a terminal."""

    def __init__(self, *, shown: bool | None = None) -> None:
        self.shown = sys.stderr.isatty() if shown is None else shown
        output = console(sys.stderr)
        self._steps = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=output,
            transient=True,
            disable=not self.shown,
        )
        self._bytes = Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=output,
            transient=True,
            disable=not self.shown,
        )
        self._step: TaskID | None = None
        self._downloads: dict[str, TaskID] = {}
        self._active: Progress | None = None

    def __enter__(self) -> Self:
        self._show(self._steps)
        self._step = self._steps.add_task("waiting", total=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.hide()

    def hide(self) -> None:
        """Take the progress off the screen, so that the answer can be printed; idempotent."""
        if self._active is not None:
            self._active.stop()
            self._active = None

    def note(self, text: str) -> None:
        """Say what happens now."""
        if self._step is not None:
            self._steps.update(self._step, description=text)

    def feed(self, event: dict[str, Any]) -> None:
        """Take an event of the stream in."""
        if event.get("kind") == "fetch":
            self._fetched(event["digest"], event["done_bytes"], event["total_bytes"])
            return
        words = describe(event)
        if words is None:
            return
        self.note(words)
        # A terminal has one live display: the bar is shown while bytes arrive, the step afterwards.
        if self._active is self._bytes:
            self._show(self._steps)

    def _fetched(self, digest: str, done: int, total: int) -> None:
        if self._active is None:
            return
        if digest not in self._downloads:
            self._downloads[digest] = self._bytes.add_task(f"downloading {digest[:12]}", total=total)
        self._bytes.update(self._downloads[digest], completed=done, total=total)
        self._show(self._steps if done >= total else self._bytes)

    def _show(self, progress: Progress) -> None:
        if not self.shown or progress is self._active:
            return
        self.hide()
        progress.start()
        self._active = progress
