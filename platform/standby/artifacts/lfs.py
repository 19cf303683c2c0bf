"""Git LFS pointer files: a few lines of text that stand where the weights should be."""

from __future__ import annotations

from typing import Final

from standby.domain.errors import UnsupportedArtifact

POINTER_BYTES: Final = 1024
"""A pointer is never longer than this."""

_MAGIC: Final = b"version https://git-lfs.github.com/spec/"


def refuse_pointer(path: str, start: bytes, size: int) -> None:
    """Raise UnsupportedArtifact when the file ``path`` of ``size`` bytes that begins with ``start`` is a pointer."""
    if size <= POINTER_BYTES and start.startswith(_MAGIC):
        raise UnsupportedArtifact(
            f"{path} is a Git LFS pointer of {size} bytes, not the file itself",
            remedy="upload the real file: run 'git lfs pull' where you copied it from, then upload again",
        )
