"""Where the gateway is and with which key: options, environment, or the file that ``standby up`` writes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from standby.domain.errors import ConfigurationError, Unavailable

FILE_NAME: Final = "connection.json"


@dataclass(frozen=True, slots=True)
class Connection:
    """The gateway's base URL and the key to show it; ``repr`` never holds the key."""

    url: str
    api_key: str | None

    def __repr__(self) -> str:
        return f"Connection({self.url!r})"


def default_state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return ``$STANDBY_STATE_DIR``, else ``$XDG_STATE_HOME/standby``, else ``~/.local/state/standby``."""
    chosen = environment.get("STANDBY_STATE_DIR")
    if chosen:
        return Path(chosen)
    base = environment.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "standby"


def read_connection(state_dir: Path) -> Connection | None:
    """Return what ``standby up`` wrote, or None where it wrote nothing. Raises ConfigurationError for another file."""
    path = state_dir / FILE_NAME
    try:
        content = json.loads(path.read_text())
        return Connection(str(content["url"]), str(content["api_key"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is not a connection file: {error}",
            remedy="remove it and start `standby up` again, or give --url and --key",
        ) from error


def resolve(url: str | None, key: str | None, state_dir: Path) -> Connection:
    """Return the connection that the options ask for, else the one of ``standby up``.

    The file's key goes to the file's URL only: never to another server that ``--url`` names. Raises Unavailable where
    nothing is known.
    """
    if url is not None and key is not None:
        return Connection(url.rstrip("/"), key)
    stored = read_connection(state_dir)
    if url is None:
        if stored is None:
            raise Unavailable(
                f"no gateway is known: no --url, no STANDBY_URL, no {state_dir / FILE_NAME}",
                remedy="start one with `standby up`, or give --url and --key",
            )
        return Connection(stored.url, key if key is not None else stored.api_key)
    if stored is not None and stored.url == url.rstrip("/"):
        return stored
    return Connection(url.rstrip("/"), key)
