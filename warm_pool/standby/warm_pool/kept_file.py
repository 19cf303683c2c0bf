"""Small records that the agent keeps over its restarts: written in one step, and never a reason not to start."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from standby.domain.values import Record
from standby.host.files import write_private

_log = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)


def read_kept(path: Path, kind: type[R]) -> R:
    """Return the record in ``path``; an empty one where there is none.

    A file that cannot be understood is set aside as ``<name>.corrupt``, replacing an earlier one, with a warning: what
    was measured is measured again.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return kind()
    except ValidationError as error:
        aside = path.with_name(f"{path.name}.corrupt")
        path.replace(aside)
        _log.warning("%s cannot be understood and is set aside as %s: %s", path, aside.name, _first(error))
    except OSError as error:
        _log.warning("%s cannot be read, it begins anew: %s", path, error)
    return kind()


def write_kept(path: Path, record: Record) -> None:
    """Replace ``path`` by ``record``; what cannot be written is logged. Blocks for the disk; one call at a time."""
    try:
        write_private(path, record.model_dump_json())
    except OSError as error:
        _log.warning("%s cannot be written: %s", path, error)


def _first(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(step) for step in fault["loc"])
    return f"{where}: {fault['msg']}" if where else str(fault["msg"])
