"""Runs modules of standby inside an interpreter that does not have standby installed: an engine's own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import standby

_BOOTSTRAP: Final = Path(__file__).with_name("bootstrap.py")


def foreign_command(python: Path | str, module: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command line that runs ``module`` as the main program of the interpreter ``python`` (3.10 or newer).

    The module, and all of standby that it imports, must need nothing but the standard library and the engine's packages.
    """
    return [str(python), str(_BOOTSTRAP), os.pathsep.join(roots()), module, *arguments]


def roots() -> tuple[str, ...]:
    """Return the folders in which the parts of the namespace package lie: one where it is installed, four in a checkout."""
    return tuple(dict.fromkeys(str(Path(part).parent) for part in standby.__path__))
