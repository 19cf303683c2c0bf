"""A short private folder for the engines' unix sockets."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from standby.domain.errors import ConfigurationError

# sun_path holds 108 bytes with its end; an instance's own folder and socket name need about 45.
LONGEST: Final = 60


def run_dir(state_dir: Path) -> Path:
    """Return (and make, mode 0700) the folder for sockets: below the state folder, or elsewhere when that is too long."""
    folder = state_dir / "run"
    if len(os.fsencode(folder)) > LONGEST:
        name = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]
        # The user's own temporary folder may be as deep as the state folder: the last one never is.
        bases = (os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(), "/tmp")  # noqa: S108 - made private below
        folders = [Path(base) / f"standby-{os.getuid()}-{name}" for base in bases]
        folder = next((place for place in folders if len(os.fsencode(place)) <= LONGEST), folders[-1])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise ConfigurationError(f"{folder} belongs to somebody else", remedy="remove it, or set XDG_RUNTIME_DIR")
    folder.chmod(0o700)
    return folder
