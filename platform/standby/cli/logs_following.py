"""What ``standby logs --follow`` says: lines as they come, and whose they are where that changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_FAILED: Final = "failed"


class Following:
    """Begins after ``answer``, and takes each later one; ``after`` is what to ask next for."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self._known: dict[str, Mapping[str, Any]] = {one["id"]: one for one in answer["instances"]}
        self._marks = {name: one["mark"] for name, one in self._known.items()}
        self._silent = {lost["node"] for lost in answer["failures"]}
        self._last = answer["instances"][-1]["id"] if answer["instances"] else ""

    @property
    def after(self) -> str:
        """The marks of all logs, as the gateway takes them."""
        return ",".join(f"{name}:{mark}" for name, mark in self._marks.items())

    def take(self, answer: Mapping[str, Any]) -> list[str]:
        """Return the lines to print."""
        shown = {one["id"]: one for one in answer["instances"]}
        said = [f"\n<== {name} is gone" for name in self._known if name not in shown]
        if said and not shown:
            said.append("no instances: nothing runs; waiting for one")
        for name, one in shown.items():
            said += self._of_one(self._known.get(name), one)
        silent = {lost["node"]: lost["message"] for lost in answer["failures"]}
        said += [f"\n{node}: {message}" for node, message in silent.items() if node not in self._silent]
        self._marks = {name: one["mark"] or self._marks.get(name, "") for name, one in shown.items()}
        self._known, self._silent = shown, set(silent)
        return said

    def _of_one(self, before: Mapping[str, Any] | None, one: Mapping[str, Any]) -> list[str]:
        fails = one["state"] == _FAILED and (before is None or before["state"] != _FAILED)
        if before is not None and not one["lines"] and not fails:
            return []
        words = one["words"]
        if before is not None and one["renewed"] and self._marks[one["id"]]:
            words += "; its engine was started anew"
        elif before is not None and self._last == one["id"]:
            # The last lines of a life come before its end is told.
            return [*one["lines"], *([f"\n==> {one['id']} on {one['node']}: {words}"] if fails else [])]
        self._last = one["id"]
        return [f"\n==> {one['id']} on {one['node']}: {words}", *one["lines"]]
