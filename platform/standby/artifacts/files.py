"""Models that already lie on a disk: ``file:///folder``, ``file:///model.gguf`` and ``file:///model.tar.gz``."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from standby.artifacts.location import PIECE_BYTES, checked_path
from standby.artifacts.s3 import MAX_OBJECTS
from standby.artifacts.s3_answers import changed
from standby.domain.errors import ArtifactError, SourceUnreachable, UnsupportedArtifact
from standby.domain.model import ObjectRef, SourceOptions

_Refs = list[ObjectRef]


class FileSource:
    """The regular files below one folder, or one file. See standby.artifacts.sources.Source.

    A file's ETag is its modification time and size. Links to files are followed, links to folders are not.
    """

    def __init__(self, root: Path, options: SourceOptions) -> None:
        self._root = root
        self.options = options

    @property
    def where(self) -> str:
        """The folder in words."""
        return f"folder {str(self._root)!r}"

    async def list(self) -> list[ObjectRef]:
        """Return every file below the folder, or the one file."""
        return await asyncio.to_thread(self._list)

    async def pin(self, ref: ObjectRef) -> ObjectRef | None:
        """Return ``ref``: the listing has already read what there is to know."""
        return ref

    def read_blocking(self, ref: ObjectRef, start: int, length: int) -> bytes:
        """Return the bytes; the file's identity is checked on the same open file that is read."""
        try:
            with Path(ref.key).open("rb") as file:
                now = os.fstat(file.fileno())
                if (now.st_size, _etag(now)) != (ref.size, ref.etag):
                    raise changed(ref.key, f"it has {now.st_size} bytes and another time, instead of {ref.size} bytes")
                content = os.pread(file.fileno(), length, start)
        except FileNotFoundError:
            raise changed(ref.key, "it is gone") from None
        except OSError as error:
            raise _unreadable(Path(ref.key), error) from None
        if len(content) != length:
            raise changed(ref.key, f"it ends after {start + len(content)} bytes")
        return content

    def pieces(self, ref: ObjectRef, start: int, length: int) -> Iterator[bytes]:
        """Yield the bytes; the file's identity is checked for each piece."""
        for at in range(start, start + length, PIECE_BYTES):
            yield self.read_blocking(ref, at, min(PIECE_BYTES, start + length - at))

    async def read(self, ref: ObjectRef, start: int, length: int) -> bytes:
        """Do ``read_blocking`` in a thread."""
        return await asyncio.to_thread(self.read_blocking, ref, start, length)

    def _list(self) -> _Refs:
        try:
            state = self._root.stat()
            if stat.S_ISREG(state.st_mode):
                return [_ref(self._root, self._root.name, state)]
            return sorted(self._walk(), key=lambda ref: ref.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unreadable(self._root, error) from None

    def _walk(self) -> _Refs:
        refs: _Refs = []
        for folder, _, names in os.walk(self._root, onerror=_raise):
            for name in names:
                path = Path(folder, name)
                state = path.stat()
                if not stat.S_ISREG(state.st_mode):
                    continue
                refs.append(_ref(path, path.relative_to(self._root).as_posix(), state))
                if len(refs) > MAX_OBJECTS:
                    raise UnsupportedArtifact(
                        f"{self.where}: more than {MAX_OBJECTS} files", remedy="register the model's own folder"
                    )
        return refs


def _ref(path: Path, relative: str, state: os.stat_result) -> ObjectRef:
    return ObjectRef(
        key=str(path), path=checked_path(relative), size=state.st_size, etag=_etag(state), modified_at=state.st_mtime
    )


def _etag(state: os.stat_result) -> str:
    return f"{state.st_mtime_ns:x}-{state.st_size:x}"


def _unreadable(path: Path, error: OSError) -> ArtifactError:
    return SourceUnreachable(f"{str(path)!r} cannot be read: {error.strerror}", remedy="check the path and its permissions")


def _raise(error: OSError) -> None:
    raise error
