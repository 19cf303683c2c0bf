"""Which chunks of a download have arrived, so that a later attempt, in this process or another, goes on from there.

The first line names the manifest and the size of a chunk; each further line is one chunk with the CRC-32 of the bytes that
arrived. A line is written after its chunk. A chunk counts only when what lies on the disk still has that checksum: then it
does not matter who wrote it, whether the process was killed, or what the disk kept over a loss of power.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from standby.domain.model import Manifest
from standby.domain.values import Value

ChunkKey = tuple[str, int]
"""Path of the object, number of the chunk in it."""


class Heading(Value):
    """The first line."""

    manifest: Manifest
    chunk_bytes: int


@dataclass(frozen=True)
class Arrived:
    """What a journal tells; ``chunks`` maps to checksums."""

    heading: Heading
    chunks: Mapping[ChunkKey, str]


def read_journal(path: Path) -> Arrived | None:
    """Return what the journal at ``path`` tells; None when there is none or its first line is not whole."""
    try:
        lines = path.read_bytes().split(b"\n")
        heading = Heading.model_validate_json(lines[0])
    except (OSError, ValidationError):
        return None
    chunks: dict[ChunkKey, str] = {}
    # What follows the last line break is a line that was being written.
    for line in lines[1:-1]:
        try:
            name, index, checksum = json.loads(line)
        except (ValueError, TypeError):
            continue  # cut off when its writer was killed
        chunks[name, index] = checksum
    return Arrived(heading, chunks)


class Journal:
    """One open journal; appends whole lines."""

    def __init__(self, path: Path, heading: Heading) -> None:
        """Go on with the journal at ``path``, or begin it."""
        self.path = path
        existed = path.exists()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if existed:
            self._append("")  # ends a line that a killed process left half written
        else:
            self._append(heading.model_dump_json())

    def note(self, chunk: ChunkKey, checksum: str) -> None:
        """Say that a chunk lies on the disk."""
        self._append(json.dumps([*chunk, checksum]))

    def close(self) -> None:
        """Close the file; the journal stays."""
        os.close(self._descriptor)

    def _append(self, line: str) -> None:
        os.write(self._descriptor, f"{line}\n".encode())
