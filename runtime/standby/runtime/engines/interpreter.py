"""Asks another Python interpreter what is installed in it, without importing any of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from standby.domain.errors import ConfigurationError
from standby.domain.values import Value

_LIMIT_S: Final = 20.0
_SHOWN: Final = 300

# Runs in the other interpreter, standard library only. -I keeps this process's PYTHONPATH out of it.
_LOOK: Final = """
import json, sys
from importlib import metadata
names, texts = json.loads(sys.argv[1])
versions, found = {}, {}
for name in names:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
for key, (name, path, word) in texts.items():
    try:
        text = metadata.distribution(name).locate_file(path).read_text(errors="replace")
    except (metadata.PackageNotFoundError, OSError):
        text = ""
    found[key] = word in text
print(json.dumps([versions, found]))
"""
_ANSWER: Final = TypeAdapter(tuple[dict[str, str], dict[str, bool]])


class Text(Value):
    """A word that is looked for in a file of an installed distribution; ``path`` is below its site-packages."""

    distribution: str
    path: str
    word: str


class Installed(Value):
    """Versions of those distributions that are installed, and which texts were found."""

    versions: Mapping[str, str]
    texts: Mapping[str, bool]


def look_into(python: Path, distributions: Sequence[str], texts: Mapping[str, Text] | None = None) -> Installed:
    """Run ``python`` once (0.1 s) and return what it has. Raises ConfigurationError where it cannot be run."""
    asked = [list(distributions), {key: [text.distribution, text.path, text.word] for key, text in (texts or {}).items()}]
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _LOOK, json.dumps(asked)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        versions, found = _ANSWER.validate_json(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"interpreter {python} cannot be asked what it has installed: {error}") from error
    except ValidationError as error:
        words = done.stderr.decode(errors="replace").strip()[-_SHOWN:] or f"exit code {done.returncode}"
        raise ConfigurationError(f"interpreter {python} did not say what it has installed: {words}") from error
    return Installed(versions=versions, texts=found)
