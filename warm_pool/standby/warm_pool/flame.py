"""A flame graph of a recording: one SVG file that any browser shows, from the samples of a speedscope file. Pure."""

from __future__ import annotations

import html
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_WIDTH: Final = 1200.0
_ROW: Final = 17
_TOP: Final = 44
_LETTER: Final = 6.8  # of the 11 px monospaced type below
_DEEPEST: Final = 200
"""Frames of a stack from its beginning on: a recursion may have thousands, and so would the drawing and our own calls."""
_THINNEST: Final = 0.4
"""Frames narrower than this many pixels are left out: nobody sees them, and a deep recording has thousands."""


@dataclass
class Frame:
    """A function as called from those below it; ``weight`` in seconds, that of its callees included."""

    name: str
    weight: float = 0.0
    calls: dict[str, Frame] = field(default_factory=dict)

    def called(self, name: str) -> Frame:
        """Return the frame of a callee, new where it is the first time."""
        return self.calls.setdefault(name, Frame(name))

    @property
    def depth(self) -> int:
        """How many frames lie above each other."""
        return 1 + max((one.depth for one in self.calls.values()), default=0)


def frames_of(recording: Mapping[str, Any]) -> Frame:
    """Return the samples of a speedscope recording as one tree: all, then threads, then functions.

    Raises ValueError where it is no such recording. Format: https://www.speedscope.app/file-format-schema.json
    """
    try:
        names = [_named(frame) for frame in recording["shared"]["frames"]]
        root = Frame("all")
        for thread in recording["profiles"]:
            for stack, weight in zip(thread["samples"], thread["weights"], strict=True):
                _add(root, [_printable(str(thread["name"])), *(names[index] for index in stack[:_DEEPEST])], float(weight))
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"no speedscope recording: {error!r}") from error
    return root


def svg(root: Frame, title: str) -> str:
    """Return the flame graph: callers below, callees above, width by time."""
    height = _TOP + root.depth * _ROW + 8
    boxes = "\n".join(_boxes(root, root.weight, 0.0, height - 8 - _ROW)) if root.weight else ""
    empty = "" if root.weight else '<text x="10" y="40">no sample: nothing ran on a processor</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height}" width="{_WIDTH:g}" height="{height}" '
        'font-family="monospace" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="#fffdf7"/>\n<text x="10" y="20" font-size="14">{html.escape(title)}</text>\n'
        f"{boxes}{empty}\n</svg>\n"
    )


def _add(root: Frame, stack: list[str], weight: float) -> None:
    here = root
    here.weight += weight
    for name in stack:
        here = here.called(name)
        here.weight += weight


def _printable(name: str) -> str:
    """Return a name without what XML forbids: threads are called whatever a program calls them."""
    return "".join(letter if letter.isprintable() else "�" for letter in name)


def _named(frame: Mapping[str, Any]) -> str:
    file = "/".join(str(frame.get("file") or "").split("/")[-2:])
    line = f":{frame['line']}" if frame.get("line") else ""
    return _printable(f"{frame['name']} ({file}{line})" if file else str(frame["name"]))


def _boxes(frame: Frame, whole: float, left: float, bottom: int) -> Iterator[str]:
    width = frame.weight / whole * _WIDTH
    if width < _THINNEST:
        return
    share = f"{frame.weight:.2f} s, {frame.weight / whole:.1%}"
    letters = int((width - 6) / _LETTER)
    shown = frame.name if len(frame.name) <= letters else f"{frame.name[: letters - 1]}…" if letters > 3 else ""
    size = f'width="{max(width - 0.5, 0.3):.1f}" height="{_ROW - 1}"'
    yield (
        f"<g><title>{html.escape(frame.name)}: {share}</title>"
        f'<rect x="{left:.1f}" y="{bottom}" {size} fill="{_colour(frame.name)}"/>'
        f'<text x="{left + 3:.1f}" y="{bottom + 12}">{html.escape(shown)}</text></g>'
    )
    for one in sorted(frame.calls.values(), key=lambda called: called.name):
        yield from _boxes(one, whole, left, bottom - _ROW)
        left += one.weight / whole * _WIDTH


def _colour(name: str) -> str:
    """Return the same warm colour for the same function in every graph."""
    number = zlib.crc32(name.encode())
    return f"hsl({number % 55},{60 + number // 55 % 25}%,{62 + number // 1375 % 14}%)"
